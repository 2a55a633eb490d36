"""Jobs of one dataset with different seeds share its decoded cache."""

from pathlib import Path

import pytest

from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from tests.support.daemon import RawClient, check_batch, serve, small_recipe
from tests.support.sources import make_source, pack

SAMPLES = 53
EPOCHS_TO_FILL = 40
"""In one of a few epochs each image of this dataset is decoded whole and kept."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job-caches")
    pack(make_source(folder / "source", SAMPLES, side=240), folder / "dataset", shards=5)
    return folder / "dataset"


def take_epoch(endpoint: str, packed: Path, recipe: Recipe, *, seed: int, epoch: int = 0) -> None:
    """Take an epoch in a session of its own, and compare its batches with some made here."""
    with Dataset.open(packed) as dataset, RawClient(endpoint) as client:
        welcome = client.hello(recipe, seed=seed)
        for index in range(welcome.batches):
            client.want((epoch, index), release=((epoch, index - 1),) if index else ())
            arrived = client.take((epoch, index))
            check_batch(dataset, recipe, (epoch, index), arrived, seed=seed)
        client.bye()


@pytest.mark.parametrize("split", ["train", "val"])
def test_other_seeds_find_all_images_decoded(packed: Path, split: str) -> None:
    is_train = split == "train"
    recipe = (
        small_recipe(image_size=160, resize_size=160, dct_scaling=False, last_batch="pad")
        if is_train
        else small_recipe("val")
    )
    with serve(packed, "--decoded-bytes", str(64 << 20)) as daemon:
        for epoch in range(EPOCHS_TO_FILL if is_train else 1):
            take_epoch(daemon.endpoint, packed, recipe, seed=1, epoch=epoch)
            if daemon.counters()["cache_entries"] == SAMPLES:
                break
        first = daemon.counters()
        assert first["cache_entries"] == SAMPLES, "the first job has filled the cache"
        for seed in (2, 3):
            take_epoch(daemon.endpoint, packed, recipe, seed=seed)
        after = daemon.counters()
    assert after["cache.misses"] == first["cache.misses"]
    assert after["cache.fills"] == first["cache.fills"]
    assert after["cache_used_bytes"] == first["cache_used_bytes"]
    assert after["cache.hits"] - first["cache.hits"] == 2 * SAMPLES
    assert after["stage_seconds.decode"] == first["stage_seconds.decode"]
