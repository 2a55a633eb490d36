"""Normalises packed pixels on the accelerator: int8 (N, H, W, 3) becomes (N, 4, H, W).

The wire carries ``value - 128``, or another packing; the same levels give the same result to the
bit, whatever the packing. The model sees ``(value - 255 * mean) / (255 * std)`` per channel and a
fourth channel that is exactly 0 (matrix units run faster on four channels than on three). Both are
one multiply-add with a scale and a bias per channel, ``pixels * scale + bias``, where the fourth
channel's scale and bias are 0. It is computed in float32 and rounded once.

The result is ``channels_last``: in memory (N, H, W, 4), the order the wire already has.

    CUDA   ``normalise`` compiled: pad, convert, multiply-add and round are one kernel
    CPU    blocks that stay in the cache, because each step there is a pass over memory
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from feeder.errors import ConfigError
from feeder.plan.packing import (
    DEFAULT_PACKING,
    Packing,
    PixelLayout,
    pixel_layout_of,
    unpack_levels,
)

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_ROW_PX: Final = 256  # scale and bias, repeated this often, fit the L1 cache
_BLOCK_PX: Final = 8 * 1024  # 32,768 values: the most that torch computes in one thread

_log = logging.getLogger(__name__)

Compile = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


def normalise(
    pixels: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype,
    channels_first: bool = False,
) -> torch.Tensor:
    """Return ``pixels * scale + bias`` with a fourth channel, (N, 4, H, W) channels_last.

    ``pixels`` is (N, H, W, C) or, with ``channels_first``, (N, C, H, W); C is 3 or 4. 128 is first
    subtracted from uint8 pixels. ``scale`` and ``bias`` are float32 (4,), the last of each 0.
    """
    if channels_first:
        pixels = pixels.permute(0, 2, 3, 1).contiguous()
    if pixels.shape[3] == 3:
        pixels = torch.nn.functional.pad(pixels, (0, 1))
    values = pixels.to(torch.float32)
    if pixels.dtype == torch.uint8:
        values = values - 128
    return torch.addcmul(bias, values, scale).to(dtype).permute(0, 3, 1, 2)


def denormalise(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> torch.Tensor:
    """Return uint8 (N, H, W, 3) RGB pixels, for display, of normalised (N, 4, H, W) images."""
    hwc = images[:, :3].permute(0, 2, 3, 1).to(device="cpu", dtype=torch.float32)
    pixels = (hwc * torch.tensor(std) + torch.tensor(mean)) * 255
    return pixels.round_().clamp_(0, 255).to(torch.uint8).contiguous()


class Normaliser:
    """``normalise`` for one device, dtype, mean and std, in the fastest form for the device.

    ``compile_failures`` counts failures to compile, after which the slower eager form runs.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        packing: Packing = DEFAULT_PACKING,
        channels: int = 4,
        compiler: Compile | None = None,
    ) -> None:
        """Prepare scale and bias; ``compiler`` defaults to torch.compile on CUDA, none on a CPU."""
        if dtype not in _DTYPES:
            raise ConfigError(f"dtype must be float16, bfloat16 or float32, got {dtype}")
        for name, values in (("mean", mean), ("std", std)):
            if len(values) != 3 or not np.isfinite(values).all():
                raise ConfigError(f"{name} must be three numbers (R, G, B), got {values!r}")
        if min(std) <= 0:
            raise ConfigError(f"std must be above 0 in every channel, got {std!r}")
        scale64 = 1 / (255 * np.array(std, np.float64))
        bias64 = (128 - 255 * np.array(mean, np.float64)) * scale64
        self._layout = pixel_layout_of(packing)
        self._is_default = packing == DEFAULT_PACKING
        self._channels = channels
        self.device = device
        self.dtype = dtype
        self.compile_failures = 0
        self._scale = torch.tensor([*scale64, 0], dtype=torch.float32, device=device)
        self._bias = torch.tensor([*bias64, 0], dtype=torch.float32, device=device)
        if compiler is None and device.type == "cuda":
            compiler = torch.compile
        self._compiled = compiler(normalise) if compiler is not None else None
        self._scratch = _Scratch(self._scale, self._bias) if device.type == "cpu" else None

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise packed pixels, contiguous and on the device, into a new tensor."""
        images = self._normalise(pixels)
        if self._channels == 3:
            images = images[:, :3].contiguous(memory_format=torch.channels_last)
        return images

    def _normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        if self._compiled is not None:
            try:
                return self._compiled(
                    pixels, self._scale, self._bias, self.dtype, self._layout.channels_first
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # the base of all torch.compile errors
                self._compiled = None
                self.compile_failures += 1
                reason = str(error).strip().splitlines()[:1]
                _log.warning("normalise runs uncompiled, compiling failed: %s", *reason)
        if self._scratch is not None:
            if not self._is_default:
                pixels = _repack(pixels, self._layout)
            return self._scratch.normalise(pixels, self.dtype)
        return normalise(pixels, self._scale, self._bias, self.dtype, self._layout.channels_first)


def _repack(pixels: torch.Tensor, layout: PixelLayout) -> torch.Tensor:
    """Return CPU pixels in the default packing, at the cost of one more pass in one thread."""
    levels = unpack_levels(pixels.numpy(), layout) ^ np.uint8(0x80)
    return torch.from_numpy(levels.view(np.int8))


class _Scratch:
    """The CPU's form: the same arithmetic in blocks, through two reused buffers.

    A block is small enough for torch to process it in one thread. On cores shared with a daemon's
    workers, more threads lose more by waiting for each other than they gain.
    """

    def __init__(self, scale: torch.Tensor, bias: torch.Tensor) -> None:
        self._scale = scale.repeat(_ROW_PX)
        self._bias = bias.repeat(_ROW_PX)
        self._quads = torch.zeros(_BLOCK_PX * 4, dtype=torch.int8)
        self._values = torch.empty(_BLOCK_PX * 4, dtype=torch.float32)
        self._words = self._quads.numpy().view(np.uint32)
        self._block = (self._quads.view(-1, _ROW_PX * 4), self._values.view(-1, _ROW_PX * 4))

    def normalise(self, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        images, height, width, _ = pixels.shape
        count = images * height * width
        out = torch.empty(count * 4, dtype=dtype)
        flat = pixels.view(-1).numpy()
        # RGB becomes four bytes a pixel by copying overlapping words, ten times faster than copying
        # three bytes at a time. The fourth byte is the next pixel's red, and its scale is 0. The
        # last pixel has no byte after it, so it is copied separately.
        words = np.ndarray((count - 1,), np.uint32, flat, 0, (3,))
        blocks = (count - 1) // _BLOCK_PX
        rest = blocks * _BLOCK_PX
        block_shape = (blocks, _BLOCK_PX // _ROW_PX, _ROW_PX * 4)
        for number, block in enumerate(out[: rest * 4].view(block_shape).unbind()):
            start = number * _BLOCK_PX
            np.copyto(self._words, words[start : start + _BLOCK_PX])
            self._compute(*self._block, block)
        self._words[: count - 1 - rest] = words[rest:]
        self._quads.numpy()[(count - 1 - rest) * 4 :][:3] = flat[-3:]
        self._compute_rest(out[rest * 4 :])
        return out.view(images, height, width, 4).permute(0, 3, 1, 2)

    def _compute_rest(self, out: torch.Tensor) -> None:
        """Compute complete rows of values, then the rest of a row."""
        whole = len(out) // (_ROW_PX * 4) * (_ROW_PX * 4)
        for part in (slice(0, whole), slice(whole, len(out))):
            row = min(_ROW_PX * 4, part.stop - part.start)
            if row:
                quads, values = self._quads[part].view(-1, row), self._values[part].view(-1, row)
                self._compute(quads, values, out[part].view(-1, row))

    def _compute(self, quads: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``quads * scale + bias`` to ``out``, all (rows, n); ``values`` is scratch."""
        scale, bias = self._scale[: out.shape[1]], self._bias[: out.shape[1]]
        values.copy_(quads)
        if out.dtype == torch.float32:
            torch.addcmul(bias, values, scale, out=out)
        else:
            torch.addcmul(bias, values, scale, out=values)
            out.copy_(values)
