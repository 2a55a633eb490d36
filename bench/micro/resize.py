"""Resizing alone: every version of ``resize_pack`` that this CPU runs, and Pillow with numpy.

All have the crops of the training recipe (RandomResizedCrop(0.08–1) to 224 px, flips, pictures at
half size or less for large crops) of pictures in common ImageNet sizes. The picture is in the same
buffer for each crop, as the decoder's output is, so it is read from the cache.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import process_time

import numpy as np

from feeder.jpeg.resize import SLACK_BYTES, VERSIONS, resize_pack, resize_pack_reference
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe

from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, compare
from ..rounds import Contender, measure, rates
from .contenders import CHUNK_IMAGES

_SIZES = ((500, 375), (500, 333), (375, 500), (333, 500), (500, 400), (640, 480), (300, 250))


def run(arguments: argparse.Namespace) -> Report:
    crops, core = arguments.crops, choose_core(arguments.core)
    machine = describe_machine({"all contenders": core}, decoder=None)
    with pinned_to(core):
        taken = measure(
            _contenders(crops),
            rounds=arguments.rounds,
            items=crops,
            piece=CHUNK_IMAGES,
            clock=process_time,
        )
    return Report(bench="resize", machine=machine, results=compare(rates(taken, crops), RATE))


def _contenders(crops: int) -> dict[str, Contender]:
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

    def resize_all(resize: Callable[..., object], first: int, end: int) -> None:
        rows = slice(first, end)
        for (width, height), box, flip in zip(sides[rows], boxes[rows], flips[rows], strict=True):
            resize(picture, 4 * width, width, height, box, mirrored=flip, out=out)

    contenders: dict[str, Contender] = {"resize/pillow": partial(resize_all, resize_pack_reference)}
    for version in VERSIONS:
        contenders[f"resize/{version}"] = partial(resize_all, partial(resize_pack, version=version))
    return contenders
