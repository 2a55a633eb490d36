"""What ``feeder preview`` writes about samples: the crop, the operations, the recipe.

All of it comes from the plan, by (seed, epoch, sample), as the sample path has it; no pixel is
looked at. Texts are ASCII and degree signs, which all fonts of Pillow can draw.
"""

import json
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.cli.contact_sheet import Note
from feeder.plan.augment import Augmentation, Step, plan_augmentations
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.recipe import Recipe

LEGEND: Final = (
    "under each image: label; sample id and size of its crop in the original; "
    "what was done to the crop, in this order"
)
LEGEND_BOXES: Final = (
    "bright: the crop; under each image: label; sample id and size of its crop in the original "
    "(mirroring and augmentation are not shown)"
)
LEGEND_SERVED: Final = (
    "under each image: label; sample id; what was done to the crop, in this order "
    "(a feeder sends no sizes of originals, so those of the crops are missing)"
)

_FORMATS: Final = {
    "shear-x": "shear-x {:+.2f}",
    "shear-y": "shear-y {:+.2f}",
    "translate-x": "translate-x {:+.0f} px",
    "translate-y": "translate-y {:+.0f} px",
    "rotate": "rotate {:+.0f}°",
    "brightness": "brightness x {:.2f}",
    "saturation": "saturation x {:.2f}",
    "contrast": "contrast x {:.2f}",
    "sharpness": "sharpness x {:.2f}",
    "posterise": "posterise to {:.0f} bits",
    "solarise": "solarise from {:.0f}",
    "hue": "hue {:+.2f} turns",
}
"""By operation, the text of its amount; operations without one are absent."""

_IN_SENTENCE: Final = frozenset(
    {"split", "batch_size", "order_batch_size", "lanes", "image_size", "crop", "scale"}
    | {"ratio", "resize_size", "flip_probability", "interpolation"}
)
"""Fields that the title has, or that the recipe's line always states."""


def note_samples(
    recipe: Recipe,
    *,
    seed: int,
    epoch: int,
    sample_ids: NDArray[np.int64],
    widths: NDArray[np.integer] | None = None,
    heights: NDArray[np.integer] | None = None,
) -> list[Note]:
    """Return the notes of n samples, given their ids and the sizes of their originals, each (n,).

    Without the sizes, which a client does not know, the notes have no sizes of crops.
    """
    known = widths is not None and heights is not None
    ones = np.ones(len(sample_ids), np.int64)
    crops = plan_crops(
        recipe,
        seed=seed,
        epoch=epoch,
        sample_ids=sample_ids,
        # Whether a sample is mirrored does not depend on its size.
        widths=ones if widths is None else widths,
        heights=ones if heights is None else heights,
    )
    augmentations = plan_augmentations(recipe, seed=seed, epoch=epoch, sample_ids=sample_ids)
    return [
        Note(
            facts=(f"sample {sample_id}", *(_crop_facts(crops, row) if known else ())),
            is_mirrored=bool(crops.flips[row]),
            operations=_operations(augmentation),
        )
        for row, (sample_id, augmentation) in enumerate(
            zip(sample_ids.tolist(), augmentations, strict=True)
        )
    ]


def describe_recipe(recipe: Recipe) -> str:
    """Return the recipe as one line: crop and mirroring, then other fields that are not default.

    Those are as ``--recipe`` takes them.
    """
    if recipe.crop == "random-resized":
        crop = (
            f"random-resized crop of {_percent(recipe.scale[0])} to {_percent(recipe.scale[1])} of "
            f"the image, aspect {recipe.ratio[0]:.3g} to {recipe.ratio[1]:.3g}, "
            f"to {recipe.image_size} px"
        )
    else:
        crop = f"short side to {recipe.resize_size} px, centre crop of {recipe.image_size} px"
    mirrored = f"{_percent(recipe.flip_probability)} mirrored"
    default = Recipe.for_split(recipe.split, batch_size=recipe.batch_size)
    shown = {"rand_augment_ops", "rand_augment_magnitude"}
    if recipe.auto_augment != "rand-augment":
        shown = set()
    changed = [
        f"{name}={_value(value)}"
        for name, value in msgspec.structs.asdict(recipe).items()
        if name not in _IN_SENTENCE and (name in shown or value != getattr(default, name))
    ]
    return "recipe: " + ", ".join([crop, recipe.interpolation, mirrored, *changed])


def _crop_facts(crops: CropPlan, row: int) -> tuple[str, ...]:
    width, height = crops.boxes[row, 2:].tolist()
    size = f"crop {width:.0f} x {height:.0f} px"
    scale = int(crops.scales[row])
    return (size,) if scale == 1 else (size, f"decoded at 1/{scale}")


def _operations(augmentation: Augmentation) -> tuple[str, ...]:
    erasure = augmentation.erasure
    steps = [_describe_step(step) for step in augmentation.steps]
    if erasure is not None:
        steps.append(f"erase {erasure.width} x {erasure.height} px")
    return tuple(steps)


def _describe_step(step: Step) -> str:
    operation, amount = step
    return _FORMATS.get(operation, operation).format(amount)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
