"""The quality loss of DCT scaling: PSNR of scaled crops against the same crops unscaled.

Without scaling a sample equals Pillow's resize of the full decode bit for bit, which the decode
bench checks, so the unscaled sample is the reference.
"""

import math
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..report import Result, single, summarise
from .contenders import Filling

EPOCHS: Final = 20
"""Epochs whose crops are compared: one in 25 of ImageNet's is large enough to be scaled."""

_IDENTICAL_DB: Final = 100.0


def measure_scaling(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64]
) -> list[Result]:
    """Return the distribution of PSNR, in dB over all bytes of an image; [] if none is scaled."""
    grids = McuGrids.of_records(dataset.read_records(sample_ids))
    plain = msgspec.structs.replace(recipe, dct_scaling=False)
    readers = SampleReader(dataset, recipe), SampleReader(dataset, plain)
    values_db: list[float] = []
    for epoch in range(EPOCHS):
        sizes = {"widths": grids.width, "heights": grids.height}
        crops = plan_crops(recipe, seed=0, epoch=epoch, sample_ids=sample_ids, **sizes)
        chosen = sample_ids[crops.scales > 1]
        if chosen.size:
            scaled, exact = (
                Filling(recipe, chosen, images=len(chosen), epoch=epoch) for _ in readers
            )
            for filling, reader in zip((scaled, exact), readers, strict=True):
                filling.of(reader)(0, len(chosen))
            values_db += map(psnr_db, scaled.pixels, exact.pixels)
    if not values_db:
        return []
    name = "quality/scaled-psnr"
    shares = (5, 25, 50, 75, 95)
    mean = replace(summarise(name, "dB", values_db), value=float(np.mean(values_db)))
    percentiles = np.percentile(values_db, shares).tolist()
    rows = [single(f"{name}-p{s}", "dB", v) for s, v in zip(shares, percentiles, strict=True)]
    return [mean, *rows, single("quality/scaled-crops", "crops", len(values_db))]


def psnr_db(levels: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the PSNR of 8-bit levels in dB, at most that of identical ones."""
    error = float(np.mean(np.square(levels.astype(np.float64) - expected)))
    return _IDENTICAL_DB if error == 0 else 10 * math.log10(255**2 / error)
