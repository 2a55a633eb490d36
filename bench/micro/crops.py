"""Several crops of a sample from shared decodes, against as many samples of one crop each."""

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..fetcher import CHUNK_IMAGES
from ..report import Result, compare, single
from ..rounds import Contender, measure, rates

CROPS = ((2, 224, (0.4, 1.0)), (6, 96, (0.05, 0.4)))


def measure_crops(
    dataset: Dataset, sample_ids: NDArray[np.int64], *, rounds: int, decoder: Decoder
) -> list[Result]:
    """Return the rows ``crops/…``: samples of CROPS a second, and what is decoded for them."""
    recipe = Recipe.for_split("train", batch_size=CHUNK_IMAGES, crops=CROPS)
    pixels = [np.empty((CHUNK_IMAGES, size, size, 3), np.int8) for size in recipe.crop_sizes]
    labels = np.empty(CHUNK_IMAGES, np.int64)
    together = SampleReader(dataset, recipe, decoder=decoder)
    apart = [SampleReader(dataset, one, decoder=decoder) for one in recipe.of_crops()]
    epoch = 0

    def make_together(first: int, end: int) -> None:
        crops = [crop[: end - first] for crop in pixels]
        together.fill(
            sample_ids[first:end],
            seed=0,
            epoch=epoch,
            pixels=crops[0],
            labels=labels[: end - first],
            further=crops[1:],
        )

    def make_apart(first: int, end: int) -> None:
        for seed, (reader, crop) in enumerate(zip(apart, pixels, strict=True)):
            rows = crop[: end - first], labels[: end - first]
            reader.fill(
                sample_ids[first:end], seed=seed, epoch=epoch, pixels=rows[0], labels=rows[1]
            )

    def begin_next_epoch(_: object) -> None:
        nonlocal epoch
        epoch += 1

    contenders: dict[str, Contender] = {"crops/together": make_together, "crops/apart": make_apart}
    taken = measure(
        contenders,
        rounds=rounds,
        items=len(sample_ids),
        piece=CHUNK_IMAGES,
        verb=None,
        after_round=begin_next_epoch,
    )
    baselines: dict[str, str | None] = {"crops/together": "crops/apart", "crops/apart": None}
    decoded = together.decoded_bytes / sum(reader.decoded_bytes for reader in apart)
    return [
        *compare(rates(taken, len(sample_ids)), "samples/s", baselines),
        single("crops/decoded", "%", 100 * decoded),
    ]
