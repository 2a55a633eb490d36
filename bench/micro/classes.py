"""Our decoder, TurboJPEG and full decoding for classes of images.

The classes are each subsampling, sizes, and two halves by a hash of the names: code that is tuned
with the images of one half must show the same gain in the other.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.recode import Subsampling
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..fetcher import CHUNK_IMAGES
from ..report import RATE, Result, align, compare, single
from ..rounds import Contender, measure, rates
from .contenders import PreparedSamples, compare_sizes

FEWEST: Final = 8  # images that a class needs to be measured: fewer are not representative

_SIZES: Final = (("small", 0, 100_000), ("medium", 100_000, 250_000), ("large", 250_000, 2**63))
"""Name, minimum pixels, and the bound that the pixels must stay below."""

_HALVES: Final = ("tune", "held-out")


def measure_classes(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    *,
    rounds: int,
    decoder: Decoder,
) -> list[Result]:
    """Return the rows of classes that have FEWEST images; ``decoder`` is of ``sample/whole/…``."""
    results: list[Result] = []
    for name, members in _classes(dataset, sample_ids):
        ids = sample_ids[members]
        if len(ids) < FEWEST:
            continue
        with PreparedSamples(dataset, recipe, ids) as samples:
            contenders: dict[str, Contender] = {
                f"decode/full/{name}": samples.decode_full,
                f"decode/tiled/{name}": samples.decode_tiled,
                f"decode/tiled-turbojpeg/{name}": samples.decode_tiled_turbojpeg,
                f"sample/full/{name}": samples.sample_full,
                f"sample/whole/{name}": samples.of(SampleReader(dataset, recipe, decoder=decoder)),
                f"sample/tiled-turbojpeg/{name}": samples.sample_tiled_turbojpeg,
            }
            taken = measure(
                contenders,
                rounds=rounds,
                items=len(ids),
                piece=CHUNK_IMAGES,
                verb=None,
                after_round=samples.begin_next_epoch,
            )
            results.append(single(f"dataset/images/{name}", "images", len(ids)))
            results += compare_sizes(samples, f"/{name}")
        baselines: dict[str, str | None] = {}
        for what, way in (("decode", "tiled"), ("sample", "whole")):
            full, turbojpeg = f"{what}/full/{name}", f"{what}/tiled-turbojpeg/{name}"
            baselines |= {full: None, f"{what}/{way}/{name}": full, turbojpeg: full}
            baselines[f"{what}/{way}-against-turbojpeg/{name}"] = turbojpeg
        results += compare(rates(taken, len(ids)), RATE, baselines)
    return results


def is_of_class(result: Result) -> bool:
    """Return whether ``measure_classes`` has made the row."""
    return result.name.count("/") == 2


def format_classes(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table of the classes whose rows are among ``results``."""
    rows = {result.name: result for result in results if is_of_class(result)}
    names = [name.rpartition("/")[2] for name in rows if name.startswith("dataset/images/")]
    heads = ("TurboJPEG", "gain")
    table = [["", "n", "size", "decode", *heads, "sample", *heads, "× full"]]
    for name in names:
        cells = [name, f"{rows[f'dataset/images/{name}'].value:.0f}"]
        cells.append(f"{rows[f'dataset/blob/{name}'].ratio:.2f}")
        for what, way in (("decode", "tiled"), ("sample", "whole")):
            for each in (way, "tiled-turbojpeg"):
                cells.append(f"{1e6 / rows[f'{what}/{each}/{name}'].value:,.0f}")
            cells.append(f"{rows[f'{what}/{way}-against-turbojpeg/{name}'].ratio:.2f}")
        table.append([*cells, f"{rows[f'sample/whole/{name}'].ratio:.2f}"])
    heading = (
        "µs an image by class (n images): our decoder, and TurboJPEG on the same tiles;",
        "size: bytes of the blobs over those of ordinary JPEGs",
    )
    return [*heading, *align(table, left={0})] if names else []


def half_of(name: str) -> str:
    """Return the half that a sample of this name is in, ``tune`` or ``held-out``."""
    return _HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


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
