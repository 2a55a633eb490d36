"""Feeder in this process: ``SampleReader`` over the packed dataset, as a daemon's worker has it."""

from collections.abc import Iterator

import numpy as np
from protocol import SIZE_PX, Pixels, Work, serve

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import check_libraries, library_versions, tune_allocator
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

_CHUNK_IMAGES = ServeConfig().chunk_images


def _batches(work: Work) -> Iterator[Pixels]:
    recipe = Recipe.for_split("train", batch_size=work.batch)
    pixels = np.empty((work.batch, SIZE_PX, SIZE_PX, 3), np.int8)
    labels = np.empty(work.batch, np.int64)
    with Dataset.open(work.dataset) as dataset:
        reader = SampleReader(dataset, recipe)
        epoch = 0
        while True:
            plan = recipe.plan_epoch(dataset.layout, seed=0, epoch=epoch)
            for index in range(plan.batches):
                for first in range(0, work.batch, _CHUNK_IMAGES):
                    sample_ids = plan.samples(index, first, _CHUNK_IMAGES)
                    rows = slice(first, first + len(sample_ids))
                    reader.fill(
                        sample_ids, seed=0, epoch=epoch, pixels=pixels[rows], labels=labels[rows]
                    )
                yield pixels
            epoch += 1


def _versions() -> dict[str, str]:
    """Return the versions that determine the speed, as in the bench's header."""
    versions = library_versions()
    return {name: versions[name] for name in ("feeder", "libjpeg-turbo")}


if __name__ == "__main__":
    work = Work.from_command_line()
    check_libraries()
    tune_allocator()
    serve(_batches(work), versions=_versions())
