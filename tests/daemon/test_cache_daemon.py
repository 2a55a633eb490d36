"""The decoded cache in the real daemon: several workers fill it, and its counters show that."""

import signal
from pathlib import Path

from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from tests.support.daemon import (
    SAMPLES,
    RawClient,
    check_batch,
    serve,
    small_recipe,
    wait_until,
)

BATCHES = -(-SAMPLES // 10)


def take_epoch(client: RawClient, dataset: Dataset, recipe: Recipe, epoch: int) -> list[bytes]:
    """Take all batches of an epoch; compare each with the one made here without a cache."""
    batches = BATCHES if recipe.split == "val" else SAMPLES // recipe.batch_size
    pixels = []
    for index in range(batches):
        client.want((epoch, index), release=((epoch, index - 1),) if index else ())
        arrived = client.take((epoch, index))
        check_batch(dataset, recipe, (epoch, index), arrived)
        pixels.append(arrived.pixels.tobytes())
    client.want(release=((epoch, batches - 1),))
    return pixels


def test_a_second_evaluation_has_the_same_bytes_and_decodes_nothing(
    packed: Path, dataset: Dataset
) -> None:
    recipe = small_recipe("val")
    with serve(packed, "--decoded-bytes", str(8 << 20)) as daemon:
        daemon.wait_line(r"decoded cache: 0.01 GB a node process \(decoded_bytes: command")
        with RawClient(daemon.endpoint) as client:
            client.hello(recipe)
            first = take_epoch(client, dataset, recipe, 0)
            before = daemon.counters()
            assert (before["cache.hits"], before["cache.misses"]) == (0, SAMPLES)
            assert before["cache.fills"] == before["cache_entries"] == SAMPLES
            assert take_epoch(client, dataset, recipe, 1) == first
            after = daemon.counters()
        assert (after["cache.hits"], after["cache.misses"]) == (SAMPLES, SAMPLES)
        assert after["images"] == 2 * SAMPLES
        for stage in ("read", "decode", "resize"):
            assert after[f"stage_seconds.{stage}"] == before[f"stage_seconds.{stage}"] > 0
        assert before["cache_used_bytes"] < after["cache_budget_bytes"] == 8 << 20
        assert daemon.stop()[0] == 0


def test_training_fills_the_cache_in_a_few_epochs_even_if_a_worker_is_killed(
    packed: Path, dataset: Dataset
) -> None:
    recipe = small_recipe(image_size=48, dct_scaling=False)
    with (
        serve(packed, "--decoded-bytes", "auto") as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        client.hello(recipe)
        take_epoch(client, dataset, recipe, 0)
        daemon.workers()[0].send_signal(signal.SIGKILL)
        for epoch in range(1, 12):
            take_epoch(client, dataset, recipe, epoch)
        wait_until(lambda: daemon.counters()["worker_restarts"] == 1, "it is replaced")
        counters = daemon.counters()
        assert counters["cache_entries"] == SAMPLES
        assert counters["cache.hits"] > 4 * SAMPLES
        assert counters["stage_seconds.fill"] > 0
        assert daemon.stop()[0] == 0


def test_without_a_cache_nothing_is_cached(packed: Path, dataset: Dataset) -> None:
    recipe = small_recipe("val")
    with serve(packed, "--decoded-bytes", "0") as daemon:
        daemon.wait_line(r"decoded cache: off \(cache.decoded_bytes: command line\)")
        with RawClient(daemon.endpoint) as client:
            client.hello(recipe)
            for epoch in range(2):
                take_epoch(client, dataset, recipe, epoch)
        counters = daemon.counters()
        assert counters["cache_budget_bytes"] == counters["cache_used_bytes"] == 0
        assert counters["cache.hits"] == counters["cache.misses"] == 0
