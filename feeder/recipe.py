"""The recipe: all that shapes a batch's bytes, apart from the dataset, the seed and the position.

Invariant: a ``Recipe`` that exists is valid. Every way to make one (calling it, ``for_split``,
decoding it from the wire) goes through ``__post_init__``, which checks type and range of every
field and brings numbers to one form, so that equal recipes have equal fingerprints.
"""

import difflib
import hashlib
import json
import operator
from collections.abc import Sequence
from typing import Any, Final, Literal, Self, SupportsIndex, TypeGuard, get_args

import msgspec
from msgspec.structs import force_setattr

from feeder.errors import ConfigError
from feeder.plan import LastBatch

Split = Literal["train", "val"]
Crop = Literal["random-resized", "centre"]
Packing = Literal["int8-hwc-rgb"]

MAX_BATCH_SIZE: Final = 65_536
MIN_IMAGE_SIZE: Final = 8
MAX_IMAGE_SIZE: Final = 4_096
MAX_RESIZE_SIZE: Final = 8_192
MIN_SCALE: Final = 1e-6
MIN_RATIO: Final = 0.01
MAX_RATIO: Final = 100.0
_FINGERPRINT_VERSION: Final = 1  # raise it when the same fields come to mean other bytes


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to each sample and how samples make batches.

    split: the name of the use, for people and counters; it decides the defaults of ``for_split``.
    batch_size: rows of a global batch.
    image_size: side of the square output, pixels.
    crop: "random-resized" is torchvision's RandomResizedCrop(image_size, scale, ratio); "centre" is
        its Resize(resize_size) followed by CenterCrop(image_size).
    scale: least and greatest area of the crop over the image's area.
    ratio: least and greatest width over height of the crop.
    resize_size: short side that centre resizes to, pixels; at least image_size when crop is centre.
    flip_probability: of mirroring left and right.
    dct_scaling: let the decoder shrink by 2, 4 or 8 where the crop is large enough.
    shuffle: permute the epoch; without it the packed order, lanes taking turns.
    last_batch: drop or pad what does not fill a batch.
    packing: int8-hwc-rgb is (value - 128) as int8, rows, columns, channels red, green, blue.
    """

    split: Split
    batch_size: int
    image_size: int = 224
    crop: Crop
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resize_size: int = 256
    flip_probability: float = 0.5
    dct_scaling: bool
    shuffle: bool
    last_batch: LastBatch
    packing: Packing = "int8-hwc-rgb"

    @classmethod
    def for_split(cls, split: Split, *, batch_size: int, **overrides: object) -> Self:
        """Return the usual recipe of a split, changed by ``overrides`` (named as the fields).

        train: random-resized crops, flips, scaled decoding, shuffled, last batch dropped.
        val: centre crops, no flips, no scaled decoding, in order, last batch padded.
        ConfigError names what is wrong.
        """
        fields: dict[str, Any] = {"split": split, "batch_size": batch_size}
        if split == "val":
            fields |= {"crop": "centre", "flip_probability": 0.0, "dct_scaling": False}
            fields |= {"shuffle": False, "last_batch": LastBatch.PAD}
        else:
            fields |= {"crop": "random-resized", "dct_scaling": True}
            fields |= {"shuffle": True, "last_batch": LastBatch.DROP}
        for name, value in overrides.items():
            if name not in cls.__struct_fields__:
                nearest = difflib.get_close_matches(name, cls.__struct_fields__, n=1, cutoff=0.0)
                raise ConfigError(f"recipe: there is no field {name!r}; nearest is {nearest[0]!r}")
            fields[name] = value
        return cls(**fields)

    def __post_init__(self) -> None:
        """Check every field and bring it to its one form; ConfigError names field, value, range."""
        _check_choice("split", self.split, get_args(Split))
        _check_choice("crop", self.crop, get_args(Crop))
        _check_choice("packing", self.packing, get_args(Packing))
        _check_choice("last_batch", self.last_batch, [str(choice) for choice in LastBatch])
        _check_choice("dct_scaling", self.dct_scaling, (True, False))
        _check_choice("shuffle", self.shuffle, (True, False))
        checked: dict[str, object] = {
            "last_batch": LastBatch(self.last_batch),
            "batch_size": _check_integer("batch_size", self.batch_size, 1, MAX_BATCH_SIZE),
            "image_size": _check_integer(
                "image_size", self.image_size, MIN_IMAGE_SIZE, MAX_IMAGE_SIZE
            ),
            "resize_size": _check_integer(
                "resize_size", self.resize_size, MIN_IMAGE_SIZE, MAX_RESIZE_SIZE
            ),
            "flip_probability": _check_number("flip_probability", self.flip_probability),
            "scale": _check_interval("scale", self.scale, MIN_SCALE, 1.0),
            "ratio": _check_interval("ratio", self.ratio, MIN_RATIO, MAX_RATIO),
        }
        if self.crop == "centre" and self.resize_size < self.image_size:
            raise ConfigError(
                f"recipe: resize_size must be a whole number {self.image_size} .. "
                f"{MAX_RESIZE_SIZE} for a centre crop of image_size {self.image_size}, "
                f"got {self.resize_size}"
            )
        for name, value in checked.items():
            force_setattr(self, name, value)

    def fingerprint(self) -> str:
        """Return 32 hex digits that are equal exactly for equal recipes, on any machine."""
        fields = {"version": _FINGERPRINT_VERSION, **msgspec.structs.asdict(self)}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    # 1 == True and True == 1, so the type must agree too; LastBatch.DROP is as good as "drop".
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        names = " or ".join(str(choice).lower() for choice in choices)
        raise ConfigError(f"recipe: {name} must be {names}, got {value!r}")


def _check_integer(name: str, value: object, low: int, high: int) -> int:
    allowed = f"a whole number {low} .. {high}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"recipe: {name} must be {allowed}, got {value!r}")
    number = operator.index(value)
    if not low <= number <= high:
        raise ConfigError(f"recipe: {name} must be {allowed}, got {value!r}")
    return number


def _check_number(name: str, value: object) -> float:
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"recipe: {name} must be a number 0 .. 1, got {value!r}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def _check_interval(name: str, value: object, low: float, high: float) -> tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value)):
        least, greatest = value
        if low <= least <= greatest <= high:
            return float(least), float(greatest)
    raise ConfigError(
        f"recipe: {name} must be two numbers (least, greatest) with "
        f"{low:g} <= least <= greatest <= {high:g}, got {value!r}"
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
