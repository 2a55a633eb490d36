"""``feeder-bench loss``: what packing with loss saves, what it gains, and what it costs.

The source is packed once without loss, and once with each of SETTINGS. Training crops of all these
datasets are read in turns on one pinned core (``rounds``), the same crops of the same images, timed
by CPU time, so that a machine in use is good enough. Of each image that a setting changed, two PSNR
against the dataset without loss are reported: the stored image, against the source resized to the
same size by the same filter, so that only encoding counts; and the 224-pixel crop of evaluation,
in which resizing counts, too.
"""

import argparse
import io
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.lossy import SubsamplingName, shrink
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.host.topology import usable_cpus
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..data.material import source_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, align, format_number, header_lines, summarise
from ..rounds import Contender, run_rounds, warm_up
from .contenders import PreparedSamples
from .decode import CHUNK_IMAGES

LOSSLESS: Final = "lossless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The options of one packing."""

    max_side: int | None = None
    quality: int | None = None
    subsampling: SubsamplingName | None = None

    @property
    def name(self) -> str:
        """The options as on the command line, without the dashes before them."""
        typed = {
            "max-side": self.max_side,
            "quality": self.quality,
            "subsampling": self.subsampling,
        }
        return " ".join(f"{name} {value}" for name, value in typed.items() if value) or LOSSLESS


SETTINGS: Final = (
    Setting(max_side=500),
    Setting(max_side=500, quality=90),
    Setting(max_side=500, quality=90, subsampling="420"),
    Setting(max_side=400),
    Setting(max_side=400, quality=90, subsampling="420"),
    Setting(max_side=320, quality=90),
    Setting(max_side=256, quality=90),
    Setting(quality=90),
    Setting(quality=75),
    Setting(subsampling="420"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport(Report):
    """The report of this bench, which prints a line for each setting."""

    def to_text(self) -> str:
        """Return header and table as text, with a newline at its end."""
        rows = {result.name: result for result in self.results}
        names = dict.fromkeys(name.partition("/")[0] for name in rows)
        heads = ("", "MB", "ratio", RATE, "ratio", "changed", "stored", "min", "crop", "min")
        table = [heads, *(_table_row(name, rows) for name in names)]
        lines = [f"feeder-bench {self.bench}", *header_lines(self.machine), ""]
        lines += align(table, left={0})
        lines.append("changed: images, %; stored and crop: PSNR of these in dB, median and least")
        return "\n".join(lines) + "\n"


def _table_row(name: str, rows: Mapping[str, Result]) -> tuple[str, ...]:
    size, rate, changed = (rows[f"{name}/{what}"] for what in ("size", "train", "changed"))
    cells = [name]
    for result in (size, rate):
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        cells += [format_number(result.value), ratio]
    cells.append(f"{changed.value:.0f}")
    for what in ("stored", "crop"):
        psnr = rows.get(f"{name}/{what}")
        cells += ["", ""] if psnr is None else [f"{psnr.value:.1f}", f"{psnr.min:.1f}"]
    return tuple(cells)


def measure_loss(
    source: Path, *, images: int, rounds: int, core: int, settings: Sequence[Setting]
) -> LossReport:
    """Measure with at most ``images`` images of the folder ``source``."""
    machine = describe_machine({"all contenders": core})
    check_libraries()
    tune_allocator()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        datasets = {
            setting.name: stack.enter_context(Dataset.open(_pack(source, folder, setting)))
            for setting in (Setting(), *settings)
        }
        samples = datasets[LOSSLESS].layout.samples
        if any(dataset.layout.samples != samples for dataset in datasets.values()):
            raise DatasetError(f"{source} changed while it was packed: run the bench again")
        order = np.random.default_rng(0).permutation(samples)[:images]
        ids: NDArray[np.int64] = order.astype(np.int64)
        stack.enter_context(pinned_to(frozenset({core})))
        rates = _measure_rates(datasets, ids, rounds)
        results = _compare_sizes(datasets, rates)
        results += _compare_pixels(datasets, ids, {s.name: s for s in settings})
    return LossReport(bench="loss", machine=machine, results=results)


def _pack(source: Path, folder: Path, setting: Setting) -> Path:
    destination = folder / setting.name.replace(" ", "-")
    options = PackOptions(
        jobs=usable_cpus().count,
        max_side=setting.max_side,
        quality=setting.quality,
        subsampling=setting.subsampling,
    )
    pack_dataset(source, destination, options, ProgressLine(sys.stderr))
    return destination


def _measure_rates(
    datasets: Mapping[str, Dataset], ids: NDArray[np.int64], rounds: int
) -> dict[str, list[float]]:
    """Return the images a second of training crops, by dataset and round."""
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
    pixels = np.zeros((CHUNK_IMAGES, recipe.image_size, recipe.image_size, 3), np.int8)
    labels = np.empty(CHUNK_IMAGES, np.int64)
    epoch = 0

    def fill(reader: SampleReader, first: int, end: int) -> None:
        rows = slice(end - first)
        reader.fill(ids[first:end], seed=0, epoch=epoch, pixels=pixels[rows], labels=labels[rows])

    contenders: dict[str, Contender] = {
        name: partial(fill, SampleReader(dataset, recipe)) for name, dataset in datasets.items()
    }
    count = len(ids)
    warm_up(contenders, items=count, piece=CHUNK_IMAGES)
    rates: dict[str, list[float]] = {name: [] for name in datasets}
    progress = ProgressLine(sys.stderr)
    progress.begin("measuring", "rounds", rounds)
    for seconds in run_rounds(
        contenders, items=count, piece=CHUNK_IMAGES, rounds=rounds, clock=process_time
    ):
        for name, taken_s in seconds.items():
            rates[name].append(count / taken_s)
        epoch += 1
        progress.add(1)
    progress.end()
    return rates


def _compare_sizes(
    datasets: Mapping[str, Dataset], rates: Mapping[str, Sequence[float]]
) -> list[Result]:
    """Return the rows of sizes and rates, each against the dataset without loss."""
    rows: list[Result] = []
    bases: dict[str, tuple[Result, Sequence[float]]] = {}
    for name, dataset in datasets.items():
        size_mb = sum(shard.bytes for shard in dataset.manifest.shards) / 1e6
        for what, unit, values in (("size", "MB", [size_mb]), ("train", RATE, rates[name])):
            baseline, baseline_values = bases.get(what, (None, ()))
            row = summarise(
                f"{name}/{what}", unit, values, baseline=baseline, baseline_values=baseline_values
            )
            bases.setdefault(what, (row, values))
            rows.append(row)
    return rows


def _compare_pixels(
    datasets: Mapping[str, Dataset], ids: NDArray[np.int64], settings: Mapping[str, Setting]
) -> list[Result]:
    """Return the rows of the share of images that changed, and of their PSNR."""
    rows = [Result(name=f"{LOSSLESS}/changed", value=0.0, unit="%", min=0.0, max=0.0)]
    recipe = Recipe.for_split("val", batch_size=CHUNK_IMAGES)
    with PreparedSamples(datasets[LOSSLESS], recipe, ids) as lossless:
        sources = lossless.jpegs
    crops = _crops(datasets[LOSSLESS], recipe, ids)
    for name, setting in settings.items():
        with PreparedSamples(datasets[name], recipe, ids) as prepared:
            stored = prepared.jpegs
        changed = [row for row in range(len(ids)) if stored[row] != sources[row]]
        share = 100 * len(changed) / len(ids)
        rows.append(Result(name=f"{name}/changed", value=share, unit="%", min=share, max=share))
        if not changed:
            continue
        of_stored = [
            _psnr_db(_levels(stored[row]), _levels(sources[row], setting.max_side))
            for row in changed
        ]
        lossy = _crops(datasets[name], recipe, ids)
        of_crops = [_psnr_db(lossy[row], crops[row]) for row in changed]
        rows.append(summarise(f"{name}/stored", "dB", of_stored))
        rows.append(summarise(f"{name}/crop", "dB", of_crops))
    return rows


def _levels(jpeg: bytes, max_side: int | None = None) -> NDArray[np.uint8]:
    """Return the RGB levels (height, width, 3) of a JPEG, within ``max_side``."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(shrink(image.convert("RGB"), max_side))


def _crops(dataset: Dataset, recipe: Recipe, ids: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the crops of evaluation: (samples, size, size, 3)."""
    pixels = np.empty((len(ids), recipe.image_size, recipe.image_size, 3), np.int8)
    labels = np.empty(len(ids), np.int64)
    SampleReader(dataset, recipe).fill(ids, seed=0, epoch=0, pixels=pixels, labels=labels)
    return pixels


_IDENTICAL_DB: Final = 100.0


def _psnr_db(
    found: NDArray[np.uint8] | NDArray[np.int8], expected: NDArray[np.uint8] | NDArray[np.int8]
) -> float:
    error = float(np.mean(np.square(found.astype(np.float64) - expected)))
    return _IDENTICAL_DB if error == 0 else 10 * math.log10(255**2 / error)


def run(arguments: argparse.Namespace) -> Report:
    """Measure as the command line asks."""
    core = choose_core(arguments.core)
    with source_or_synthetic(arguments.dataset, images=arguments.images) as source:
        return measure_loss(
            source,
            images=arguments.images,
            rounds=arguments.rounds,
            core=core,
            settings=SETTINGS,
        )
