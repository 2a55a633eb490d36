"""The recipe: all that shapes a batch's bytes, apart from the dataset, the seed and the position.

Invariant: every ``Recipe`` is valid. Each way to make one (the constructor, ``for_split``, decoding
it from the wire) runs ``__post_init__``, which checks type and range of every field and normalises
numbers, so that equal recipes have equal fingerprints.
"""

import hashlib
import json
from typing import Any, Final, Literal, Self, get_args

import msgspec
from msgspec.structs import force_setattr

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import LANES_LIMIT
from feeder.plan.packing import DEFAULT_PACKING, Packing
from feeder.plan.recipe_checks import (
    check_choice,
    check_colour,
    check_factors,
    check_hue,
    check_integer,
    check_interval,
    check_probability,
    check_working_set,
    hint_at_nearest,
)

Split = Literal["train", "val"]
Crop = Literal["random-resized", "centre"]
Interpolation = Literal["bilinear", "bicubic", "box", "bilinear-no-antialias"]
AutoAugment = Literal["none", "rand-augment", "trivial-augment-wide", "auto-augment", "augmix"]

MAX_BATCH_SIZE: Final = 65_536
MIN_IMAGE_SIZE: Final = 8
MAX_IMAGE_SIZE: Final = 2_048  # the limit of resize_pack (native/resize.c)
MAX_RESIZE_SIZE: Final = 8_192
MIN_SCALE: Final = 1e-6
MIN_RATIO: Final = 0.01
MAX_RATIO: Final = 100.0
MAX_RAND_AUGMENT_OPS: Final = 16
MAGNITUDE_BINS: Final = 31  # torchvision's default, and the only number of bins here
MAX_AUGMIX: Final = 10  # torchvision's of the severity; for the others, more only costs time
MIN_SIGMA: Final = 0.01  # of a blur, pixels; any lower changes nothing, either
MAX_SIGMA: Final = 100.0
MAX_KERNEL_SIZE: Final = 255
MEAN_COLOUR: Final = (124, 116, 104)  # ImageNet's mean, which normalises to 0 within 0.01
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "split": get_args(Split),
    "crop": get_args(Crop),
    "packing": get_args(Packing),
    "last_batch": tuple(map(str, LastBatch)),
    "partial_decode": (True, False),
    "dct_scaling": (True, False),
    "shuffle": (True, False),
    "interpolation": get_args(Interpolation),
    "auto_augment": get_args(AutoAugment),
}
_RANGES: Final[dict[str, tuple[Any, ...]]] = {  # the check of each number, and its limits
    "batch_size": (check_integer, 1, MAX_BATCH_SIZE),
    "image_size": (check_integer, MIN_IMAGE_SIZE, MAX_IMAGE_SIZE),
    "resize_size": (check_integer, MIN_IMAGE_SIZE, MAX_RESIZE_SIZE),
    "flip_probability": (check_probability,),
    "scale": (check_interval, MIN_SCALE, 1.0),
    "ratio": (check_interval, MIN_RATIO, MAX_RATIO),
    "rand_augment_ops": (check_integer, 1, MAX_RAND_AUGMENT_OPS),
    "rand_augment_magnitude": (check_integer, 0, MAGNITUDE_BINS - 1),
    "brightness": (check_factors,),
    "contrast": (check_factors,),
    "saturation": (check_factors,),
    "hue": (check_hue,),
    "greyscale_probability": (check_probability,),
    "erasing_probability": (check_probability,),
    "erasing_scale": (check_interval, 0.0, 1.0),
    "erasing_ratio": (check_interval, MIN_RATIO, MAX_RATIO),
    "order_batch_size": (check_integer, 0, MAX_BATCH_SIZE),
    "lanes": (check_integer, 0, LANES_LIMIT),
    "working_set": (check_working_set,),
    "augmix_severity": (check_integer, 1, MAX_AUGMIX),
    "augmix_width": (check_integer, 1, MAX_AUGMIX),
    "augmix_depth": (check_integer, 0, MAX_AUGMIX),
    "augmix_alpha": (check_integer, 1, MAX_AUGMIX),
    "jitter_probability": (check_probability,),
    "vertical_flip_probability": (check_probability,),
    "blur_probability": (check_probability,),
    "blur_sigma": (check_interval, MIN_SIGMA, MAX_SIGMA),
    "blur_kernel_size": (check_integer, 0, MAX_KERNEL_SIZE),
    "solarise_probability": (check_probability,),
    "solarise_threshold": (check_integer, 0, 255),
}
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_FINGERPRINT_VERSION: Final = 2  # raise it when the same fields give other bytes than before


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How each sample is transformed and how samples form batches.

    split: a label for messages and counters; ``for_split`` chooses its defaults by it.
    batch_size: rows of a batch, which one rank takes in one step.
    order_batch_size: the batch size that decides the epoch's order; 0 is replaced by batch_size. A
        job that resumes with another batch size keeps the order by keeping this.
    lanes: parts of the dataset that take turns in giving batches, the unit of what a feeder caches;
        0 leaves the number to the dataset's size and order_batch_size. It changes the order only.
    working_set: bytes of the dataset that shuffled batches are drawn from at a time, over all hosts
        together; 0 means 16 GiB, and 256 MiB a lane where more than 64 lanes are given. A dataset
        that is no larger is shuffled whole within its lanes. Two numbers are the samples and the
        samples a piece that bytes stood for, as in a loader's state. It changes the order only.
    image_size: side of the square output, pixels.
    crop: "random-resized" is torchvision's RandomResizedCrop(image_size, scale, ratio); "centre" is
        its Resize(resize_size) followed by CenterCrop(image_size).
    scale: least and greatest area of the crop over the image's area.
    ratio: least and greatest width over height of the crop.
    resize_size: short side that centre resizes to, pixels; at least image_size when crop is centre.
    flip_probability: of mirroring left and right.
    partial_decode: decode only the tiles that the crop touches. False decodes whole images, which
        gives the same batches in more time, to measure what partial decoding saves.
    dct_scaling: let the decoder shrink by 2, 4 or 8 where the crop is large enough.
    shuffle: permute the epoch; otherwise the packed order, with lanes taking turns.
    last_batch: drop or pad the last batch where it is not full.
    packing: int8-hwc-rgb is (value - 128) as int8, rows, columns, channels red, green, blue; the
        others are in ``feeder.plan.packing``.
    interpolation: how the crop is resized; "bilinear", "bicubic" and "box" are Pillow's, which
        average when they shrink; "bilinear-no-antialias" uses the two nearest pixels in each
        direction, as TensorFlow's and torch's resizing of tensors did, and needs dct_scaling off.
    auto_augment: torchvision's RandAugment(rand_augment_ops, rand_augment_magnitude) or
        TrivialAugmentWide, both with 31 bins; AutoAugment with the policy of ImageNet; or
        AugMix(augmix_severity, augmix_width, augmix_depth, augmix_alpha). All with nearest pixels
        and black outside the image.
    rand_augment_ops, rand_augment_magnitude: for "rand-augment" only.
    brightness, contrast, saturation, hue: torchvision's ColorJitter. A number b means factors
        (1 - b, 1 + b), a pair those factors; hue h means (-h, h) turns of the colour circle.
    greyscale_probability: of torchvision's RandomGrayscale.
    erasing_probability: of torchvision's RandomErasing.
    erasing_scale, erasing_ratio: area over the output's area, and height over width, of the erased
        box.
    erasing_value: levels of red, green and blue of the erased box, by default ImageNet's mean;
        "noise" is normal noise about that mean.
    augmix_severity, augmix_width, augmix_depth, augmix_alpha: for "augmix" only: how many of 10
        magnitudes are drawn from, the number of chains, the operations of each (0 draws 1 to 3 for
        each chain), and the parameter of the weights' distributions, a whole number here.
    jitter_probability: of torchvision's RandomApply around ColorJitter.
    vertical_flip_probability: of mirroring top and bottom.
    blur_probability: of torchvision's GaussianBlur(blur_kernel_size, blur_sigma).
    blur_sigma: least and greatest standard deviation, pixels of the output.
    blur_kernel_size: pixels, an odd number; 0 is SimCLR's, a tenth of image_size: 23 for 224.
    solarise_probability: of torchvision's RandomSolarize(solarise_threshold).

    The order is resize, mirror, vertical flip, auto_augment, jitter, greyscale, blur, solarise,
    erase: geometry and policies first, as in torchvision's references, then colours, blur and
    solarisation, as in DINO, and last the box, whose levels nothing may change. Each draws from a
    random stream of its own, so enabling one does not change the others.
    """

    split: Split
    batch_size: int
    order_batch_size: int = 0
    lanes: int = 0
    working_set: int | tuple[int, int] = 0
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
    augmix_severity: int = 3
    augmix_width: int = 3
    augmix_depth: int = 0
    augmix_alpha: int = 1
    jitter_probability: float = 1.0
    vertical_flip_probability: float = 0.0
    blur_probability: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel_size: int = 0
    solarise_probability: float = 0.0
    solarise_threshold: int = 128

    @classmethod
    def for_split(cls, split: Split, *, batch_size: int, **overrides: object) -> Self:
        """Return the usual recipe of a split, with ``overrides`` of its fields.

        train: random-resized crops, flips, scaled decoding (where the interpolation averages),
        shuffled, last batch dropped.
        val: centre crops, no flips, no scaled decoding, in order, last batch padded.
        Raises ConfigError that names the field.
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
                raise ConfigError(f"recipe: there is no field {name!r}{_hint_at(name)}")
            fields[name] = value
        return cls(**fields)

    def __post_init__(self) -> None:
        """Check and normalise every field; ConfigError names field, value and range."""
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        force_setattr(self, "last_batch", LastBatch(self.last_batch))
        for name, (check, *limits) in _RANGES.items():
            force_setattr(self, name, check(name, getattr(self, name), *limits))
        if self.erasing_value != "noise":
            force_setattr(self, "erasing_value", check_colour("erasing_value", self.erasing_value))
        force_setattr(self, "order_batch_size", self.order_batch_size or self.batch_size)
        if self.crop == "centre" and self.resize_size < self.image_size:
            raise ConfigError(
                f"recipe: resize_size must be a whole number {self.image_size} .. "
                f"{MAX_RESIZE_SIZE} for a centre crop of image_size {self.image_size}, "
                f"got {self.resize_size}"
            )
        if self.dct_scaling and self.interpolation == "bilinear-no-antialias":
            raise ConfigError(
                "recipe: dct_scaling must be false for interpolation bilinear-no-antialias, got "
                "True: scaled decoding averages pixels, which this interpolation must not"
            )
        size = self.blur_kernel_size
        if size and (size % 2 == 0 or size >= 2 * self.image_size):
            raise ConfigError(
                f"recipe: blur_kernel_size must be an odd number below twice the image_size of "
                f"{self.image_size}, or 0 for a tenth of it, got {size}"
            )

    @property
    def blur_radius(self) -> int:
        """Pixels on each side of the centre of a blur's kernel."""
        return (self.blur_kernel_size or self.image_size // 10) // 2

    def plan_epoch(self, layout: ShardLayout, *, seed: int, epoch: int) -> EpochPlan:
        """Return the batches of an epoch of a dataset; raises what ``EpochPlan`` raises."""
        return EpochPlan(
            layout,
            batch_size=self.batch_size,
            seed=seed,
            epoch=epoch,
            shuffle=self.shuffle,
            last_batch=self.last_batch,
            order_batch_size=self.order_batch_size,
            lanes=self.lanes,
            working_set=self.working_set,
        )

    def fingerprint(self) -> str:
        """Return 32 hex digits, equal for equal recipes on any machine, else different.

        Fields at their defaults are no part of it, so a field that is new keeps it as it was.
        """
        fields = msgspec.structs.asdict(self)
        if self.order_batch_size == self.batch_size:
            del fields["order_batch_size"]
        for name, default in _DEFAULTS.items():
            if fields.get(name) == default:
                del fields[name]
        fields["version"] = _FINGERPRINT_VERSION
        return hashlib.blake2b(_CANONICAL.encode(fields).encode(), digest_size=16).hexdigest()

    def without_order(self) -> Self:
        """Return the recipe without what decides in which batch a sample is."""
        return msgspec.structs.replace(
            self, batch_size=1, order_batch_size=1, lanes=0, working_set=0
        )


_DEFAULTS: Final = {
    field.name: field.default
    for field in msgspec.structs.fields(Recipe)
    if field.default is not msgspec.NODEFAULT
}


def parse_field(text: str) -> tuple[str, object]:
    """Return name and value of ``NAME=VALUE``; a value that is not JSON is returned as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"recipe: {text!r} is not NAME=VALUE, as in brightness=0.4")
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):  # not JSON, or a number or nesting past Python's limits
        return name.strip(), value.strip()


def _hint_at(name: str) -> str:
    if name.startswith(("mixup", "cutmix")):
        return (
            ": samples are mixed on the device, by the training job (trainer_client.Mixing; "
            "--mixup and --cutmix of the reference job)"
        )
    fields = Recipe.__struct_fields__
    return hint_at_nearest(name, fields, f"; the fields are {', '.join(fields)}")
