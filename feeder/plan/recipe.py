"""The recipe: all that shapes a batch's bytes, apart from the dataset, the seed and the position.

Invariant: a ``Recipe`` that exists is valid. Every way to make one (calling it, ``for_split``,
decoding it from the wire) goes through ``__post_init__``, which checks type and range of every
field and brings numbers to one form, so that equal recipes have equal fingerprints.
"""

import difflib
import hashlib
import json
from typing import Any, Final, Literal, Self, get_args

import msgspec
from msgspec.structs import force_setattr

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.packing import DEFAULT_PACKING, Packing
from feeder.plan.recipe_checks import (
    check_choice,
    check_colour,
    check_factors,
    check_hue,
    check_integer,
    check_interval,
    check_probability,
)

Split = Literal["train", "val"]
Crop = Literal["random-resized", "centre"]
Interpolation = Literal["bilinear", "bicubic", "box", "bilinear-no-antialias"]
AutoAugment = Literal["none", "rand-augment", "trivial-augment-wide"]

MAX_BATCH_SIZE: Final = 65_536
MIN_IMAGE_SIZE: Final = 8
MAX_IMAGE_SIZE: Final = 2_048  # the most that resize_pack makes (native/resize.c)
MAX_RESIZE_SIZE: Final = 8_192
MIN_SCALE: Final = 1e-6
MIN_RATIO: Final = 0.01
MAX_RATIO: Final = 100.0
MAX_RAND_AUGMENT_OPS: Final = 16
MAGNITUDE_BINS: Final = 31  # torchvision's default, and the only number of bins here
MEAN_COLOUR: Final = (124, 116, 104)  # ImageNet's mean, which normalises to 0 within 0.01
_FINGERPRINT_VERSION: Final = 1  # raise it when the same fields come to mean other bytes


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to each sample and how samples make batches.

    split: the name of the use, for people and counters; it decides the defaults of ``for_split``.
    batch_size: rows of a batch, which one rank takes in one step.
    order_batch_size: the batch size that decides the epoch's order; 0 stands for batch_size, and is
        made that. A job that goes on with another batch size keeps the order by keeping this.
    image_size: side of the square output, pixels.
    crop: "random-resized" is torchvision's RandomResizedCrop(image_size, scale, ratio); "centre" is
        its Resize(resize_size) followed by CenterCrop(image_size).
    scale: least and greatest area of the crop over the image's area.
    ratio: least and greatest width over height of the crop.
    resize_size: short side that centre resizes to, pixels; at least image_size when crop is centre.
    flip_probability: of mirroring left and right.
    partial_decode: decode only the tiles that the crop touches. False decodes whole images, to the
        same batches in more time: it is there to measure what partial decoding saves.
    dct_scaling: let the decoder shrink by 2, 4 or 8 where the crop is large enough.
    shuffle: permute the epoch; without it the packed order, lanes taking turns.
    last_batch: drop or pad what does not fill a batch.
    packing: int8-hwc-rgb is (value - 128) as int8, rows, columns, channels red, green, blue; the
        others are in ``feeder.plan.packing``.
    interpolation: how the crop is resized; "bilinear", "bicubic" and "box" are Pillow's, which
        average over what they shrink; "bilinear-no-antialias" takes the two nearest pixels each
        way, as TensorFlow's and torch's resizing of tensors did, and wants dct_scaling off.
    auto_augment: torchvision's RandAugment(rand_augment_ops, rand_augment_magnitude) or
        TrivialAugmentWide, both with its 31 bins, nearest pixels and black outside of the image.
    rand_augment_ops, rand_augment_magnitude: of "rand-augment" only.
    brightness, contrast, saturation, hue: torchvision's ColorJitter. A number b means factors
        (1 - b, 1 + b), a pair those factors; hue h means (-h, h) turns of the colour circle.
    greyscale_probability: of showing the image in grey: torchvision's RandomGrayscale.
    erasing_probability: of torchvision's RandomErasing.
    erasing_scale, erasing_ratio: area over the output's area, and height over width, of the erased
        box.
    erasing_value: levels of red, green and blue that the erased box gets, ImageNet's mean unless
        said otherwise; "noise" is normal noise about it.

    Done in the order resize, mirror, auto_augment, jitter, greyscale, erase. Each draws its random
    numbers from a stream of its own, so that one turned on leaves all others as they were.
    """

    split: Split
    batch_size: int
    order_batch_size: int = 0
    image_size: int = 224
    crop: Crop
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resize_size: int = 256
    flip_probability: float = 0.5
    partial_decode: bool = True
    dct_scaling: bool
    shuffle: bool
    last_batch: LastBatch
    packing: Packing = DEFAULT_PACKING
    interpolation: Interpolation = "bilinear"
    auto_augment: AutoAugment = "none"
    rand_augment_ops: int = 2
    rand_augment_magnitude: int = 9
    brightness: tuple[float, float] = (1.0, 1.0)
    contrast: tuple[float, float] = (1.0, 1.0)
    saturation: tuple[float, float] = (1.0, 1.0)
    hue: tuple[float, float] = (0.0, 0.0)
    greyscale_probability: float = 0.0
    erasing_probability: float = 0.0
    erasing_scale: tuple[float, float] = (0.02, 0.33)
    erasing_ratio: tuple[float, float] = (0.3, 3.3)
    erasing_value: tuple[int, int, int] | Literal["noise"] = MEAN_COLOUR

    @classmethod
    def for_split(cls, split: Split, *, batch_size: int, **overrides: object) -> Self:
        """Return the usual recipe of a split, changed by ``overrides`` (named as the fields).

        train: random-resized crops, flips, scaled decoding (where the interpolation averages),
        shuffled, last batch dropped.
        val: centre crops, no flips, no scaled decoding, in order, last batch padded.
        ConfigError names what is wrong.
        """
        fields: dict[str, Any] = {"split": split, "batch_size": batch_size}
        if split == "val":
            fields |= {"crop": "centre", "flip_probability": 0.0, "dct_scaling": False}
            fields |= {"shuffle": False, "last_batch": LastBatch.PAD}
        else:
            averages = overrides.get("interpolation") != "bilinear-no-antialias"
            fields |= {"crop": "random-resized", "dct_scaling": averages}
            fields |= {"shuffle": True, "last_batch": LastBatch.DROP}
        for name, value in overrides.items():
            if name not in cls.__struct_fields__:
                nearest = difflib.get_close_matches(name, cls.__struct_fields__, n=1, cutoff=0.0)
                raise ConfigError(f"recipe: there is no field {name!r}; nearest is {nearest[0]!r}")
            fields[name] = value
        return cls(**fields)

    def __post_init__(self) -> None:
        """Check every field and bring it to its one form; ConfigError names field, value, range."""
        check_choice("split", self.split, get_args(Split))
        check_choice("crop", self.crop, get_args(Crop))
        check_choice("packing", self.packing, get_args(Packing))
        check_choice("last_batch", self.last_batch, [str(choice) for choice in LastBatch])
        check_choice("partial_decode", self.partial_decode, (True, False))
        check_choice("dct_scaling", self.dct_scaling, (True, False))
        check_choice("shuffle", self.shuffle, (True, False))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        check_choice("auto_augment", self.auto_augment, get_args(AutoAugment))
        checked: dict[str, object] = {
            "last_batch": LastBatch(self.last_batch),
            "batch_size": check_integer("batch_size", self.batch_size, 1, MAX_BATCH_SIZE),
            "image_size": check_integer(
                "image_size", self.image_size, MIN_IMAGE_SIZE, MAX_IMAGE_SIZE
            ),
            "resize_size": check_integer(
                "resize_size", self.resize_size, MIN_IMAGE_SIZE, MAX_RESIZE_SIZE
            ),
            "flip_probability": check_probability("flip_probability", self.flip_probability),
            "scale": check_interval("scale", self.scale, MIN_SCALE, 1.0),
            "ratio": check_interval("ratio", self.ratio, MIN_RATIO, MAX_RATIO),
            **self._check_augmentations(),
        }
        order_batch_size = check_integer(
            "order_batch_size", self.order_batch_size, 0, MAX_BATCH_SIZE
        )
        checked["order_batch_size"] = order_batch_size or checked["batch_size"]
        if self.crop == "centre" and self.resize_size < self.image_size:
            raise ConfigError(
                f"recipe: resize_size must be a whole number {self.image_size} .. "
                f"{MAX_RESIZE_SIZE} for a centre crop of image_size {self.image_size}, "
                f"got {self.resize_size}"
            )
        if self.dct_scaling and self.interpolation == "bilinear-no-antialias":
            raise ConfigError(
                "recipe: dct_scaling must be false for interpolation bilinear-no-antialias, got "
                "True: the scaled decoder averages, as this interpolation is asked not to"
            )
        for name, value in checked.items():
            force_setattr(self, name, value)

    def _check_augmentations(self) -> dict[str, object]:
        erasing_value: object = self.erasing_value
        if erasing_value != "noise":
            erasing_value = check_colour("erasing_value", erasing_value)
        return {
            "rand_augment_ops": check_integer(
                "rand_augment_ops", self.rand_augment_ops, 1, MAX_RAND_AUGMENT_OPS
            ),
            "rand_augment_magnitude": check_integer(
                "rand_augment_magnitude", self.rand_augment_magnitude, 0, MAGNITUDE_BINS - 1
            ),
            "brightness": check_factors("brightness", self.brightness),
            "contrast": check_factors("contrast", self.contrast),
            "saturation": check_factors("saturation", self.saturation),
            "hue": check_hue("hue", self.hue),
            "greyscale_probability": check_probability(
                "greyscale_probability", self.greyscale_probability
            ),
            "erasing_probability": check_probability(
                "erasing_probability", self.erasing_probability
            ),
            "erasing_scale": check_interval("erasing_scale", self.erasing_scale, 0.0, 1.0),
            "erasing_ratio": check_interval(
                "erasing_ratio", self.erasing_ratio, MIN_RATIO, MAX_RATIO
            ),
            "erasing_value": erasing_value,
        }

    def plan_epoch(self, layout: ShardLayout, *, seed: int, epoch: int) -> EpochPlan:
        """Return the batches of an epoch of a dataset; ConfigError as ``EpochPlan`` raises it."""
        return EpochPlan(
            layout,
            batch_size=self.batch_size,
            seed=seed,
            epoch=epoch,
            shuffle=self.shuffle,
            last_batch=self.last_batch,
            order_batch_size=self.order_batch_size,
        )

    def fingerprint(self) -> str:
        """Return 32 hex digits that are equal exactly for equal recipes, on any machine."""
        fields = {"version": _FINGERPRINT_VERSION, **msgspec.structs.asdict(self)}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def parse_field(text: str) -> tuple[str, object]:
    """Return name and value of ``NAME=VALUE``; the value is JSON, or else the text as it stands."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"recipe: {text!r} is not NAME=VALUE, as in brightness=0.4")
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):  # no JSON, or a number or a nesting beyond Python's limits
        return name.strip(), value.strip()
