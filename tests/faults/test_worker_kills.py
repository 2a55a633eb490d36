"""Workers killed at random, which blames no sample; and a sample that kills every worker."""

import random
import signal
from pathlib import Path

import psutil

from feeder.dataset.opened import Dataset
from feeder.wire.messages import Failed
from tests.faults.client import fetch
from tests.support.daemon import (
    RawClient,
    check_batch,
    customised,
    failed_batches,
    serve,
    small_recipe,
    wait_until,
)

OPTIONS = ("--chunk-images", "2", "--lease-s", "600", "--decoded-bytes", "0")
KILLS = 6
SHORT_PAUSES = """
import sys
if "feeder.node" in sys.orig_argv:
    import feeder.node.worker_pool
    feeder.node.worker_pool._BACKOFF_MAX_S = 0.4
"""
"""Else the pauses before the next worker, which reach 5 s, are most of the time."""


def test_workers_killed_at_random_lose_no_batch_and_blame_no_sample(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    """Each kill comes as soon as another worker exists, whether ready or still starting."""
    recipe, rng = small_recipe(), random.Random(11)
    environ = customised(tmp_path, SHORT_PAUSES)
    with (
        serve(packed, *OPTIONS, environ=environ) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        client.hello(recipe)
        killed: set[psutil.Process] = set()
        epoch = 0
        while len(killed) < KILLS:
            keys = tuple((epoch, index) for index in range(4))
            client.want(*keys)
            wait_until(lambda: set(daemon.workers()) - killed, "there is a worker to kill")
            victim = rng.choice(sorted(set(daemon.workers()) - killed, key=lambda each: each.pid))
            victim.kill()
            killed.add(victim)
            for key in keys:
                check_batch(dataset, recipe, key, client.take(key))
            client.want(release=keys)
            epoch += 1
        fetch(client, dataset, (epoch, 0))
        counters = daemon.counters()
        assert not failed_batches(counters)
        assert counters["worker_restarts"] == KILLS
        assert counters["node_restarts"] == 0
        assert not any("damaged sample" in line for line in daemon.lines)


def test_workers_killed_while_starting_do_not_end_the_daemon(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    with serve(packed, environ=customised(tmp_path, SHORT_PAUSES)) as daemon:
        for killed in range(1, 5):  # 3 in a row used to end it
            wait_until(daemon.workers, "a worker is starting")
            for worker in daemon.workers():
                worker.kill()
            wait_until(
                lambda n=killed: daemon.counters()["worker_restarts"] > n, "it has been replaced"
            )  # type: ignore[misc]
        assert daemon.counters()["worker_starts_failed"] > 0
        assert daemon.counters()["worker_pause_s"] > 0
        with RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            fetch(client, dataset, (0, 0))


def test_sample_that_kills_every_worker_is_blamed(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    recipe = small_recipe("val")
    code = f"""{SHORT_PAUSES}
import os
if "feeder.worker" in sys.orig_argv:
    from feeder.dataset.opened import Dataset
    def read_blob(self, place, into, read=Dataset.read_blob):
        if place.sample_id == 17:
            os.kill(os.getpid(), {int(signal.SIGSEGV)})
        return read(self, place, into)
    Dataset.read_blob = read_blob
"""
    plan = recipe.plan_epoch(dataset.layout, seed=3, epoch=0)
    batch, row = next(
        (index, list(plan.samples(index)).index(17))
        for index in range(plan.batches)
        if 17 in plan.samples(index)
    )
    other = (batch + 1) % plan.batches
    with (
        serve(packed, *OPTIONS, environ=customised(tmp_path, code)) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        client.hello(recipe)
        client.want((0, batch), (0, other))
        check_batch(dataset, recipe, (0, other), client.take((0, other)))
        message = client.others[-1] if client.others else None
        while not isinstance(message, Failed):
            message = client.receive()
        first = row // 2 * 2
        assert (message.code, message.index) == ("worker-died", batch)
        assert f"rows {first} .. {first + 1}" in message.message
        assert "crashed 3 workers that had no other rows to fill" in message.message
