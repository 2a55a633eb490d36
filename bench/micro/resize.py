"""Resizing alone: every version of ``resize_pack`` that this CPU runs, and Pillow with numpy.

All have the crops of the training recipe (RandomResizedCrop(0.08–1) to 224 px, flips, pictures at
half size or less for large crops) of pictures in common ImageNet sizes. The picture is in the same
buffer for each crop, as the decoder's output is, so it is read from the cache.
"""

import argparse
from functools import partial
from time import process_time

import numpy as np

from feeder.jpeg.resize import SLACK_BYTES, VERSIONS, resize_pack, resize_pack_reference
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe

from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report
from ..rounds import Contender, run_rounds, warm_up
from .decode import CHUNK_IMAGES, compare_rates

_SIZES = ((500, 375), (500, 333), (375, 500), (333, 500), (500, 400), (640, 480), (300, 250))


def measure_resize(*, crops: int, rounds: int, core: int) -> Report:
    """Time ``crops`` crops, in each of ``rounds`` rounds."""
    machine = describe_machine({"all contenders": core}, decoder=None)
    recipe = Recipe.for_split("train", batch_size=crops)
    sizes = np.array(_SIZES)[np.arange(crops) % len(_SIZES)]
    plan = plan_crops(
        recipe,
        seed=0,
        epoch=0,
        sample_ids=np.arange(crops),
        widths=sizes[:, 0],
        heights=sizes[:, 1],
    )
    starts = plan.boxes[:, :2] / plan.scales[:, None]
    boxes = np.hstack([starts, starts + plan.boxes[:, 2:] / plan.scales[:, None]]).tolist()
    sides = (-(-sizes // plan.scales[:, None])).tolist()
    flips = plan.flips.tolist()
    picture = np.random.Generator(np.random.Philox(0)).integers(
        0, 256, 4 * int(sizes.prod(axis=1).max()) + SLACK_BYTES, np.uint8
    )
    out = np.empty((recipe.image_size, recipe.image_size, 3), np.int8)

    def resize_with(version: str, first: int, end: int) -> None:
        for (width, height), box, flip in zip(
            sides[first:end], boxes[first:end], flips[first:end], strict=True
        ):
            resize_pack(
                picture, 4 * width, width, height, box, mirrored=flip, out=out, version=version
            )

    def resize_with_pillow(first: int, end: int) -> None:
        for (width, height), box, flip in zip(
            sides[first:end], boxes[first:end], flips[first:end], strict=True
        ):
            resize_pack_reference(picture, 4 * width, width, height, box, mirrored=flip, out=out)

    contenders: dict[str, Contender] = {"resize/pillow": resize_with_pillow}
    contenders |= {f"resize/{version}": partial(resize_with, version) for version in VERSIONS}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    with pinned_to(frozenset({core})):
        warm_up(contenders, items=crops, piece=CHUNK_IMAGES)
        for seconds in run_rounds(
            contenders, items=crops, piece=CHUNK_IMAGES, rounds=rounds, clock=process_time
        ):
            for name, taken_s in seconds.items():
                rates[name].append(crops / taken_s)
    others = tuple(name for name in contenders if name != "resize/pillow")
    return Report(
        bench="resize", machine=machine, results=compare_rates(rates, "resize/pillow", others)
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measure as the command line asks."""
    return measure_resize(
        crops=arguments.crops, rounds=arguments.rounds, core=choose_core(arguments.core)
    )
