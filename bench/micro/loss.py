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
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.lossy import shrink
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
from ..fetcher import CHUNK_IMAGES
from ..machine import choose_core, describe_machine, pinned_to
from ..report import (
    RATE,
    Report,
    Result,
    align,
    compare,
    format_number,
    single,
    summarise,
)
from ..rounds import measure, rates
from .contenders import Filling, PreparedSamples
from .readers import psnr_db

LOSSLESS: Final = "lossless"

SETTINGS: Final[tuple[Mapping[str, Any], ...]] = (
    {"max_side": 500},
    {"max_side": 500, "quality": 90},
    {"max_side": 500, "quality": 90, "subsampling": "420"},
    {"max_side": 400},
    {"max_side": 400, "quality": 90, "subsampling": "420"},
    {"max_side": 320, "quality": 90},
    {"max_side": 256, "quality": 90},
    {"quality": 90},
    {"quality": 75},
    {"subsampling": "420"},
)
"""Options of ``feeder pack``; the name of a setting is what one types, without the dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport(Report):
    def tables(self) -> Iterator[list[str]]:
        rows = self.rows
        heads = ("", "MB", "ratio", RATE, "ratio", "changed", "stored", "min", "crop", "min")
        table: list[Sequence[str]] = [heads]
        for name in dict.fromkeys(name.partition("/")[0] for name in rows):
            cells = [name]
            for row in (rows[f"{name}/size"], rows[f"{name}/train"]):
                cells += [format_number(row.value), f"{row.ratio:.2f}" if row.ratio else ""]
            cells.append(f"{rows[f'{name}/changed'].value:.0f}")
            for psnr in (rows.get(f"{name}/stored"), rows.get(f"{name}/crop")):
                cells += [f"{psnr.value:.1f}", f"{psnr.min:.1f}"] if psnr else ["", ""]
            table.append(cells)
        note = "changed: images, %; stored and crop: PSNR of these in dB, median and least"
        yield [*align(table), note]


def run(arguments: argparse.Namespace) -> LossReport:
    core = choose_core(arguments.core)
    machine = describe_machine({"all contenders": core})
    check_libraries()
    tune_allocator()
    settings: dict[str, Mapping[str, Any]] = {LOSSLESS: {}}
    for setting in SETTINGS:
        words = (f"{key.replace('_', '-')} {value}" for key, value in setting.items())
        settings[" ".join(words)] = setting
    with ExitStack() as stack:
        source = stack.enter_context(
            source_or_synthetic(arguments.dataset, images=arguments.images)
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        datasets: dict[str, Dataset] = {}
        for number, (name, setting) in enumerate(settings.items()):
            options = PackOptions(jobs=usable_cpus().count, **setting)
            pack_dataset(source, folder / str(number), options, ProgressLine(sys.stderr))
            datasets[name] = stack.enter_context(Dataset.open(folder / str(number)))
        samples = datasets[LOSSLESS].layout.samples
        if any(dataset.layout.samples != samples for dataset in datasets.values()):
            raise DatasetError(f"{source} changed while it was packed: run the bench again")
        ids = np.random.default_rng(0).permutation(samples)[: arguments.images].astype(np.int64)
        stack.enter_context(pinned_to(core))
        results = _compare_rates(datasets, ids, arguments.rounds)
        results += _compare_pixels(datasets, ids, settings)
    return LossReport(bench="loss", machine=machine, results=results)


def _compare_rates(
    datasets: Mapping[str, Dataset], ids: NDArray[np.int64], rounds: int
) -> list[Result]:
    """Return the rows of sizes and of training crops a second, against those without loss."""
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
    filling = Filling(recipe, ids)

    def next_epoch(_: object) -> None:
        filling.epoch += 1

    taken = measure(
        {name: filling.of(SampleReader(each, recipe)) for name, each in datasets.items()},
        rounds=rounds,
        items=len(ids),
        piece=CHUNK_IMAGES,
        clock=process_time,
        after_round=next_epoch,
    )
    sizes_mb = {
        f"{name}/size": [sum(shard.bytes for shard in dataset.manifest.shards) / 1e6]
        for name, dataset in datasets.items()
    }
    trained = {f"{name}/train": values for name, values in rates(taken, len(ids)).items()}
    pairs = zip(compare(sizes_mb, "MB"), compare(trained, RATE), strict=True)
    return [row for pair in pairs for row in pair]


def _compare_pixels(
    datasets: Mapping[str, Dataset],
    ids: NDArray[np.int64],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Result]:
    """Return the rows of the share of images that changed, and of their PSNR."""
    rows: list[Result] = []
    recipe = Recipe.for_split("val", batch_size=CHUNK_IMAGES)
    for name, dataset in datasets.items():
        with PreparedSamples(dataset, recipe, ids) as prepared:
            stored = prepared.jpegs
        crops = Filling(recipe, ids, images=len(ids))
        crops.of(SampleReader(dataset, recipe))(0, len(ids))
        if name == LOSSLESS:
            sources, exact = stored, crops.pixels
        changed = [row for row, jpeg in enumerate(stored) if jpeg != sources[row]]
        rows.append(single(f"{name}/changed", "%", 100 * len(changed) / len(ids)))
        if changed:
            side = settings[name].get("max_side")
            of_stored = [
                psnr_db(_levels(stored[row]), _levels(sources[row], side)) for row in changed
            ]
            of_crops = [psnr_db(crops.pixels[row], exact[row]) for row in changed]
            rows.append(summarise(f"{name}/stored", "dB", of_stored))
            rows.append(summarise(f"{name}/crop", "dB", of_crops))
    return rows


def _levels(jpeg: bytes, max_side: int | None = None) -> NDArray[np.uint8]:
    """Return the RGB levels (height, width, 3) of a JPEG, within ``max_side``."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(shrink(image.convert("RGB"), max_side))
