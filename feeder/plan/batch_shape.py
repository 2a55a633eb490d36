"""The shape of a batch at an epoch: the crops of a sample, and what changes by epoch.

    crops   groups of (count, size, scale, ratio, …); a batch has an array for each group
    phases  image size, crop scale and RandAugment's magnitude from an epoch on

A field given by epoch, ``image_size={"0": 128, "30": 160}``, becomes its value at epoch 0 and a
phase for each later epoch. Invariant: what the checks return is canonical, so that recipes with
equal meaning are equal: a schedule that never changes leaves no phase.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from feeder.errors import ConfigError
from feeder.plan.epoch import MAX_EPOCH
from feeder.plan.recipe_checks import (
    check_integer,
    check_interval,
    check_probability,
    hint_at_nearest,
    show,
)

Interval = tuple[float, float]

MIN_IMAGE_SIZE: Final = 8
MAX_IMAGE_SIZE: Final = 2_048  # the limit of resize_pack (native/resize.c)
MIN_SCALE: Final = 1e-6
MIN_RATIO: Final = 0.01
MAX_RATIO: Final = 100.0
MAGNITUDE_BINS: Final = 31  # torchvision's default, and the only number of bins here
MAX_CROPS: Final = 32  # of a sample: each is a frame of its own in a chunk
MAX_CROP_PIXELS: Final = 2 * MAX_IMAGE_SIZE**2  # of a sample, which one worker makes at a time
MAX_PHASES: Final = 64

IMAGE_SIZES: Final = (MIN_IMAGE_SIZE, MAX_IMAGE_SIZE)
SCALES: Final = (MIN_SCALE, 1.0)
RATIOS: Final = (MIN_RATIO, MAX_RATIO)
MAGNITUDES: Final = (0, MAGNITUDE_BINS - 1)

SCHEDULED: Final = ("image_size", "scale", "rand_augment_magnitude")
"""The fields of a recipe that may be given by epoch."""


class CropGroup(NamedTuple):
    """``count`` crops of each sample, ``size`` pixels wide and high.

    What is None is the recipe's; a checked group has a scale and a ratio of its own. The views of
    DINO differ in how often they are blurred and solarised.
    """

    count: int  # type: ignore[assignment]  # it hides tuple.count
    size: int
    scale: Interval | None = None
    ratio: Interval | None = None
    blur_probability: float | None = None
    solarise_probability: float | None = None


class Phase(NamedTuple):
    """What holds from ``epoch`` on; None is what held before, and is filled in by the check."""

    epoch: int
    image_size: int | None = None
    scale: Interval | None = None
    rand_augment_magnitude: int | None = None

    @property
    def values(self) -> tuple[int | None, Interval | None, int | None]:
        """The values of SCHEDULED."""
        return self[1:]


def check_crops(value: object, scale: Interval, ratio: Interval) -> tuple[CropGroup, ...]:
    """Return the groups; each is a table or a list of the fields of CropGroup, in order."""
    if not isinstance(value, tuple | list):
        raise ConfigError(
            "recipe: crops must be a list of groups, as [{count = 2, size = 224}, {count = 6, "
            f"size = 96}}], got {show(value)}"
        )
    groups = tuple(
        _check_group(f"crops[{number}]", group, scale, ratio) for number, group in enumerate(value)
    )
    crops = sum(group.count for group in groups)
    if crops > MAX_CROPS:
        raise ConfigError(f"recipe: crops must be at most {MAX_CROPS} a sample, got {crops}")
    pixels = sum(group.count * group.size**2 for group in groups)
    if pixels > MAX_CROP_PIXELS:
        raise ConfigError(
            f"recipe: crops must have at most {MAX_CROP_PIXELS:,} pixels a sample, got {pixels:,}: "
            "make fewer or smaller ones"
        )
    return groups


def _check_group(name: str, value: object, scale: Interval, ratio: Interval) -> CropGroup:
    fields = _fields_of(name, value, CropGroup, "{count = 2, size = 224, scale = [0.4, 1.0]}")
    for needed in ("count", "size"):
        if needed not in fields:
            raise ConfigError(f"recipe: {name} has no {needed}: write {{count = …, size = …}}")
    scale, ratio = (
        default if fields.get(key) is None else fields[key]
        for key, default in (("scale", scale), ("ratio", ratio))
    )
    return CropGroup(
        check_integer(f"{name}.count", fields["count"], 1, MAX_CROPS),
        check_integer(f"{name}.size", fields["size"], *IMAGE_SIZES),
        check_interval(f"{name}.scale", scale, *SCALES),
        check_interval(f"{name}.ratio", ratio, *RATIOS),
        *(
            None if fields.get(key) is None else check_probability(f"{name}.{key}", fields[key])
            for key in ("blur_probability", "solarise_probability")
        ),
    )


def _fields_of(name: str, value: object, kind: Any, example: str) -> dict[str, Any]:
    """The fields of a table, or of a list in the order of a NamedTuple's fields."""
    known: Sequence[str] = kind._fields
    if isinstance(value, tuple | list) and len(value) <= len(known):
        return dict(zip(known, value, strict=False))
    if not isinstance(value, Mapping):
        raise ConfigError(f"recipe: {name} must be a table such as {example}, got {show(value)}")
    for field in value:
        if field not in known:
            hint = hint_at_nearest(str(field), known, f"; it has {', '.join(known)}")
            raise ConfigError(f"recipe: {name} has no field {show(field)}{hint}")
    return dict(value)


CROPS_BY_EPOCH: Final = (
    "recipe: image_size and scale by epoch do not go with crops, whose groups have their own: "
    "leave out one of the two"
)


def unfold_schedules(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's fields with those given by epoch as values of epoch 0 and ``phases``."""
    schedules = {
        name: _check_schedule(name, fields[name])
        for name in SCHEDULED
        if isinstance(fields.get(name), Mapping)
    }
    if not schedules:
        return dict(fields)
    if fields.get("crops") and not schedules.keys().isdisjoint(("image_size", "scale")):
        raise ConfigError(CROPS_BY_EPOCH)
    if fields.get("phases"):
        raise ConfigError(
            f"recipe: give either phases or {' and '.join(schedules)} by epoch, not both"
        )
    epochs = sorted({epoch for schedule in schedules.values() for epoch in schedule if epoch})
    phases = [
        {"epoch": epoch} | {name: by[epoch] for name, by in schedules.items() if epoch in by}
        for epoch in epochs
    ]
    return {**fields, **{name: by[0] for name, by in schedules.items()}, "phases": phases}


def _check_schedule(name: str, schedule: Mapping[object, Any]) -> dict[int, Any]:
    """Return values by epoch, of keys that are whole numbers or, as in JSON and TOML, texts."""
    values: dict[int, Any] = {}
    for key, value in schedule.items():
        epoch = key
        if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20:
            epoch = int(key)
        if type(epoch) is not int or not 0 <= epoch <= MAX_EPOCH:
            raise ConfigError(
                f"recipe: {name} by epoch has the key {show(key)}: keys are epochs, whole numbers "
                f"0 .. {MAX_EPOCH}"
            )
        if epoch in values:
            raise ConfigError(f"recipe: {name} by epoch has epoch {epoch} twice: leave one out")
        if value is None:
            raise ConfigError(f"recipe: {name} by epoch has no value at epoch {epoch}")
        values[epoch] = value
    if 0 not in values:
        first = f"begins at epoch {min(values)}" if values else "is empty"
        raise ConfigError(f'recipe: {name} by epoch {first}: give its value from epoch "0" on, too')
    return values


def check_phases(value: object, initial: Phase) -> tuple[Phase, ...]:
    """Return the phases after the ``initial`` one, each with all its values; the epochs rise."""
    if not isinstance(value, tuple | list):
        raise ConfigError(f"recipe: phases must be a list of tables, got {show(value)}")
    if len(value) >= MAX_PHASES:
        raise ConfigError(
            f"recipe: fields by epoch may change at {MAX_PHASES - 1} epochs, got {len(value)}"
        )
    phases = [initial]
    for number, row in enumerate(value):
        fields = _fields_of(f"phases[{number}]", row, Phase, "{epoch = 30, image_size = 160}")
        before = phases[-1]
        epoch = check_integer("the epoch of a phase", fields.get("epoch"), 1, MAX_EPOCH)
        if epoch <= before.epoch:
            raise ConfigError(
                f"recipe: the epochs of phases must rise, got {epoch} after {before.epoch}"
            )
        size, scale, magnitude = (
            old if (new := fields.get(name)) is None else new
            for name, old in zip(SCHEDULED, before.values, strict=True)
        )
        at = f"from epoch {epoch} on"
        phase = Phase(
            epoch,
            check_integer(f"image_size {at}", size, *IMAGE_SIZES),
            check_interval(f"scale {at}", scale, *SCALES),
            check_integer(f"rand_augment_magnitude {at}", magnitude, *MAGNITUDES),
        )
        if phase.values != before.values:
            phases.append(phase)
    return tuple(phases[1:])
