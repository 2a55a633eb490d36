"""The decoded cache in the real daemon: filled by several workers, and shared by jobs."""

import os
import shutil
from pathlib import Path

import psutil
import pytest

from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from tests.support.daemon import SAMPLES, RawClient, check_batch, serve, small_recipe
from tests.support.sources import make_source, pack

EPOCHS_TO_FILL = 40
"""In one of a few epochs each image is decoded whole and kept."""


def take_epoch(
    endpoint: str, dataset: Dataset, recipe: Recipe, *, seed: int = 3, epoch: int = 0
) -> list[bytes]:
    """Take an epoch in a session of its own; compare each batch with the one made here."""
    with RawClient(endpoint) as client:
        batches = client.hello(recipe, seed=seed).batches
        pixels = take_batches(client, batches, dataset, recipe, seed=seed, epoch=epoch)
        client.bye()
    return pixels


def take_batches(
    client: RawClient,
    batches: int,
    dataset: Dataset,
    recipe: Recipe,
    *,
    seed: int,
    epoch: int,
    taken: tuple[int, int] | None = None,
) -> list[bytes]:
    """Take an epoch's batches, each compared; ``taken`` is what is released first."""
    pixels = []
    for index in range(batches):
        client.want((epoch, index), release=(taken,) if taken else ())
        taken = epoch, index
        arrived = client.take(taken)
        check_batch(dataset, recipe, taken, arrived, seed=seed)
        pixels.append(arrived.pixels.tobytes())
    return pixels


def test_a_second_evaluation_has_the_same_bytes_and_decodes_nothing(
    packed: Path, dataset: Dataset
) -> None:
    recipe = small_recipe("val")
    with serve(packed, "--decoded-bytes", str(8 << 20)) as daemon:
        daemon.wait_line(r"decoded cache: 0.01 GB a node process \(decoded_bytes: command")
        first = take_epoch(daemon.endpoint, dataset, recipe)
        before = daemon.counters()
        assert (before["cache.hits"], before["cache.misses"]) == (0, SAMPLES)
        assert before["cache.fills"] == before["cache_entries"] == SAMPLES
        assert take_epoch(daemon.endpoint, dataset, recipe) == first
        after = daemon.counters()
    assert (after["cache.hits"], after["cache.misses"]) == (SAMPLES, SAMPLES)
    assert after["images"] == 2 * SAMPLES
    for stage in ("read", "decode", "resize"):
        assert after[f"stage_seconds.{stage}"] == before[f"stage_seconds.{stage}"] > 0
    assert before["cache_used_bytes"] < after["cache_budget_bytes"] == 8 << 20


def test_jobs_with_other_seeds_find_all_images_decoded(tmp_path: Path) -> None:
    pack(make_source(tmp_path / "source", SAMPLES, side=240), tmp_path / "dataset", shards=5)
    recipe = small_recipe(image_size=160, resize_size=160, dct_scaling=False, last_batch="pad")
    with (
        serve(tmp_path / "dataset", "--decoded-bytes", "auto") as daemon,
        Dataset.open(tmp_path / "dataset") as dataset,
    ):
        with RawClient(daemon.endpoint) as client:  # what may be filled is saved up in a session
            batches = client.hello(recipe, seed=1).batches
            for epoch in range(EPOCHS_TO_FILL):
                last = (epoch - 1, batches - 1) if epoch else None
                take_batches(client, batches, dataset, recipe, seed=1, epoch=epoch, taken=last)
                if daemon.counters()["cache_entries"] == SAMPLES:
                    break
        first = daemon.counters()
        assert first["cache_entries"] == SAMPLES, "the first job has filled the cache"
        for seed in (2, 3):
            take_epoch(daemon.endpoint, dataset, recipe, seed=seed)
        after = daemon.counters()
    unchanged = ("cache.misses", "cache.fills", "cache_used_bytes", "stage_seconds.decode")
    assert {name: after[name] for name in unchanged} == {name: first[name] for name in unchanged}
    assert after["cache.hits"] - first["cache.hits"] == 2 * SAMPLES


def read_from_storage(processes: list[psutil.Process]) -> int:
    return sum(process.io_counters().read_bytes for process in processes)


def drop_pages(folder: Path) -> None:
    """Have the kernel forget the contents of a dataset's files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_jobs_with_other_seeds_read_nothing_from_storage(packed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "copy"))
    with serve(folder) as daemon, Dataset.open(packed) as dataset:
        storage = [read_from_storage(daemon.workers())]
        drop_pages(folder)
        for seed in (1, 2, 3):
            take_epoch(daemon.endpoint, dataset, small_recipe(), seed=seed)
            storage.append(read_from_storage(daemon.workers()))
    if storage[1] == storage[0]:
        pytest.skip("files in the folder for tests are in memory, as on tmpfs")
    assert storage[1:] == [storage[1]] * 3, "the second and third job read nothing from storage"
