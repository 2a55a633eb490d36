"""Two kernels alone: resizing, and normalising on a CPU.

All that resize have the crops of the training recipe (RandomResizedCrop(0.08–1) to 224 px, flips,
pictures at half size or less for large crops) of pictures in common ImageNet sizes. The picture is
in the same buffer for each crop, as the decoder's output is, so it is read from the cache.

Normalising is compared with copying as many bytes as it writes. Each version of the client's C part
and numpy's form write to memory that has its pages. Where torch is installed, ``tensor`` is what a
loader does for a batch, into the memory of an earlier result.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.resize import SLACK_BYTES, VERSIONS, resize_pack, resize_pack_reference
from feeder.plan.crop import plan_crops
from feeder.plan.packing import DEFAULT_PACKING
from feeder.plan.recipe import Recipe
from trainer_client import _host_normalise
from trainer_client._host_normalise import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    VALUE_TYPES,
    HostNormaliser,
    ValueType,
    make_scaling,
)

from ..fetcher import CHUNK_IMAGES
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, compare
from ..rounds import Contender, measure, rates

_SIZES: Final = (
    *((500, 375), (500, 333), (375, 500), (333, 500)),
    *((500, 400), (640, 480), (300, 250)),
)
_SIZE_PX: Final = 224


def run_resize(arguments: argparse.Namespace) -> Report:
    crops, core = arguments.crops, choose_core(arguments.core)
    machine = describe_machine({"all contenders": core}, decoder=None)
    with pinned_to(core):
        taken = measure(
            _resizers(crops),
            rounds=arguments.rounds,
            items=crops,
            piece=CHUNK_IMAGES,
            clock=process_time,
        )
    return Report(bench="resize", machine=machine, results=compare(rates(taken, crops), RATE))


def _resizers(crops: int) -> dict[str, Contender]:
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


def run_normalise(arguments: argparse.Namespace) -> Report:
    core = choose_core(arguments.core)
    machine = describe_machine({"all contenders": core}, decoder=None)
    shape = (arguments.images, _SIZE_PX, _SIZE_PX, 3)
    pixels = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    results: list[Result] = []
    with pinned_to(core):
        for value_type in VALUE_TYPES:
            for channels in (4, 3):
                ways = _normalisers(pixels, value_type, channels)
                contenders: dict[str, Contender] = {
                    f"normalise/{name}-{value_type}-{channels}": partial(_once, work)
                    for name, work in ways.items()
                }
                taken = measure(contenders, rounds=arguments.rounds, clock=process_time, verb=None)
                times_ms = {name: [1000 * value for value in row] for name, row in taken.items()}
                results += compare(times_ms, "ms")
    return Report(bench="normalise", machine=machine, results=results)


def _once(work: Callable[[], object], first: int, end: int) -> None:
    work()


def _normalisers(
    pixels: NDArray[np.int8], value_type: ValueType, channels: int
) -> dict[str, Callable[[], object]]:
    """Return the copy, which is the baseline, and the ways to normalise to a type of value."""
    scaling = make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=channels, value_type=value_type)
    out, copied = (HostNormaliser(scaling, DEFAULT_PACKING)(pixels) for _ in range(2))
    copied.fill(1)
    ways: dict[str, Callable[[], object]] = {"copy": partial(np.copyto, out, copied)}
    for version in _host_normalise.VERSIONS:
        normaliser = HostNormaliser(scaling, DEFAULT_PACKING, version=version)
        ways[version] = partial(normaliser, pixels, out)
    if find_spec("torch") is not None:
        import torch  # which takes seconds that no other bench needs

        from trainer_client._device import Normaliser

        cpu, dtype = torch.device("cpu"), getattr(torch, value_type)
        ways["tensor"] = partial(
            Normaliser(cpu, dtype, channels=channels), torch.from_numpy(pixels)
        )
    return ways
