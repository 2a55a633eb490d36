"""The device of the batches, and normalising on it: int8 (N, H, W, 3) becomes (N, 3 or 4, H, W).

Packed pixels, ``value - 128`` or another packing, become ``(value - 255 * mean) / (255 * std)`` in
each channel and, by default, a fourth channel that is exactly 0 (matrix units run faster on four
channels than on three): ``pixels * scale + bias``, computed in float32 and rounded once. In memory
the result is (N, H, W, C), ``torch.channels_last``, the order that the wire already has and that
CUDA's matrix units want; or (N, C, H, W), ``torch.contiguous_format``.

    CUDA   ``normalise`` compiled: pad, convert, multiply-add and round are one kernel
    CPU    one pass in C (``_host_normalise``)
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from feeder.errors import ConfigError
from feeder.plan.packing import DEFAULT_PACKING, Packing, pixel_layout_of
from trainer_client._host_normalise import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    HostNormaliser,
    ValueType,
    make_scaling,
)

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
                f"dtype must be torch.float16, torch.bfloat16 or torch.float32, got {dtype!r}"
            )
        if memory_format not in (torch.channels_last, torch.contiguous_format):
            raise ConfigError(
                "memory_format must be torch.channels_last or torch.contiguous_format, got "
                f"{memory_format!r}"
            )
        scaling = make_scaling(mean, std, channels=channels, value_type=value_type)
        self.device = device
        self.dtype = dtype
        self.channels = channels
        self.compile_failures = 0
        self._is_channels_last = memory_format == torch.channels_last
        self._eager = normalise if self._is_channels_last else _normalise_contiguous
        if compiler is None and device.type == "cuda":
            compiler = torch.compile
        self._compiled = compiler(self._eager) if compiler is not None else None
        scale, bias = (torch.tensor(each, device=device) for each in (scaling.scale, scaling.bias))
        self._arguments = (scale, bias, dtype, pixel_layout_of(packing).channels_first)
        self._host: HostNormaliser | None = None
        if device.type == "cpu":
            channels_first = not self._is_channels_last
            self._host = HostNormaliser(scaling, packing, channels_first=channels_first)

    def __call__(self, pixels: torch.Tensor, *, group: int = 0) -> torch.Tensor:
        """Normalise packed pixels, contiguous and on the device, into a tensor of its own.

        On a CPU its memory may be that of an earlier result of the same ``group`` of crops to which
        nothing refers any more.
        """
        if self._compiled is not None:
            try:
                return self._compiled(pixels, *self._arguments)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # the base of all torch.compile errors
                self._compiled = None
                self.compile_failures += 1
                reason = str(error).strip().splitlines()[:1]
                _log.warning("normalise runs uncompiled, compiling failed: %s", *reason)
        if self._host is None:
            return self._eager(pixels, *self._arguments)
        images = torch.from_numpy(self._host(pixels.numpy(), group=group)).view(self.dtype)
        return images.permute(0, 3, 1, 2) if self._is_channels_last else images


def normalise_groups(
    normaliser: Normaliser, groups: Iterable[torch.Tensor], count: int
) -> tuple[torch.Tensor, ...]:
    """Normalise groups of crops, each (crops, batch, …), to (crops, count, C, H, W)."""
    images = []
    for number, group in enumerate(groups):
        crops, rows = group.shape[:2]
        flat = normaliser(group.flatten(0, 1), group=number)
        split = torch.unflatten(flat, 0, (crops, rows))  # a view, also of channels_last
        images.append(split[:, :count])
    return tuple(images)


def _normalise_contiguous(*arguments: Any) -> torch.Tensor:
    return normalise(*arguments).contiguous()


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Return the device with its index; None is this process's CUDA device, else the CPU.

    That is the one that LOCAL_RANK has, where a launcher has set it and the process has not chosen
    a device yet: loaders are often made before the process group.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved != torch.device("cuda"):  # it names an index, or is no CUDA device
        return resolved
    current = torch.cuda.current_device()
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not current and local_rank.isdecimal() and int(local_rank) < torch.cuda.device_count():
        current = int(local_rank)
    return torch.device("cuda", current)


def check_device(device: torch.device, *, is_default: bool) -> None:
    """Raise ConfigError if a default ``device`` is no longer this process's CUDA device."""
    if is_default and device.type == "cuda" and device.index != torch.cuda.current_device():
        raise ConfigError(
            f"this loader was made for {device}, before the process chose "
            f"cuda:{torch.cuda.current_device()}: pass device= to the loader, or make it after "
            "torch.cuda.set_device()"
        )
