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
from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, get_args

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


class Scaling(NamedTuple):
    """What each channel's ``level - 128`` is multiplied with, what is then added, and the results.

    ``scale`` and ``bias`` have shape (channels,), 3 or 4; ``table`` has each level's value in each
    channel, (channels, 256).
    """

    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    table: Values


def make_scaling(
    mean: Sequence[float], std: Sequence[float], *, channels: int, value_type: ValueType
) -> Scaling:
    """The scaling of ``channels`` (3 or 4) channels from mean and deviation of R, G and B.

    Raises ConfigError for arguments that are out of range, and for levels that ``value_type``
    cannot hold.
    """
    if channels not in (3, 4):
        raise ConfigError(
            f"channels must be 3 (R, G, B) or 4 (and one that is 0), got {channels!r}"
        )
    means, deviations = _rgb("mean", mean), _rgb("std", std)
    if deviations.min() <= 0:
        raise ConfigError(f"std must be above 0 in every channel, got {std!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        factors = 1 / (255 * deviations)
        pairs = (factors, (128 - 255 * means) * factors)
        scale, bias = (np.pad(each, (0, channels - 3)).astype(np.float32) for each in pairs)
        table = make_table(scale, bias, value_type)
    values = table if table.dtype != np.uint16 else (table.astype(np.uint32) << 16).view(np.float32)
    if not np.isfinite(values).all():
        raise ConfigError(
            f"{value_type} cannot hold what mean {mean!r} and std {std!r} make of levels 0 .. 255: "
            "use a larger std"
        )
    return Scaling(scale, bias, table)


def make_table(
    scale: NDArray[np.float32], bias: NDArray[np.float32], value_type: ValueType
) -> Values:
    """Each level's value in each channel, (channels, 256), rounded once.

    The product is exact in float64, the sum may not be. Then its last bit is made odd, so that the
    second rounding, to float32, never sees a tie that is none.
    """
    products = (np.arange(256) - 128.0) * scale[:, None].astype(np.float64)
    biases = np.broadcast_to(bias[:, None].astype(np.float64), products.shape)
    sums = products + biases
    rounded = sums - products
    errors = (products - (sums - rounded)) + (biases - rounded)
    is_even = sums.view(np.uint64) % 2 == 0
    odd = np.nextafter(sums, np.copysign(np.inf, errors))
    exact = np.where((errors != 0) & is_even, odd, sums)
    return round_values(exact.astype(np.float32), value_type)


def round_values(values: NDArray[np.float32], value_type: ValueType) -> Values:
    """Round float32 values to nearest even."""
    if value_type == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(value_type)


def _rgb(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.shape != (3,) or not np.isfinite(numbers).all():
        raise ConfigError(f"{name} must be three numbers (R, G, B), got {values!r}")
    return numbers


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
    """Normalises batches of one packing, into memory of its own. For one thread at a time."""

    def __init__(
        self,
        scaling: Scaling,
        packing: Packing,
        *,
        channels_first: bool = False,
        version: str = VERSIONS[-1],
    ) -> None:
        """Prepare for pixels of ``packing``; ``version`` is one of VERSIONS.

        ``channels_first`` is whether the values are (N, channels, H, W).
        """
        self._layout = pixel_layout_of(packing)
        self._scaling = scaling
        self._channels_first = channels_first
        self._version = version
        self._outputs: defaultdict[int, Outputs] = defaultdict(Outputs)  # by group of crops
        if _native is None:
            _warn_once()

    def __call__(self, pixels: Pixels, out: Values | None = None, *, group: int = 0) -> Values:
        """Return normalised ``pixels``, a batch in the packing's layout and dtype.

        They are in ``out`` or in memory of ``Outputs``: (N, H, W, channels) or (N, channels, H, W)
        of float32, float16 or, for bfloat16, uint16; C-contiguous, as the pixels must be. Each
        ``group`` has memory of its own, as its images have a size of their own.
        """
        scale, bias, table = self._scaling
        if out is None:
            axis = 1 if self._layout.channels_first else 3
            shape = [side for at, side in enumerate(pixels.shape) if at != axis]
            shape.insert(1 if self._channels_first else 3, len(scale))
            out = self._outputs[group].take(shape, table.dtype)
        if self._version == "numpy" or _native is None:
            self._look_up(pixels, np.moveaxis(out, 1, 3) if self._channels_first else out)
            return out
        if self._layout.is_float:  # the packing for comparisons: one more pass
            pixels = pixels.astype(np.int8)
        planar = self._layout.channels_first
        _native.normalise(
            pixels, planar, table, scale, bias, out, self._channels_first, self._version
        )
        return out

    def _look_up(self, pixels: Pixels, out: Values) -> None:
        """Look each level up, image by image, to keep what is between in the caches."""
        for image, values in zip(pixels, out, strict=True):
            (levels,) = unpack_levels(image[None], self._layout)
            for channel in range(3):
                values[..., channel] = self._scaling.table[channel][levels[..., channel]]
            values[..., 3:] = 0


# --- Memory for normalised batches ----------------------------------------------------------------


class Outputs:
    """Lends memory, which is free again when the lent array and all views of it are gone.

    The system clears each new page: for 205 MB, 256 images in float32, that takes several times as
    long as normalising into memory that has its pages. A consumer holds one batch while it takes
    the next, or two where a framework reads ahead. One that keeps its batches gets new memory for
    each. A tensor made by ``torch.from_numpy`` keeps its array alive, and so do the tensor's views.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[NDArray[np.uint8], weakref.ref[NDArray[np.uint8]]]] = []

    def take(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> NDArray[Any]:
        """An array of any content, aligned to cache lines."""
        size_bytes = math.prod(shape) * dtype.itemsize
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
        return lent.view(dtype).reshape(shape)


def view_of(memory: memoryview) -> NDArray[np.uint8]:
    """The bytes of ``memory`` as an array whose own views keep it alive.

    numpy's view of a view refers to the array that owns the memory, past the first view; it does
    refer to an array that was made from a memoryview.
    """
    return np.frombuffer(memory, np.uint8)
