"""``feeder-bench decode``: one core's images per second, stage by stage and whole.

All contenders have the same images, crops and order (``contenders``), in turns on one pinned core
(``rounds``); each round has the crops of another epoch, so that a lucky draw does not decide. Their
output is compared too: without DCT scaling, the product's pixels must equal Pillow's resize of the
full decode bit for bit, and our decoder's must always equal TurboJPEG's.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg import resize
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe
from feeder.sample.reader import STAGES, SampleReader

from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Result, single, summarise
from ..rounds import Contender, run_rounds, warm_up
from .cached import CachedReaders
from .classes import measure_classes
from .contenders import PreparedSamples, compare_sizes
from .decode_report import AllRowsReport, DecodeReport
from .limits import KERNELS, LIMITS, StageLimits
from .pillow_samples import PillowSamples
from .quality import measure_scaling

CHUNK_IMAGES = ServeConfig().chunk_images
"""Images in a call of the reader, as of the daemon's workers."""

_STAGES = [stage for stage in STAGES if stage != "augment"]  # the recipes here augment nothing


def measure_decode(
    path: Path, *, images: int, rounds: int, core: int, decoder: Decoder = "own"
) -> DecodeReport:
    """Measure the dataset at ``path``; DatasetError when a pixel differs from the full decode's.

    ``decoder`` is that of the samples in rows that do not name one.
    """
    machine = describe_machine({"all contenders": core}, decoder=decoder)
    check_libraries()
    tune_allocator()
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
    with pinned_to(frozenset({core})), Dataset.open(path) as dataset:
        count = min(images, dataset.layout.samples)
        order = np.random.default_rng(0).permutation(dataset.layout.samples)[:count]
        ids = order.astype(np.int64)
        with (
            PreparedSamples(dataset, recipe, ids) as samples,
            CachedReaders(dataset, recipe, ids, decoder=decoder) as cached,
        ):
            bench = _DecodeBench(dataset, samples, recipe, cached, decoder)
            compared = bench.compare_pixels()
            results = bench.measure(rounds)
        results += measure_classes(
            dataset, recipe, samples.sample_ids, rounds=rounds, decoder=decoder
        )
        results += measure_scaling(dataset, recipe, samples.sample_ids)
    results.append(single("check/equal-to-pillow", "samples", compared))
    measured = {
        "images": count,
        "rounds": rounds,
        "crops": f"one an image and round, to {recipe.image_size} px",
    }
    return DecodeReport(bench="decode", machine=machine, results=results, measured=measured)


class _DecodeBench:
    """The contenders over prepared samples, with the buffers that they write to."""

    def __init__(
        self,
        dataset: Dataset,
        samples: PreparedSamples,
        recipe: Recipe,
        cached: CachedReaders,
        decoder: Decoder,
    ) -> None:
        self._dataset = dataset
        self._cached = cached
        self._samples = samples
        self._pillow = PillowSamples(samples)
        self._pixels = _pixels(CHUNK_IMAGES, recipe)
        self._labels = np.empty(CHUNK_IMAGES, np.int64)
        self._decoder = decoder
        unscaled = msgspec.structs.replace(recipe, dct_scaling=False)
        self._readers = {
            "": SampleReader(dataset, recipe, decoder=decoder),
            "-turbojpeg": SampleReader(dataset, recipe, decoder="turbojpeg"),
            "-unscaled": SampleReader(dataset, unscaled, decoder=decoder),
        }
        self._limits = StageLimits(samples, recipe.image_size)
        val = Recipe.for_split("val", batch_size=CHUNK_IMAGES)
        self._contenders: dict[str, Contender] = {
            "decode/full-libraries": samples.decode_full,
            "decode/pillow": self._pillow.decode_full,
            "decode/full": samples.decode_full_same_code,
            "decode/tiled": samples.decode_tiled,
            "decode/tiled-turbojpeg": samples.decode_tiled_turbojpeg,
            "decode/tiled-unscaled": samples.decode_tiled_unscaled,
            "limit/entropy": samples.decode_coefficients,
            "limits": self._limits.measure,
            "sample/full-libraries": self._into_pixels(samples.sample_full),
            "sample/pillow": self._into_pixels(self._pillow.sample_full),
            "sample/full": self._into_pixels(samples.sample_full_same_code),
            "sample/tiled-turbojpeg": self._into_pixels(samples.sample_tiled_turbojpeg),
            "sample/centre": partial(self._fill, SampleReader(dataset, val, decoder=decoder)),
            "sample/decoded-cache": partial(self._fill, cached.full),
            "sample/decoded-cache-unscaled": partial(self._fill, cached.full_unscaled),
            "sample/filling-cache": lambda first, end: self._fill(cached.cold, first, end),
        }
        for suffix, reader in self._readers.items():
            self._contenders[f"sample/whole{suffix}"] = partial(self._fill, reader)
        for version in VERSIONS[:-1]:  # the last is the one that is chosen without a name
            self._contenders[f"decode/tiled-{version}"] = partial(
                samples.decode_tiled, version=version
            )
        for vectors in resize.VERSIONS[:-1]:
            self._contenders[f"sample/tiled-turbojpeg-{vectors}"] = self._into_pixels(
                partial(samples.sample_tiled_turbojpeg, version=vectors)
            )
        self._versions = VERSIONS if decoder == "turbojpeg" else VERSIONS[:-1]
        for version in self._versions:
            self._contenders[f"sample/whole-{version}"] = partial(
                self._fill, SampleReader(dataset, recipe, vectors=version)
            )
        self._centre_reference = partial(
            self._fill, SampleReader(dataset, val, decoder="turbojpeg")
        )

    def compare_pixels(self) -> int:
        """Return the number of samples whose pixels were compared and are equal."""
        count = len(self._samples.sample_ids)
        everywhere = np.ones(count, np.bool_)
        unscaled = self._samples.crops.scales == 1
        pillow = "Pillow's resize of the full decode"
        versions = [f"sample/whole-{version}" for version in self._versions]
        for first in range(0, count, CHUNK_IMAGES):
            rows = slice(first, min(first + CHUNK_IMAGES, count))
            expected = self._make(self._contenders["sample/full-libraries"], rows)
            self._check("sample/full", rows, expected, everywhere, pillow)
            self._check("sample/whole-unscaled", rows, expected, everywhere, pillow)
            self._check("sample/whole", rows, expected, unscaled, pillow)
            self._check("sample/decoded-cache-unscaled", rows, expected, everywhere, pillow)
            expected = self._make(self._contenders["sample/whole-turbojpeg"], rows)
            cached = ("sample/filling-cache", "sample/decoded-cache")
            for name in ("sample/whole", "sample/tiled-turbojpeg", *cached, *versions):
                self._check(name, rows, expected, everywhere, "sample/whole-turbojpeg")
            expected = self._make(self._centre_reference, rows)
            self._check("sample/centre", rows, expected, everywhere, "TurboJPEG's centre crops")
        return count

    def _make(self, contender: Contender, rows: slice) -> NDArray[np.int8]:
        contender(rows.start, rows.stop)
        return self._pixels[: rows.stop - rows.start].copy()

    def _check(
        self,
        name: str,
        rows: slice,
        expected: NDArray[np.int8],
        must_equal: NDArray[np.bool_],
        reference: str,
    ) -> None:
        differs = (self._make(self._contenders[name], rows) != expected).any(axis=(1, 2, 3))
        wrong = np.flatnonzero(differs & must_equal[rows])
        if wrong.size:
            sample_id = int(self._samples.sample_ids[rows.start + int(wrong[0])])
            raise DatasetError(
                f"{self._dataset.describe(sample_id)}: {name} does not give the pixels of "
                f"{reference}; report this with the image"
            )

    def measure(self, rounds: int) -> list[Result]:
        """Run the rounds and return all rows."""
        count = len(self._samples.sample_ids)
        warm_up(self._contenders, items=count, piece=CHUNK_IMAGES)
        rates: dict[str, list[float]] = {name: [] for name in self._contenders}
        stages = {
            "": _StageRates(self._readers[""], joins=self._decoder == "turbojpeg"),
            "-turbojpeg": _StageRates(self._readers["-turbojpeg"], joins=True),
        }
        limits: dict[str, list[float]] = {name: [] for name in (*LIMITS, "whole")}
        scaled: list[float] = []
        fills: list[float] = []
        filled: list[float] = []
        limits_before = dict(self._limits.seconds)
        progress = ProgressLine(sys.stderr)
        progress.begin("measuring", "rounds", rounds)
        self._cached.begin_round()
        for seconds in run_rounds(self._contenders, items=count, piece=CHUNK_IMAGES, rounds=rounds):
            for name, taken_s in seconds.items():
                rates[name].append(count / taken_s)
            for suffix, of_stages in stages.items():
                of_stages.add_round(count, seconds[f"sample/whole{suffix}"])
            least = {name: self._limits.seconds[name] - limits_before[name] for name in LIMITS}
            limits_before = dict(self._limits.seconds)
            least["whole"] = sum(least[kernel] for kernel in KERNELS)
            for name, taken_s in least.items():
                limits[name].append(count / taken_s)
            scaled.append(100 * float(np.mean(self._samples.crops.scales > 1)))
            fills.append(100 * (seconds["sample/filling-cache"] / seconds["sample/whole"] - 1))
            filled.append(100 * self._cached.cold_entries / count)
            self._cached.begin_round()
            self._samples.begin_epoch(self._samples.epoch + 1)
            progress.add(1)
        progress.end()
        for way in ("decode/tiled", "sample/whole"):
            rates.setdefault(f"{way}-{VERSIONS[-1]}", rates[way])
        rates[f"sample/tiled-turbojpeg-{resize.VERSIONS[-1]}"] = rates["sample/tiled-turbojpeg"]
        return [
            *_compare_ways(rates, "decode", "tiled"),
            *_compare_ways(rates, "sample", "whole"),
            *_compare_versions(rates),
            *compare_rates(rates, "sample/whole", ("sample/centre",))[1:],
            *_compare_stages(stages[""].rates, limits, rates["sample/whole"]),
            *compare_rates(rates, "decode/tiled", ("limit/entropy",))[1:],
            *(
                summarise(f"stage/{name}-turbojpeg", RATE, values)
                for name, values in stages["-turbojpeg"].rates.items()
            ),
            *compare_rates(rates, "sample/whole", ("sample/decoded-cache", "sample/filling-cache"))[
                1:
            ],
            *compare_rates(rates, "sample/whole-unscaled", ("sample/decoded-cache-unscaled",))[1:],
            replace(
                compare_rates(rates, "sample/decoded-cache-unscaled", ("sample/decoded-cache",))[1],
                name="sample/decoded-cache-against-unscaled",
            ),
            summarise("decoded-cache/fill", "%", fills),
            summarise("decoded-cache/filled", "%", filled),
            single("decoded-cache/size", "bytes/image", self._cached.bytes_per_picture),
            summarise("crops/scaled", "%", scaled),
            single("dataset/images", "images", count),
            *compare_sizes(self._samples),
            single(
                "dataset/size",
                "pixels/image",
                float(np.mean(self._samples.widths * self._samples.heights)),
            ),
        ]

    def _into_pixels(self, make: Callable[[int, int, NDArray[np.int8]], None]) -> Contender:
        return lambda first, end: make(first, end, self._pixels[: end - first])

    def _fill(self, reader: SampleReader, first: int, end: int) -> None:
        reader.fill(
            self._samples.sample_ids[first:end],
            seed=0,
            epoch=self._samples.epoch,
            pixels=self._pixels[: end - first],
            labels=self._labels[: end - first],
        )


class _StageRates:
    """The rates of a reader's stages by round, and ``rest`` of its time."""

    def __init__(self, reader: SampleReader, *, joins: bool) -> None:
        self._reader = reader
        self._joins = joins
        self._before = dict(reader.seconds)
        self.rates: dict[str, list[float]] = {}

    def add_round(self, count: int, whole_s: float) -> None:
        """Add a round in which ``count`` samples took ``whole_s``."""
        now = dict(self._reader.seconds)
        spent = {stage: now[stage] - self._before[stage] for stage in _STAGES}
        self._before = now
        if not self._joins:  # what is left to TurboJPEG is a part of decoding
            spent["decode"] += spent.pop("join")
        spent["rest"] = max(whole_s - sum(spent.values()), 1e-9)
        for stage, taken_s in spent.items():
            self.rates.setdefault(stage, []).append(count / taken_s)


def _pixels(images: int, recipe: Recipe) -> NDArray[np.int8]:
    return np.zeros((images, recipe.image_size, recipe.image_size, 3), np.int8)


def _compare_ways(rates: Mapping[str, Sequence[float]], what: str, way: str) -> list[Result]:
    """Return the rows of decoding, or of whole samples, against each baseline."""
    ours = f"{what}/{way}"
    baselines = {
        "libraries": f"{what}/full-libraries",
        "pillow": f"{what}/pillow",
        "turbojpeg": f"{what}/tiled-turbojpeg",
        "unscaled": f"{ours}-unscaled",
    }
    others = [ours, *baselines.values()]
    others += ["sample/whole-turbojpeg"] if what == "sample" else []
    return [
        *compare_rates(rates, f"{what}/full", others),
        *(
            replace(compare_rates(rates, baseline, (ours,))[1], name=f"{ours}-against-{word}")
            for word, baseline in baselines.items()
        ),
    ]


def _compare_versions(rates: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return the rows of our decoder's versions against TurboJPEG on the same tiles.

    A sample is resized as on a CPU with no faster version, and so is that of its baseline.
    """
    decoding = [f"decode/tiled-{version}" for version in VERSIONS]
    rows = compare_rates(rates, "decode/tiled-turbojpeg", decoding)[1:]
    for vectors in resize.VERSIONS:
        samples = [
            f"sample/whole-{version}"
            for version in VERSIONS
            if resize.version_beside(version) == vectors
        ]
        rows += compare_rates(rates, f"sample/tiled-turbojpeg-{vectors}", samples)
    return rows


def _compare_stages(
    stages: Mapping[str, Sequence[float]],
    limits: Mapping[str, Sequence[float]],
    whole: Sequence[float],
) -> list[Result]:
    """Return the rows of the stages, each against its limit, and of the whole against all."""
    rows = []
    for name, values in stages.items():
        if name not in limits:
            rows.append(summarise(f"stage/{name}", RATE, values))
            continue
        limit = summarise(f"limit/{name}", RATE, limits[name])
        rows += [
            summarise(f"stage/{name}", RATE, values, baseline=limit, baseline_values=limits[name]),
            limit,
        ]
    limit = summarise("sample/limit", RATE, limits["whole"])
    against = "sample/whole-against-limit"
    return [
        *rows,
        limit,
        summarise(against, RATE, whole, baseline=limit, baseline_values=limits["whole"]),
    ]


def compare_rates(
    rates: Mapping[str, Sequence[float]], baseline_name: str, names: Sequence[str]
) -> list[Result]:
    """Return the row of the baseline and those of ``names``, given all rates by round."""
    baseline = summarise(baseline_name, RATE, rates[baseline_name])
    return [
        baseline,
        *(
            summarise(
                name, RATE, rates[name], baseline=baseline, baseline_values=rates[baseline_name]
            )
            for name in names
        ),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    parser.add_argument(
        "--decoder",
        choices=DECODERS,
        default="own",
        help="decoder of the samples in rows that do not name one (default: own)",
    )
    parser.add_argument(
        "--all", action="store_true", help="print all rows, not only those of the conclusion"
    )


def run(arguments: argparse.Namespace) -> DecodeReport:
    """Do what the command line asks."""
    core = choose_core(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        report = measure_decode(
            path,
            images=arguments.images,
            rounds=arguments.rounds,
            core=core,
            decoder=arguments.decoder,
        )
    return AllRowsReport.of(report) if arguments.all else report
