"""The quality loss of DCT scaling: PSNR of scaled crops against the same crops unscaled.

Without scaling a sample equals Pillow's resize of the full decode bit for bit, which the decode
bench checks, so the unscaled sample is the reference.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..report import Result, single

EPOCHS: Final = 20
"""Epochs whose crops are compared: one in 25 of ImageNet's is large enough to be scaled."""

_IDENTICAL_DB: Final = 100.0


def measure_scaling(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64]
) -> list[Result]:
    """Return the distribution of PSNR, in dB over all bytes of an image; [] if none is scaled."""
    records = dataset.read_records(sample_ids)
    grids = McuGrids.of_records(records)
    plain = msgspec.structs.replace(recipe, dct_scaling=False)
    readers = SampleReader(dataset, recipe), SampleReader(dataset, plain)
    ratios_db: list[float] = []
    for epoch in range(EPOCHS):
        crops = plan_crops(
            recipe,
            seed=0,
            epoch=epoch,
            sample_ids=sample_ids,
            widths=grids.width,
            heights=grids.height,
        )
        chosen = sample_ids[crops.scales > 1]
        scaled, exact = (_levels(reader, chosen, recipe.image_size, epoch) for reader in readers)
        errors = np.mean((scaled - exact) ** 2, axis=(1, 2, 3))
        exact_ones = errors == 0
        errors[exact_ones] = 1
        ratios = np.where(exact_ones, _IDENTICAL_DB, 10 * np.log10(255**2 / errors))
        ratios_db += ratios.tolist()
    if not ratios_db:
        return []
    mean = Result(
        name="quality/scaled-psnr",
        value=float(np.mean(ratios_db)),
        unit="dB",
        min=min(ratios_db),
        max=max(ratios_db),
    )
    shares = (5, 25, 50, 75, 95)
    return [
        mean,
        *(
            single(f"quality/scaled-psnr-p{share}", "dB", float(np.percentile(ratios_db, share)))
            for share in shares
        ),
        single("quality/scaled-crops", "crops", len(ratios_db)),
    ]


def _levels(
    reader: SampleReader, sample_ids: NDArray[np.int64], size: int, epoch: int
) -> NDArray[np.float64]:
    pixels = np.empty((len(sample_ids), size, size, 3), np.int8)
    labels = np.empty(len(sample_ids), np.int64)
    if len(sample_ids):
        reader.fill(sample_ids, seed=0, epoch=epoch, pixels=pixels, labels=labels)
    return pixels.astype(np.float64)
