"""Scale and bias that normalise levels, and the exact value of each level.

A model sees ``(level - 255 * mean) / (255 * std)`` in each channel. Pixels are ``level - 128``, so
that is one multiply-add, ``fma(level - 128, scale, bias)``: in float32 with one rounding, then
rounded to nearest even where the output's type is narrower. A fourth channel has scale and bias 0,
so it is exactly 0.

Needs numpy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

ValueType = Literal["float32", "float16", "bfloat16"]
VALUE_TYPES: Final = get_args(ValueType)
CHANNELS: Final = (3, 4)

_LEVELS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What each channel's ``level - 128`` is multiplied with, and what is then added."""

    scale: NDArray[np.float32]
    """Shape (channels,)."""
    bias: NDArray[np.float32]
    """Shape (channels,)."""

    @property
    def channels(self) -> int:
        """The number of channels, 3 or 4."""
        return len(self.scale)

    def table(self, value_type: ValueType) -> NDArray[np.float32 | np.float16 | np.uint16]:
        """Return each level's value in each channel, (channels, 256); bfloat16 as uint16 words."""
        return round_values(self._exact_values(), value_type)

    def _exact_values(self) -> NDArray[np.float32]:
        """Return the values in float32, rounded once.

        The product is exact in float64, the sum may not be. Then its last bit is made odd, so that
        the second rounding, to float32, never sees a tie that is none.
        """
        products = (np.arange(_LEVELS) - 128.0) * self.scale[:, None].astype(np.float64)
        biases = np.broadcast_to(self.bias[:, None].astype(np.float64), products.shape)
        sums = products + biases
        rounded = sums - products
        errors = (products - (sums - rounded)) + (biases - rounded)
        is_even = sums.view(np.uint64) % 2 == 0
        odd = np.nextafter(sums, np.copysign(np.inf, errors))
        exact = np.where((errors != 0) & is_even, odd, sums)
        return exact.astype(np.float32)


def make_scaling(
    mean: Sequence[float], std: Sequence[float], *, channels: int, value_type: ValueType
) -> Scaling:
    """Return the scaling of ``channels`` (3 or 4) channels from mean and deviation of R, G and B.

    Raises ConfigError for arguments that are out of range, and for levels that ``value_type``
    cannot hold.
    """
    if value_type not in VALUE_TYPES:
        raise ConfigError(f"dtype must be float16, bfloat16 or float32, got {value_type}")
    if isinstance(channels, bool | float) or channels not in CHANNELS:
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
    if not _are_finite(values, value_type):
        raise ConfigError(
            f"{value_type} cannot hold what mean {mean!r} and std {std!r} make of levels 0 .. 255: "
            "use a larger std"
        )
    return scaling


def round_values(
    values: NDArray[np.float32], value_type: ValueType
) -> NDArray[np.float32 | np.float16 | np.uint16]:
    """Return float32 values rounded to nearest even; bfloat16 as uint16 words."""
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


def _are_finite(
    values: NDArray[np.float32 | np.float16 | np.uint16], value_type: ValueType
) -> bool:
    if value_type == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return bool(np.isfinite(values).all())
