"""Compares synthetic images with real ones in their cost to a decoder.

    feeder-bench likeness SRC

packs the real images in SRC and _TIMES as many synthetic ones, decodes both in turns on one core,
whole and by the tiles of random-resized crops (_TIMES for each real image), and reports rates,
bytes and sizes of both. Rates are by CPU time, so a machine in use is good enough. The constants of
``bench.data.synthetic_image`` were fitted with it.
"""

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np

from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import tune_allocator
from feeder.jpeg.recode import Subsampling
from feeder.plan.recipe import Recipe

from ..data.material import dataset_or_synthetic, pack
from ..fetcher import CHUNK_IMAGES
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, compare, single
from ..rounds import Contender, measure, rates
from .contenders import PreparedSamples

_TIMES: Final = 5  # synthetic images, and crops, for each real one: more reduce the noise


_Decode = Callable[[PreparedSamples, int, int], None]
_WAYS: Final[dict[str, _Decode]] = {
    "full": PreparedSamples.decode_full_libraries,
    "tiled": PreparedSamples.decode_tiled,
}


def run(arguments: argparse.Namespace) -> Report:
    core = choose_core(arguments.core)
    machine = describe_machine({"all contenders": core})
    tune_allocator()
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        real = stack.enter_context(Dataset.open(pack(arguments.dataset, folder / "real")))
        count = min(arguments.images, real.layout.samples)
        made = stack.enter_context(dataset_or_synthetic(None, images=count * _TIMES))
        synthetic = stack.enter_context(Dataset.open(made))
        stack.enter_context(pinned_to(core))

        def prepare(dataset: Dataset, images: int, epoch: int) -> PreparedSamples:
            order = np.random.default_rng(0).permutation(dataset.layout.samples)[:images]
            return stack.enter_context(PreparedSamples(dataset, recipe, order, epoch=epoch))

        real_epochs = [prepare(real, count, epoch) for epoch in range(_TIMES)]
        of_synthetic = prepare(synthetic, count * _TIMES, 0)

        def decode_real(decode: _Decode, first: int, end: int) -> None:
            for samples in real_epochs:
                decode(samples, first, end)

        def decode_synthetic(decode: _Decode, first: int, end: int) -> None:
            decode(of_synthetic, first * _TIMES, end * _TIMES)

        contenders: dict[str, Contender] = {}
        baselines: dict[str, str | None] = {}
        for way, decode in _WAYS.items():
            contenders[f"{way}/real"] = partial(decode_real, decode)
            contenders[f"{way}/synthetic"] = partial(decode_synthetic, decode)
            baselines |= {f"{way}/real": None, f"{way}/synthetic": f"{way}/real"}
        rounds = arguments.rounds
        taken = measure(
            contenders, rounds=rounds, items=count, piece=CHUNK_IMAGES, clock=process_time
        )
        results = compare(rates(taken, count * _TIMES), RATE, baselines)
        results += _describe("real", real, real_epochs[0])
        results += _describe("synthetic", synthetic, of_synthetic)
    return Report(bench="likeness", machine=machine, results=results)


def _describe(kind: str, dataset: Dataset, samples: PreparedSamples) -> list[Result]:
    sizes_bytes = np.array([len(jpeg) for jpeg in samples.jpegs])
    pixels = samples.widths * samples.heights
    rows = [
        ("source", "bytes/image", dataset.manifest.source_bytes / dataset.manifest.samples),
        ("jpeg", "bytes/image", sizes_bytes.mean()),
        ("jpeg-spread", "bytes/image", sizes_bytes.std()),
        ("width", "px", samples.widths.mean()),
        ("height", "px", samples.heights.mean()),
        ("area", "pixels/image", pixels.mean()),
        ("density", "bytes/pixel", sizes_bytes.sum() / pixels.sum()),
    ]
    kinds = {"444": Subsampling.S444, "420": Subsampling.S420, "grey": Subsampling.GREY}
    for name, subsampling in kinds.items():
        rows.append((name, "%", 100 * np.mean(samples.subsamplings == subsampling)))
    return [single(f"{name}/{kind}", unit, float(value)) for name, unit, value in rows]
