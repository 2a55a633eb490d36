"""Normalises packed pixels on the CPU, in one pass over memory and in the calling thread.

    packed pixels ─► blocks in the L1 cache ─► float32, float16 or bfloat16, (N, H, W, channels)
                                               or (N, channels, H, W)

A model sees ``(level - 255 * mean) / (255 * std)`` in each channel. Pixels are ``level - 128``, so
that is one multiply-add, ``fma(level - 128, scale, bias)``: in float32 with one rounding, then
rounded to nearest even where the output's type is narrower. A fourth channel has scale and bias 0,
so it is exactly 0.

The pass is in C (trainer_client/native), where that was built: it needs a compiler, and no library.
Otherwise each level's value is looked up with numpy, to the same bits, several times slower.

Needs numpy alone.
"""

import functools
import logging
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.installation import rebuild_command
from feeder.plan.packing import Packing, Pixels, pixel_layout_of, unpack_levels

_native: ModuleType | None
try:
    from trainer_client import _native
except ImportError as error:
    _native = None
    _WHY_NOT_NATIVE = str(error)

VERSIONS: Final[tuple[str, ...]] = ("numpy",) if _native is None else ("numpy", *_native.versions())
"""The versions that run here, slowest first: numpy's, and those in C that this CPU can run."""

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

ValueType = Literal["float32", "float16", "bfloat16"]
VALUE_TYPES: Final = get_args(ValueType)
Values = NDArray[np.float32 | np.float16 | np.uint16]
"""Of a ValueType; bfloat16 as uint16 words."""

OUTPUTS_KEPT: Final = 3  # allocations, at most
_ALIGNMENT_BYTES: Final = 64  # a cache line, and what torch's own tensors have

_log = logging.getLogger("trainer_client")


# --- Scale and bias, and the exact value of each level --------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What each channel's ``level - 128`` is multiplied with, and what is then added."""

    scale: NDArray[np.float32]
    """Shape (channels,), 3 or 4."""
    bias: NDArray[np.float32]

    def table(self, value_type: ValueType) -> Values:
        """Each level's value in each channel, (channels, 256).

        The product is exact in float64, the sum may not be. Then its last bit is made odd, so that
        the second rounding, to float32, never sees a tie that is none.
        """
        products = (np.arange(256) - 128.0) * self.scale[:, None].astype(np.float64)
        biases = np.broadcast_to(self.bias[:, None].astype(np.float64), products.shape)
        sums = products + biases
        rounded = sums - products
        errors = (products - (sums - rounded)) + (biases - rounded)
        is_even = sums.view(np.uint64) % 2 == 0
        odd = np.nextafter(sums, np.copysign(np.inf, errors))
        exact = np.where((errors != 0) & is_even, odd, sums)
        return round_values(exact.astype(np.float32), value_type)


def make_scaling(
    mean: Sequence[float], std: Sequence[float], *, channels: int, value_type: ValueType
) -> Scaling:
    """The scaling of ``channels`` (3 or 4) channels from mean and deviation of R, G and B.

    Raises ConfigError for arguments that are out of range, and for levels that ``value_type``
    cannot hold.
    """
    if value_type not in VALUE_TYPES:
        raise ConfigError(f"dtype must be float16, bfloat16 or float32, got {value_type}")
    if isinstance(channels, bool | float) or channels not in (3, 4):
        raise ConfigError(
            f"channels must be 3 (R, G, B) or 4 (and one that is 0), got {channels!r}"
        )
    means, deviations = _rgb("mean", mean), _rgb("std", std)
    if deviations.min() <= 0:
        raise ConfigError(f"std must be above 0 in every channel, got {std!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        scale64 = 1 / (255 * deviations)
        bias64 = (128 - 255 * means) * scale64
        padding = (0, channels - 3)
        scaling = Scaling(
            scale=np.pad(scale64.astype(np.float32), padding),
            bias=np.pad(bias64.astype(np.float32), padding),
        )
        values = scaling.table(value_type)
    if value_type == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if not np.isfinite(values).all():
        raise ConfigError(
            f"{value_type} cannot hold what mean {mean!r} and std {std!r} make of levels 0 .. 255: "
            "use a larger std"
        )
    return scaling


def round_values(values: NDArray[np.float32], value_type: ValueType) -> Values:
    """Round float32 values to nearest even."""
    if value_type == "float32":
        return values
    if value_type == "float16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _rgb(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (3,) or not np.isfinite(found).all():
        raise ConfigError(f"{name} must be three numbers (R, G, B), got {values!r}")
    return found


# --- The pass over a batch ------------------------------------------------------------------------


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "normalising on this CPU takes several times as long as it could: the client's C part is "
        "not built (%s); install a C compiler, then %s",
        _WHY_NOT_NATIVE,
        rebuild_command(),
    )


class HostNormaliser:
    """Normalises batches of one packing to one type; holds no buffers, so threads may share it."""

    def __init__(
        self,
        scaling: Scaling,
        value_type: ValueType,
        packing: Packing,
        *,
        channels_first: bool = False,
        version: str = VERSIONS[-1],
    ) -> None:
        """Prepare for pixels of ``packing``; ``version`` is one of VERSIONS.

        ``channels_first`` is whether the values are (N, channels, H, W).
        """
        if version not in VERSIONS:
            raise ConfigError(f"version must be one of {', '.join(VERSIONS)}, got {version!r}")
        self._layout = pixel_layout_of(packing)
        self._scaling = scaling
        self._table = scaling.table(value_type)
        self._stored_as = self._table.dtype
        self._channels_first = channels_first
        self._version = version
        if _native is None:
            _warn_once()

    @property
    def is_native(self) -> bool:
        """Whether the C part does the work."""
        return self._version != "numpy"

    def take_output(self, pixels: Pixels, outputs: "Outputs") -> Values:
        """An array of ``outputs`` for what ``pixels`` become."""
        shape = self._output_shape(pixels)
        memory = outputs.take(math.prod(shape) * self._stored_as.itemsize)
        return memory.view(self._stored_as).reshape(shape)

    def __call__(self, pixels: Pixels, out: Values) -> None:
        """Write normalised ``pixels`` to ``out``, both C-contiguous.

        ``pixels`` are a batch in the packing's layout and dtype. ``out`` is (N, H, W, channels), or
        (N, channels, H, W), of float32, float16 or, for bfloat16, uint16; it may not overlap with
        ``pixels``.

        Raises ValueError, TypeError or BufferError for arrays of another shape, type or layout.
        """
        if pixels.dtype != self._layout.dtype:
            raise TypeError(f"pixels must be {self._layout.dtype}, they are {pixels.dtype}")
        if out.dtype != self._stored_as:
            raise TypeError(f"out must be {self._stored_as}, it is {out.dtype}")
        if out.shape != self._output_shape(pixels):
            raise ValueError(f"out has shape {out.shape}, the pixels have {pixels.shape}")
        if not self.is_native or _native is None:
            self._look_up(pixels, out)
            return
        if self._layout.is_float:  # the packing for comparisons: one more pass
            pixels = pixels.astype(np.int8)
        _native.normalise(
            pixels,
            self._layout.channels_first,
            self._table,
            self._scaling.scale,
            self._scaling.bias,
            out,
            self._channels_first,
            self._version,
        )

    def _output_shape(self, pixels: Pixels) -> tuple[int, ...]:
        axis = 1 if self._layout.channels_first else 3
        if pixels.ndim != 4 or pixels.shape[axis] != self._layout.channels:
            raise ValueError(
                f"pixels must have 4 axes, axis {axis} of {self._layout.channels} channels; "
                f"they have shape {pixels.shape}"
            )
        images, height, width = (side for at, side in enumerate(pixels.shape) if at != axis)
        channels = len(self._scaling.scale)
        if self._channels_first:
            return images, channels, height, width
        return images, height, width, channels

    def _look_up(self, pixels: Pixels, out: Values) -> None:
        """Look each level up, image by image, to keep what is between in the caches."""
        if not pixels.flags.c_contiguous or not out.flags.c_contiguous:
            raise ValueError("pixels and out must be C-contiguous")
        if self._channels_first:
            out = np.moveaxis(out, 1, 3)
        for image, values in zip(pixels, out, strict=True):
            (levels,) = unpack_levels(image[None], self._layout)
            for channel in range(3):
                values[..., channel] = self._table[channel][levels[..., channel]]
            values[..., 3:] = 0


# --- Memory for normalised batches ----------------------------------------------------------------


class Outputs:
    """Lends memory, which is free again when the lent array and all views of it are gone.

    The system clears each new page: for 205 MB, 256 images in float32, that takes several times as
    long as normalising into memory that has its pages. A consumer holds one batch while it takes
    the next, or two where a framework reads ahead. One that keeps its batches gets new memory for
    each. A tensor made by ``torch.from_numpy`` keeps its array alive, and so do the tensor's views.
    One thread may take memory at a time.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[NDArray[np.uint8], weakref.ref[NDArray[np.uint8]]]] = []

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """``size_bytes`` bytes, of any content, aligned to cache lines."""
        for memory, array in self._lent:
            if array() is None and len(memory) >= size_bytes:
                break
        else:
            memory = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
            memory = memory[-memory.ctypes.data % _ALIGNMENT_BYTES :][:size_bytes]
            held = [each for each in self._lent if each[1]() is not None]
            self._lent = held[: OUTPUTS_KEPT - 1]  # the latest are free again soonest
        lent = view_of(memory.data[:size_bytes])
        others = [each for each in self._lent if each[0] is not memory]
        self._lent = [(memory, weakref.ref(lent)), *others]  # first, as it is in the caches
        return lent


def view_of(memory: memoryview) -> NDArray[np.uint8]:
    """The bytes of ``memory`` as an array whose own views keep it alive.

    numpy's view of a view refers to the array that owns the memory, past the first view; it does
    refer to an array that was made from a memoryview.
    """
    return np.frombuffer(memory, np.uint8)
