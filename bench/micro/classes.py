"""Partial against full decoding, for each subsampling and each class of sizes."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.micro.contenders import PreparedSamples
from bench.report import RATE, Result, summarise
from bench.rounds import Contender, run_rounds, warm_up
from feeder.dataset.opened import Dataset
from feeder.jpeg.recode import Subsampling
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

FEWEST: Final = 8
"""Images that a class needs to be measured: fewer are not representative."""

_SIZES: Final = (("small", 0, 100_000), ("medium", 100_000, 250_000), ("large", 250_000, 2**63))
"""Name, minimum pixels, and the bound that the pixels must stay below."""


def measure_classes(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, rounds: int
) -> list[Result]:
    """Return the rows ``decode/…/CLASS`` and ``sample/…/CLASS`` of each class that has FEWEST."""
    results = []
    for name, members in _classes(dataset.read_records(sample_ids)):
        if np.count_nonzero(members) >= FEWEST:
            results += _measure_class(dataset, recipe, sample_ids[members], name, rounds)
    return results


def _classes(records: NDArray[np.void]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for subsampling in Subsampling:
        yield subsampling.name.lower(), records["subsampling"] == subsampling
    pixels = records["width"].astype(np.int64) * records["height"]
    for name, least, too_many in _SIZES:
        yield name, (pixels >= least) & (pixels < too_many)


def _measure_class(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], name: str, rounds: int
) -> list[Result]:
    count, chunk = len(sample_ids), recipe.batch_size
    reader = SampleReader(dataset, recipe)
    pixels = np.zeros((chunk, recipe.image_size, recipe.image_size, 3), np.int8)
    labels = np.empty(chunk, np.int64)
    with PreparedSamples(dataset, recipe, sample_ids) as samples:

        def make_full(first: int, end: int) -> None:
            samples.sample_full_same_code(first, end, pixels[: end - first])

        def make_whole(first: int, end: int) -> None:
            reader.fill(
                sample_ids[first:end],
                seed=0,
                epoch=samples.epoch,
                pixels=pixels[: end - first],
                labels=labels[: end - first],
            )

        contenders: dict[str, Contender] = {
            "decode/full": samples.decode_full_same_code,
            "decode/tiled": samples.decode_tiled,
            "sample/full": make_full,
            "sample/whole": make_whole,
        }
        rates: dict[str, list[float]] = {way: [] for way in contenders}
        warm_up(contenders, items=count, piece=chunk)
        for seconds in run_rounds(contenders, items=count, piece=chunk, rounds=rounds):
            for way, taken_s in seconds.items():
                rates[way].append(count / taken_s)
            samples.begin_epoch(samples.epoch + 1)
    return [
        *_compare(name, rates, "decode/full", "decode/tiled"),
        *_compare(name, rates, "sample/full", "sample/whole"),
    ]


def _compare(
    name: str, rates: Mapping[str, list[float]], baseline_way: str, way: str
) -> list[Result]:
    baseline_rates = rates[baseline_way]
    baseline = summarise(f"{baseline_way}/{name}", RATE, baseline_rates)
    ours = summarise(
        f"{way}/{name}", RATE, rates[way], baseline=baseline, baseline_values=baseline_rates
    )
    return [baseline, ours]
