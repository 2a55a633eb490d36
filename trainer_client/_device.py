"""Normalises packed pixels on the device: int8 (N, H, W, 3) becomes (N, 4, H, W), or (N, 3, H, W).

The wire carries ``value - 128``, or another packing; the same levels give the same result to the
bit, whatever the packing. The model sees ``(value - 255 * mean) / (255 * std)`` per channel and, by
default, a fourth channel that is exactly 0 (matrix units run faster on four channels than on
three). Both are one multiply-add with a scale and a bias per channel, ``pixels * scale + bias``,
where the fourth channel's scale and bias are 0. It is computed in float32 and rounded once.

In memory the result is (N, H, W, C), ``torch.channels_last``, the order that the wire already has
and that CUDA's matrix units want; or (N, C, H, W), ``torch.contiguous_format``.

    CUDA   ``normalise`` compiled: pad, convert, multiply-add and round are one kernel
    CPU    one pass in C (``_host_normalise``); where that is not built, ``_blocks``
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from feeder.errors import ConfigError
from feeder.plan.packing import (
    DEFAULT_PACKING,
    Packing,
    PixelLayout,
    Pixels,
    pixel_layout_of,
    unpack_levels,
)
from trainer_client._blocks import Blocks
from trainer_client._host_normalise import HostNormaliser
from trainer_client._outputs import Outputs
from trainer_client._scaling import IMAGENET_MEAN, IMAGENET_STD, ValueType, make_scaling

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Normaliser", "denormalise", "normalise"]

_VALUE_TYPES: Final[dict[torch.dtype, ValueType]] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
}

_log = logging.getLogger(__name__)

Compile = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


def normalise(
    pixels: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype,
    channels_first: bool = False,
) -> torch.Tensor:
    """Return ``pixels * scale + bias``, (N, 3 or 4, H, W) channels_last.

    ``pixels`` is (N, H, W, C) or, with ``channels_first``, (N, C, H, W); C is 3 or 4. 128 is first
    subtracted from uint8 pixels. ``scale`` and ``bias`` are float32 (3,), for images of three
    channels, or (4,), the last of each 0.
    """
    if channels_first:
        pixels = pixels.permute(0, 2, 3, 1).contiguous()
    if pixels.shape[3] < scale.shape[0]:
        pixels = torch.nn.functional.pad(pixels, (0, 1))
    elif pixels.shape[3] > scale.shape[0]:
        pixels = pixels[..., :3].contiguous()
    values = pixels.to(torch.float32)
    if pixels.dtype == torch.uint8:
        values = values - 128
    return torch.addcmul(bias, values, scale).to(dtype).permute(0, 3, 1, 2)


def denormalise(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> torch.Tensor:
    """Return uint8 (N, H, W, 3) RGB pixels, for display, of normalised (N, 3 or 4, H, W) images."""
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
        channels: int = 4,
        memory_format: torch.memory_format = torch.channels_last,
        packing: Packing = DEFAULT_PACKING,
        compiler: Compile | None = None,
    ) -> None:
        """Prepare scale and bias for images of 3 or 4 channels.

        ``compiler`` defaults to torch.compile on CUDA, none on a CPU. Raises ConfigError for
        arguments that are out of range, and for levels that ``dtype`` cannot hold.
        """
        value_type = _VALUE_TYPES.get(dtype)
        if value_type is None:
            raise ConfigError(
                f"dtype must be torch.float16, torch.bfloat16 or torch.float32, got {dtype}"
            )
        scaling = make_scaling(mean, std, channels=channels, value_type=value_type)
        self._layout = pixel_layout_of(packing)
        self._is_default = packing == DEFAULT_PACKING
        self.device = device
        self.dtype = dtype
        self.channels = channels
        self._is_channels_last = memory_format == torch.channels_last
        self.compile_failures = 0
        self._scale = torch.tensor(scaling.scale, device=device)
        self._bias = torch.tensor(scaling.bias, device=device)
        if compiler is None and device.type == "cuda":
            compiler = torch.compile
        self._plain = normalise if self._is_channels_last else _normalise_contiguous
        self._compiled = compiler(self._plain) if compiler is not None else None
        self._host: HostNormaliser | None = None
        self._blocks: Blocks | None = None
        if device.type == "cpu":
            host = HostNormaliser(
                scaling, value_type, packing, channels_first=not self._is_channels_last
            )
            if host.is_native:
                self._host = host
            elif channels == 4:
                self._blocks = Blocks(self._scale, self._bias)
        self._outputs = Outputs()

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise packed pixels, contiguous and on the device, into a tensor of its own.

        On a CPU its memory may be that of an earlier result to which nothing refers any more.
        """
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
        if self._host is not None:
            return self._normalise_on_host(self._host, pixels.numpy())
        if self._blocks is not None:
            if not self._is_default:
                pixels = _repack(pixels, self._layout)
            images = self._blocks.normalise(pixels, self.dtype)
            return images if self._is_channels_last else images.contiguous()
        return self._plain(pixels, self._scale, self._bias, self.dtype, self._layout.channels_first)

    def _normalise_on_host(self, host: HostNormaliser, pixels: Pixels) -> torch.Tensor:
        values = host.take_output(pixels, self._outputs)
        host(pixels, values)
        images = torch.from_numpy(values).view(self.dtype)
        return images.permute(0, 3, 1, 2) if self._is_channels_last else images


def _normalise_contiguous(*arguments: Any) -> torch.Tensor:
    """Return the result of ``normalise``, in memory (N, C, H, W)."""
    return normalise(*arguments).contiguous()


def _repack(pixels: torch.Tensor, layout: PixelLayout) -> torch.Tensor:
    """Return CPU pixels in the default packing, at the cost of one more pass in one thread."""
    levels = unpack_levels(pixels.numpy(), layout) ^ np.uint8(0x80)
    return torch.from_numpy(levels.view(np.int8))
