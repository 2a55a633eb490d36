"""Compares synthetic images with real ones in their cost to a decoder.

    feeder-bench likeness SRC

packs the real images in SRC and _TIMES as many synthetic ones, decodes both in turns on one core,
whole and by the tiles of random-resized crops (_TIMES for each real image), and reports rates,
bytes and sizes of both. Rates are by CPU time, so a machine in use is good enough. The constants of
``bench.data.synthetic_image`` were fitted with it.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np

from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import tune_allocator
from feeder.jpeg.recode import Subsampling
from feeder.plan.recipe import Recipe

from ..data.material import dataset_or_synthetic, pack
from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, single
from ..rounds import Contender, run_rounds, warm_up
from .contenders import PreparedSamples
from .decode import CHUNK_IMAGES, compare_rates

_TIMES: Final = 5
"""Synthetic images, and crops of a real image, for each real image: more reduce the noise."""


def measure_likeness(source: Path, *, images: int, rounds: int, core: int) -> Report:
    """Compare at most ``images`` images of the class folders in ``source`` with synthetic ones."""
    machine = describe_machine({"all contenders": core})
    tune_allocator()
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        real = stack.enter_context(Dataset.open(pack(source, folder / "real")))
        count = min(images, real.layout.samples)
        made = stack.enter_context(dataset_or_synthetic(None, images=count * _TIMES))
        synthetic = stack.enter_context(Dataset.open(made))
        stack.enter_context(pinned_to(frozenset({core})))

        def prepare(dataset: Dataset, images: int, epoch: int) -> PreparedSamples:
            order = np.random.default_rng(0).permutation(dataset.layout.samples)[:images]
            return stack.enter_context(PreparedSamples(dataset, recipe, order, epoch=epoch))

        of_real = [prepare(real, count, epoch) for epoch in range(_TIMES)]
        of_synthetic = prepare(synthetic, count * _TIMES, 0)
        results = _measure(of_real, of_synthetic, count, rounds)
        results += _describe("real", real, of_real[0])
        results += _describe("synthetic", synthetic, of_synthetic)
    return Report(bench="likeness", machine=machine, results=results)


def _measure(
    real: Sequence[PreparedSamples], synthetic: PreparedSamples, count: int, rounds: int
) -> list[Result]:
    def full_real(first: int, end: int) -> None:
        for prepared in real:
            prepared.decode_full(first, end)

    def tiled_real(first: int, end: int) -> None:
        for prepared in real:
            prepared.decode_tiled(first, end)

    contenders: dict[str, Contender] = {
        "full/real": full_real,
        "full/synthetic": lambda first, end: synthetic.decode_full(first * _TIMES, end * _TIMES),
        "tiled/real": tiled_real,
        "tiled/synthetic": lambda first, end: synthetic.decode_tiled(first * _TIMES, end * _TIMES),
    }
    warm_up(contenders, items=count, piece=CHUNK_IMAGES)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for seconds in run_rounds(
        contenders, items=count, piece=CHUNK_IMAGES, rounds=rounds, clock=process_time
    ):
        for name, taken_s in seconds.items():
            rates[name].append(count * _TIMES / taken_s)
    return [
        row
        for way in ("full", "tiled")
        for row in compare_rates(rates, f"{way}/real", (f"{way}/synthetic",))
    ]


def _describe(kind: str, dataset: Dataset, samples: PreparedSamples) -> list[Result]:
    sizes_bytes = np.array([len(jpeg) for jpeg in samples.jpegs])
    pixels = samples.widths * samples.heights
    rows = [
        ("source", "bytes/image", dataset.manifest.source_bytes / dataset.manifest.samples),
        ("jpeg", "bytes/image", float(sizes_bytes.mean())),
        ("jpeg-spread", "bytes/image", float(sizes_bytes.std())),
        ("width", "px", float(samples.widths.mean())),
        ("height", "px", float(samples.heights.mean())),
        ("area", "pixels/image", float(pixels.mean())),
        ("density", "bytes/pixel", float(sizes_bytes.sum() / pixels.sum())),
    ]
    for subsampling in (Subsampling.S444, Subsampling.S420, Subsampling.GREY):
        share = float(np.mean(samples.subsamplings == subsampling))
        rows.append((subsampling.name.lower().removeprefix("s"), "%", 100 * share))
    return [single(f"{name}/{kind}", unit, value) for name, unit, value in rows]


def run(arguments: argparse.Namespace) -> Report:
    """Measure as the command line asks."""
    return measure_likeness(
        arguments.source,
        images=arguments.images,
        rounds=arguments.rounds,
        core=choose_core(arguments.core),
    )
