"""Jobs of one dataset with different seeds share its page cache and its decoded cache."""

import contextlib
import itertools
import os
from pathlib import Path

import pytest

from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from tests.support.daemon import Daemon, RawClient, check_batch, small_recipe
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


def serve(packed: Path, *options: str) -> Daemon:
    served = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", "--workers", "2")
    return Daemon(*served, *options)


def drop_pages(folder: Path) -> None:
    """Have the kernel forget the contents of a dataset's files."""
    for path in folder.iterdir():
        with contextlib.ExitStack() as stack:
            fd = os.open(path, os.O_RDONLY)
            stack.callback(os.close, fd)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def io_of(pids: list[int]) -> tuple[int, int]:
    """Return the bytes that processes have had from storage, and all that they have read."""
    storage = requested = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        fields = {name: int(text) for name, _, text in (line.partition(":") for line in lines)}
        storage += fields["read_bytes"]
        requested += fields["rchar"]
    return storage, requested


def has_storage(folder: Path) -> bool:
    """Whether files of this folder come from storage once their pages are dropped."""
    drop_pages(folder)
    before, _ = io_of([os.getpid()])
    for path in folder.iterdir():
        path.read_bytes()
    return io_of([os.getpid()])[0] > before


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


def test_other_seeds_read_nothing_from_storage(packed: Path) -> None:
    if not has_storage(packed):
        pytest.skip("files in the folder for tests are in memory, as on tmpfs")
    recipe = small_recipe(image_size=160, resize_size=160, last_batch="pad")
    with serve(packed) as daemon:
        pids = [worker.pid for worker in daemon.workers()]
        drop_pages(packed)
        totals = [io_of(pids)]
        for seed in (1, 2, 3):
            take_epoch(daemon.endpoint, packed, recipe, seed=seed)
            totals.append(io_of(pids))
    pairs = list(itertools.pairwise(totals))
    storage = [after[0] - before[0] for before, after in pairs]
    requested = [after[1] - before[1] for before, after in pairs]
    blobs = sum(path.stat().st_size for path in packed.iterdir())
    assert storage[0] > 0.5 * blobs, "the first job reads the dataset from storage"
    assert max(storage[1:]) < 0.05 * storage[0]
    assert min(requested) > 0.5 * max(requested), "all three read as much from the page cache"
