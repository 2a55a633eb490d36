"""The recipe: all that shapes a batch's bytes, apart from the dataset, the seed and the position.

Invariant: every ``Recipe`` is valid. Each way to make one (the constructor, ``for_split``, decoding
it from the wire) runs ``__post_init__``, which checks type and range of every field and normalises
numbers, so that equal recipes have equal fingerprints.
"""

import hashlib
import json
from bisect import bisect_right
from functools import lru_cache
from typing import Any, Final, Literal, Self, get_args

import msgspec
from msgspec.structs import force_setattr

from feeder.errors import ConfigError
from feeder.plan.batch_shape import (
    CROPS_BY_EPOCH,
    IMAGE_SIZES,
    MAGNITUDES,
    MIN_IMAGE_SIZE,
    RATIOS,
    SCALES,
    SCHEDULED,
    CropGroup,
    Phase,
    check_crops,
    check_phases,
    unfold_schedules,
)
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
    show,
)

Split = Literal["train", "val"]
Crop = Literal["random-resized", "centre"]
Interpolation = Literal["bilinear", "bicubic", "box", "bilinear-no-antialias"]
AutoAugment = Literal["none", "rand-augment", "trivial-augment-wide", "auto-augment", "augmix"]

MAX_BATCH_SIZE: Final = 65_536
MAX_RESIZE_SIZE: Final = 8_192
MAX_RAND_AUGMENT_OPS: Final = 16
MAX_AUGMIX: Final = 10  # torchvision's of the severity; for the others, more only costs time
MIN_SIGMA: Final = 0.01  # of a blur, pixels; any lower changes nothing, either
MAX_SIGMA: Final = 100.0
MAX_KERNEL_SIZE: Final = 255
NEWER_AUTO_AUGMENTS: Final = ("auto-augment", "augmix")
NEWER_FIELDS: Final = (  # than protocol version 8; a new field goes here, too
    *("crops", "phases", "augmix_severity", "augmix_width", "augmix_depth", "augmix_alpha"),
    *("jitter_probability", "vertical_flip_probability", "solarise_probability"),
    *("solarise_threshold", "blur_probability", "blur_sigma", "blur_kernel_size"),
)
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
    "image_size": (check_integer, *IMAGE_SIZES),
    "resize_size": (check_integer, MIN_IMAGE_SIZE, MAX_RESIZE_SIZE),
    "flip_probability": (check_probability,),
    "scale": (check_interval, *SCALES),
    "ratio": (check_interval, *RATIOS),
    "rand_augment_ops": (check_integer, 1, MAX_RAND_AUGMENT_OPS),
    "rand_augment_magnitude": (check_integer, *MAGNITUDES),
    "brightness": (check_factors,),
    "contrast": (check_factors,),
    "saturation": (check_factors,),
    "hue": (check_hue,),
    "greyscale_probability": (check_probability,),
    "erasing_probability": (check_probability,),
    "erasing_scale": (check_interval, 0.0, 1.0),
    "erasing_ratio": (check_interval, *RATIOS),
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


class Recipe(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How each sample is transformed and how samples form batches.

    On the wire fields at their defaults are left out, so a feeder from before a field was added
    takes every recipe that does not use it.

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
    image_size: side of the square output, pixels. This, scale and rand_augment_magnitude may be
        given to ``for_split`` by epoch, as {"0": 128, "30": 160}: training then changes them at the
        start of these epochs. Here is the value of epoch 0; ``at(epoch)`` has that of an epoch.
    phases: what the values given by epoch become.
    crops: several crops of each sample, in groups: [{"count": 2, "size": 224, "scale": [0.4, 1]},
        {"count": 6, "size": 96, "scale": [0.05, 0.4]}]. Each crop has a box, mirroring and
        augmentations of its own. A batch's images are a tuple with an array for each group,
        (count, batch_size, …). A group without scale, ratio, blur_probability or
        solarise_probability has the recipe's; image_size is the first group's size. The first crop
        of the first group is that of a recipe with its size and scale and no crops. For training
        with random-resized crops only.
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
    phases: tuple[Phase, ...] = ()
    crop: Crop
    crops: tuple[CropGroup, ...] = ()
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
        return cls(**unfold_schedules(fields))

    def __post_init__(self) -> None:
        """Check and normalise every field; ConfigError names field, value and range."""
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        force_setattr(self, "last_batch", LastBatch(self.last_batch))
        for name, (check, *limits) in _RANGES.items():
            value, default = check(name, getattr(self, name), *limits), _DEFAULTS.get(name)
            # The default itself where they are equal: msgspec leaves out what is identical to it.
            force_setattr(self, name, default if value == default else value)
        if self.erasing_value != "noise":
            force_setattr(self, "erasing_value", check_colour("erasing_value", self.erasing_value))
        force_setattr(self, "order_batch_size", self.order_batch_size or self.batch_size)
        if self.crops != ():
            self._take_crops()
        initial = Phase(0, self.image_size, self.scale, self.rand_augment_magnitude)
        force_setattr(self, "phases", check_phases(self.phases, initial))
        sizes = [self.image_size, *(phase.image_size or 0 for phase in self.phases)]
        if self.phases:
            self._check_phases(sizes)
        if self.crop == "centre" and self.resize_size < max(sizes):
            raise ConfigError(
                f"recipe: resize_size must be a whole number {max(sizes)} .. "
                f"{MAX_RESIZE_SIZE} for a centre crop of image_size {max(sizes)}, "
                f"got {self.resize_size}"
            )
        if self.dct_scaling and self.interpolation == "bilinear-no-antialias":
            raise ConfigError(
                "recipe: dct_scaling must be false for interpolation bilinear-no-antialias, got "
                "True: scaled decoding averages pixels, which this interpolation must not"
            )
        size = self.blur_kernel_size
        smallest = min(filter(None, [*sizes, *(group.size for group in self.crops)]))
        if size and (size % 2 == 0 or size >= 2 * smallest):
            raise ConfigError(
                f"recipe: blur_kernel_size must be an odd number below twice the image_size of "
                f"{smallest}, or 0 for a tenth of it, got {size}"
            )

    @property
    def blur_radius(self) -> int:
        """Pixels on each side of the centre of a blur's kernel."""
        return (self.blur_kernel_size or self.image_size // 10) // 2

    def _take_crops(self) -> None:
        """Check the groups; image_size, scale and ratio become the first group's."""
        groups = check_crops(self.crops, self.scale, self.ratio)
        own = self.blur_probability, self.solarise_probability
        groups = tuple(
            CropGroup(
                *group[:4], *(None if a == b else a for a, b in zip(group[4:], own, strict=True))
            )
            for group in groups
        )
        force_setattr(self, "crops", groups)
        if not groups:
            return
        if self.split == "val":
            raise ConfigError(
                "recipe: crops are for training, an evaluation has one crop a sample: leave crops "
                "out of the recipe of split val"
            )
        if self.crop != "random-resized":
            raise ConfigError(f"recipe: crops need crop random-resized, got {self.crop}")
        for name, at in (("image_size", 1), ("scale", 2), ("ratio", 3)):
            mine = getattr(self, name)
            if mine not in (_DEFAULTS[name], *(group[at] for group in groups)):
                raise ConfigError(
                    f"recipe: {name} {show(mine)} is that of no group of crops: leave it out"
                )
            first = groups[0][at]
            force_setattr(self, name, _DEFAULTS[name] if first == _DEFAULTS[name] else first)

    def _check_phases(self, sizes: list[int]) -> None:
        if self.split == "val":
            raise ConfigError(
                f"recipe: {', '.join(SCHEDULED)} by epoch are for training, an evaluation has one "
                "size: give the recipe of split val plain values"
            )
        if self.crops and (
            len({*sizes}) > 1 or any(phase.scale != self.scale for phase in self.phases)
        ):
            raise ConfigError(CROPS_BY_EPOCH)

    # --- The shape of a batch -----------------------------------------------------------------

    def at(self, epoch: int) -> "Recipe":
        """Return the recipe in force at an epoch, which has no phases."""
        return _in_force(self, self.phase_at(epoch)) if self.phases else self

    def phase_at(self, epoch: int) -> int:
        """Return how many of the phases have begun at an epoch."""
        return bisect_right(self.phases, epoch, key=lambda phase: phase.epoch)

    def over_epochs(self) -> "list[Recipe]":
        """Return the recipes in force, in the order of the epochs."""
        return [self.at(epoch) for epoch in (0, *(phase.epoch for phase in self.phases))]

    @property
    def group_shapes(self) -> tuple[tuple[int, int], ...]:
        """Count and size of each array of images of a batch, of a recipe in force."""
        if not self.crops:
            return ((1, self.image_size),)
        return tuple((group.count, group.size) for group in self.crops)

    @property
    def crop_sizes(self) -> tuple[int, ...]:
        """The size of each crop of a sample, group after group, of a recipe in force."""
        return tuple(size for count, size in self.group_shapes for _ in range(count))

    def of_group(self, number: int) -> "Recipe":
        """Return the recipe with one crop that makes each crop of a group."""
        if not self.crops:
            return self
        _, size, scale, ratio, blur, solarise = self.crops[number]
        return msgspec.structs.replace(
            self,
            crops=(),
            image_size=size,
            scale=scale,
            ratio=ratio,
            blur_probability=self.blur_probability if blur is None else blur,
            solarise_probability=self.solarise_probability if solarise is None else solarise,
        )

    def of_crops(self) -> "list[Recipe]":
        """Return the recipe with one crop that makes each crop of a sample, in their order."""
        return [
            recipe
            for number, (count, _) in enumerate(self.group_shapes)
            for recipe in [self.of_group(number)] * count
        ]

    def plan_epoch(self, layout: ShardLayout, *, seed: int, epoch: int) -> EpochPlan:
        """Return the batches of an epoch of a dataset; raises what ``EpochPlan`` raises, and
        ConfigError for an evaluation by weights."""
        if self.split == "val" and layout.draws is not None:
            raise ConfigError(
                "recipe: split must be train for a selection with weights or a mix: to evaluate, "
                "serve one without them, which has every sample once"
            )
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

    @property
    def newer_fields(self) -> list[str]:
        """The fields in use that a feeder of protocol version 8 may not know, or not so."""
        newer = ["auto_augment"] * (self.auto_augment in NEWER_AUTO_AUGMENTS)
        return newer + [name for name in NEWER_FIELDS if getattr(self, name) != _DEFAULTS[name]]

    def without_order(self) -> Self:
        """Return the recipe without what decides in which batch a sample is."""
        return msgspec.structs.replace(
            self, batch_size=1, order_batch_size=1, lanes=0, working_set=0
        )


@lru_cache(256)
def _in_force(recipe: Recipe, phase: int) -> Recipe:
    values: dict[str, Any] = {}
    if phase:
        values = dict(zip(SCHEDULED, recipe.phases[phase - 1].values, strict=True))
    return msgspec.structs.replace(recipe, phases=(), **values)


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
        return name.strip(), json.loads(value, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):  # not JSON, or a number or nesting past Python's limits
        return name.strip(), value.strip()


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ConfigError(f"recipe: {json.dumps(fields)} has a key twice: leave one out")
    return fields


def _hint_at(name: str) -> str:
    if name.startswith(("mixup", "cutmix")):
        return (
            ": samples are mixed on the device, by the training job (trainer_client.Mixing; "
            "--mixup and --cutmix of the reference job)"
        )
    fields = Recipe.__struct_fields__
    return hint_at_nearest(name, fields, f"; the fields are {', '.join(fields)}")
