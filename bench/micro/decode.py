"""``feeder-bench decode``: one core's images per second, stage by stage and whole.

All contenders have the same images, crops and order (``contenders``), in turns on one pinned core
(``rounds``); each round has the crops of another epoch, so that a lucky draw does not decide. Their
output is compared too: without DCT scaling, the product's pixels must equal Pillow's resize of the
full decode bit for bit, and our decoder's must always equal TurboJPEG's.
"""

import argparse
from functools import partial

import msgspec
import numpy as np

from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg import resize
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..data.material import dataset_or_synthetic
from ..fetcher import CHUNK_IMAGES
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Result, compare, single, summarise
from ..rounds import Contender, measure, rates
from .classes import measure_classes
from .contenders import PreparedSamples, compare_sizes
from .crops import measure_crops
from .decode_report import AllRowsReport, DecodeReport
from .readers import CachedReaders, StageTimes, measure_scaling


def run(arguments: argparse.Namespace) -> DecodeReport:
    """Measure the dataset; DatasetError when a pixel differs from the full decode's."""
    core, rounds, decoder = choose_core(arguments.core), arguments.rounds, arguments.decoder
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"all contenders": core}, decoder=decoder)
        check_libraries()
        tune_allocator()
        recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES)
        with pinned_to(core), Dataset.open(path) as dataset:
            order = np.random.default_rng(0).permutation(dataset.layout.samples)
            ids = order[: arguments.images].astype(np.int64)
            with (
                PreparedSamples(dataset, recipe, ids) as samples,
                CachedReaders(dataset, recipe, ids, decoder=decoder) as cached,
            ):
                bench = _DecodeBench(dataset, samples, recipe, cached, decoder)
                bench.compare_pixels()
                results = bench.measure(rounds)
            results += measure_classes(dataset, recipe, ids, rounds=rounds, decoder=decoder)
            results += measure_scaling(dataset, recipe, ids)
            results += measure_crops(dataset, ids, rounds=rounds, decoder=decoder)
    results.append(single("check/equal-to-pillow", "samples", len(ids)))
    measured = {
        "images": len(ids),
        "rounds": rounds,
        "crops": f"one an image and round, to {recipe.image_size} px",
    }
    report = AllRowsReport if arguments.all else DecodeReport
    return report(bench="decode", machine=machine, results=results, measured=measured)


class _DecodeBench:
    """The contenders over prepared samples, all of which write to the pixels of these."""

    def __init__(
        self,
        dataset: Dataset,
        samples: PreparedSamples,
        recipe: Recipe,
        cached: CachedReaders,
        decoder: Decoder,
    ) -> None:
        self._dataset, self._samples, self._cached = dataset, samples, cached
        read = partial(SampleReader, dataset)
        val = Recipe.for_split("val", batch_size=CHUNK_IMAGES)
        unscaled = msgspec.structs.replace(recipe, dct_scaling=False)
        whole, whole_turbojpeg = read(recipe, decoder=decoder), read(recipe, decoder="turbojpeg")
        self._times = StageTimes(
            samples,
            recipe.image_size,
            {"": whole, "-turbojpeg": whole_turbojpeg},
            joins=["-turbojpeg", *([""] if decoder == "turbojpeg" else [])],
        )
        # Our decoder without a name is the last version; resizing too.
        self._versions = VERSIONS if decoder == "turbojpeg" else VERSIONS[:-1]
        self._centre_reference = samples.of(read(val, decoder="turbojpeg"))
        self._contenders: dict[str, Contender] = {
            "decode/full-libraries": samples.decode_full_libraries,
            "decode/pillow": samples.decode_pillow,
            "decode/full": samples.decode_full,
            "decode/tiled": samples.decode_tiled,
            "decode/tiled-turbojpeg": samples.decode_tiled_turbojpeg,
            "decode/tiled-unscaled": samples.decode_tiled_unscaled,
            "limit/entropy": samples.decode_coefficients,
            "limits": self._times.measure_limits,
            "sample/full-libraries": samples.sample_full_libraries,
            "sample/pillow": samples.sample_pillow,
            "sample/full": samples.sample_full,
            "sample/tiled-turbojpeg": samples.sample_tiled_turbojpeg,
            "sample/centre": samples.of(read(val, decoder=decoder)),
            "sample/decoded-cache": samples.of(cached.full),
            "sample/decoded-cache-unscaled": samples.of(cached.full_unscaled),
            "sample/filling-cache": lambda first, end: samples.of(cached.cold)(first, end),
            "sample/whole": samples.of(whole),
            "sample/whole-turbojpeg": samples.of(whole_turbojpeg),
            "sample/whole-unscaled": samples.of(read(unscaled, decoder=decoder)),
        }
        for version in VERSIONS[:-1]:
            decode = partial(samples.decode_tiled, version=version)
            self._contenders[f"decode/tiled-{version}"] = decode
        for vectors in resize.VERSIONS[:-1]:
            make = partial(samples.sample_tiled_turbojpeg, version=vectors)
            self._contenders[f"sample/tiled-turbojpeg-{vectors}"] = make
        for version in self._versions:
            self._contenders[f"sample/whole-{version}"] = samples.of(read(recipe, vectors=version))

    def compare_pixels(self) -> None:
        """Raise DatasetError with the name of the first sample whose pixels are not as expected."""
        samples, make = self._samples, self._contenders
        own = [f"sample/whole-{version}" for version in self._versions]
        own += ["sample/whole", "sample/filling-cache", "sample/decoded-cache"]
        unscaled = ["sample/full", "sample/whole-unscaled", "sample/decoded-cache-unscaled"]
        whole, pillow = "sample/whole-turbojpeg", "Pillow's resize of the full decode"
        checks: list[tuple[Contender, str, list[str]]] = [
            (make["sample/full-libraries"], pillow, unscaled),
            (make[whole], whole, ["sample/tiled-turbojpeg", *own]),
            (self._centre_reference, "TurboJPEG's centre crops", ["sample/centre"]),
        ]
        for first in range(0, len(samples.sample_ids), CHUNK_IMAGES):
            ids = samples.sample_ids[first : first + CHUNK_IMAGES].tolist()
            pixels = samples.pixels[: len(ids)]
            for reference, words, names in checks:
                reference(first, first + len(ids))
                expected = pixels.copy()
                for name in names:
                    make[name](first, first + len(ids))
                    for row in np.flatnonzero((pixels != expected).any(axis=(1, 2, 3))).tolist():
                        raise DatasetError(
                            f"{self._dataset.describe(ids[row])}: {name} does not give the pixels "
                            f"of {words}; report this with the image"
                        )

    def measure(self, rounds: int) -> list[Result]:
        samples, count = self._samples, len(self._samples.sample_ids)
        scaled: list[float] = []
        filled: list[float] = []

        def begin_round() -> None:
            self._cached.begin_round()
            self._times.note()

        def end_round(_: object) -> None:
            scaled.append(100 * float(np.mean(samples.crops.scales > 1)))
            filled.append(100 * self._cached.cold_entries / count)
            samples.begin_next_epoch()
            begin_round()

        taken = measure(
            self._contenders,
            rounds=rounds,
            items=count,
            piece=CHUNK_IMAGES,
            after_warm_up=begin_round,
            after_round=end_round,
        )
        pairs = zip(taken["sample/filling-cache"], taken["sample/whole"], strict=True)
        fills = [100 * (filling_s / whole_s - 1) for filling_s, whole_s in pairs]
        stages = self._times.seconds(taken)
        values = rates(taken | stages, count)
        for name in ("decode/tiled", "sample/whole"):
            values.setdefault(f"{name}-{VERSIONS[-1]}", values[name])
        vectors = resize.VERSIONS[-1]
        values[f"sample/tiled-turbojpeg-{vectors}"] = values["sample/tiled-turbojpeg"]
        pixels = float(np.mean(samples.widths * samples.heights))
        return [
            *compare(values, RATE, _baselines(list(stages))),
            summarise("decoded-cache/fill", "%", fills),
            summarise("decoded-cache/filled", "%", filled),
            single("decoded-cache/size", "bytes/image", self._cached.bytes_per_picture),
            summarise("crops/scaled", "%", scaled),
            single("dataset/images", "images", count),
            *compare_sizes(samples),
            single("dataset/size", "pixels/image", pixels),
        ]


def _baselines(stages: list[str]) -> dict[str, str | None]:
    """Return the baseline of each row, by name; ``stages`` are those of stages and their limits."""
    rows: dict[str, str | None] = {}
    for ours in ("decode/tiled", "sample/whole"):
        what = ours.partition("/")[0]
        others = {
            "libraries": f"{what}/full-libraries",
            "pillow": f"{what}/pillow",
            "turbojpeg": f"{what}/tiled-turbojpeg",
            "unscaled": f"{ours}-unscaled",
        }
        rows |= {f"{what}/full": None, **dict.fromkeys((ours, *others.values()), f"{what}/full")}
        rows |= {f"{ours}-against-{word}": other for word, other in others.items()}
    rows["sample/whole-turbojpeg"] = "sample/full"
    for version in VERSIONS:
        rows[f"decode/tiled-{version}"] = "decode/tiled-turbojpeg"
    # A sample is resized as on a CPU with no faster version, and so is that of its baseline.
    for vectors in resize.VERSIONS:
        rows[f"sample/tiled-turbojpeg-{vectors}"] = None
        for version in VERSIONS:
            if resize.version_beside(version) == vectors:
                rows[f"sample/whole-{version}"] = f"sample/tiled-turbojpeg-{vectors}"
    for name in stages:
        limit = name.replace("stage/", "limit/")
        rows[name] = limit if limit != name and limit in stages else None
    return rows | {
        "sample/whole-against-limit": "sample/limit",
        "limit/entropy": "decode/tiled",
        "sample/centre": "sample/whole",
        "sample/decoded-cache": "sample/whole",
        "sample/filling-cache": "sample/whole",
        "sample/decoded-cache-unscaled": "sample/whole-unscaled",
        "sample/decoded-cache-against-unscaled": "sample/decoded-cache-unscaled",
    }
