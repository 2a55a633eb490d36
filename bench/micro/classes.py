"""Our decoder, TurboJPEG and full decoding for classes of images.

The classes are each subsampling, sizes, and two halves by a hash of the names: code that is tuned
with the images of one half must show the same gain in the other.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.recode import Subsampling
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..report import RATE, Result, align, single, summarise
from ..rounds import Contender, run_rounds, warm_up
from .contenders import PreparedSamples, compare_sizes

FEWEST: Final = 8
"""Images that a class needs to be measured: fewer are not representative."""

_SIZES: Final = (("small", 0, 100_000), ("medium", 100_000, 250_000), ("large", 250_000, 2**63))
"""Name, minimum pixels, and the bound that the pixels must stay below."""

_HALVES: Final = ("tune", "held-out")


def measure_classes(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    *,
    rounds: int,
    decoder: Decoder = "own",
) -> list[Result]:
    """Return the rows ``…/CLASS`` of each class that has FEWEST images.

    ``decoder`` is that of ``sample/whole/CLASS``.
    """
    results = []
    for name, members in _classes(dataset, sample_ids):
        if np.count_nonzero(members) >= FEWEST:
            results += _measure_class(dataset, recipe, sample_ids[members], name, rounds, decoder)
    return results


def is_of_class(result: Result) -> bool:
    """Return whether ``measure_classes`` has made the row."""
    return result.name.count("/") == 2


def format_classes(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table of the classes whose rows are among ``results``."""
    rows = {result.name: result for result in results if is_of_class(result)}
    names = [name.rpartition("/")[2] for name in rows if name.startswith("dataset/images/")]
    ways = ("decode/tiled", "sample/whole")
    of_each = ("TurboJPEG", "gain")
    heads = ("", "n", "size", "decode", *of_each, "sample", *of_each, "× full")
    table: list[tuple[str, ...]] = [heads]
    for name in names:
        cells = [name, f"{rows[f'dataset/images/{name}'].value:.0f}"]
        cells.append(_times(rows[f"dataset/blob/{name}"]))
        for way in ways:
            turbojpeg = f"{way.partition('/')[0]}/tiled-turbojpeg"
            cells += [_each_us(rows[f"{each}/{name}"]) for each in (way, turbojpeg)]
            cells.append(_times(rows[f"{way}-against-turbojpeg/{name}"]))
        table.append((*cells, _times(rows[f"sample/whole/{name}"])))
    heading = (
        "µs an image by class (n images): our decoder, and TurboJPEG on the same tiles;",
        "size: bytes of the blobs over those of ordinary JPEGs",
    )
    return [*heading, *align(table, left={0})] if names else []


def half_of(name: str) -> str:
    """Return the half that a sample of this name is in, ``tune`` or ``held-out``."""
    return _HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


def _each_us(result: Result) -> str:
    return f"{1e6 / result.value:,.0f}"


def _times(result: Result) -> str:
    return f"{result.ratio:.2f}"


def _classes(
    dataset: Dataset, sample_ids: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    records = dataset.read_records(sample_ids)
    for subsampling in Subsampling:
        yield subsampling.name.lower(), records["subsampling"] == subsampling
    pixels = records["width"].astype(np.int64) * records["height"]
    for name, least, too_many in _SIZES:
        yield name, (pixels >= least) & (pixels < too_many)
    halves = np.array([half_of(dataset.name_of(each) or "") for each in sample_ids.tolist()])
    for name in _HALVES:
        yield name, halves == name


def _measure_class(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    name: str,
    rounds: int,
    decoder: Decoder,
) -> list[Result]:
    count, chunk = len(sample_ids), recipe.batch_size
    pixels = np.zeros((chunk, recipe.image_size, recipe.image_size, 3), np.int8)
    labels = np.empty(chunk, np.int64)
    with PreparedSamples(dataset, recipe, sample_ids) as samples:
        reader = SampleReader(dataset, recipe, decoder=decoder)

        def make_full(first: int, end: int) -> None:
            samples.sample_full_same_code(first, end, pixels[: end - first])

        def make_tiled(first: int, end: int) -> None:
            samples.sample_tiled_turbojpeg(first, end, pixels[: end - first])

        def make_ours(first: int, end: int) -> None:
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
            "decode/tiled-turbojpeg": samples.decode_tiled_turbojpeg,
            "sample/full": make_full,
            "sample/whole": make_ours,
            "sample/tiled-turbojpeg": make_tiled,
        }
        rates: dict[str, list[float]] = {way: [] for way in contenders}
        warm_up(contenders, items=count, piece=chunk)
        for seconds in run_rounds(contenders, items=count, piece=chunk, rounds=rounds):
            for way, taken_s in seconds.items():
                rates[way].append(count / taken_s)
            samples.begin_epoch(samples.epoch + 1)
        sizes = compare_sizes(samples, f"/{name}")
    return [
        single(f"dataset/images/{name}", "images", count),
        *sizes,
        *_compare(name, rates, "decode/full", "decode/tiled"),
        *_compare(name, rates, "sample/full", "sample/whole"),
    ]


def _compare(name: str, rates: Mapping[str, list[float]], full_way: str, way: str) -> list[Result]:
    """Return the rows of full decoding, of our decoder, and of TurboJPEG on the same tiles."""
    by_turbojpeg = f"{way.partition('/')[0]}/tiled-turbojpeg"
    full = summarise(f"{full_way}/{name}", RATE, rates[full_way])
    ours, turbojpeg = (
        summarise(
            f"{each}/{name}", RATE, rates[each], baseline=full, baseline_values=rates[full_way]
        )
        for each in (way, by_turbojpeg)
    )
    against = summarise(
        f"{way}-against-turbojpeg/{name}",
        RATE,
        rates[way],
        baseline=turbojpeg,
        baseline_values=rates[by_turbojpeg],
    )
    return [full, ours, turbojpeg, against]
