"""Jobs share a real daemon's workers as their weights are, whatever their number of sessions."""

import json
import os
import time
from math import inf
from pathlib import Path

import pytest

from feeder.client.stats import request_report
from feeder.metrics.fields import growth
from feeder.metrics.records import BOUNDS_S, Histogram, JobRecord, NodeRecord
from feeder.plan.recipe import Recipe
from tests.node.greedy_jobs import GreedyClients, GreedyJob
from tests.support.daemon import DEADLINE_S, Daemon, customised, serve, small_recipe, wait_until
from tests.support.sources import call_feeder

ROWS = 1_600
"""The fewest over which shares are counted."""

SLOW = """
import sys
if "feeder.worker" in sys.orig_argv:
    import time
    from feeder.sample.reader import SampleReader

    def fill(self, ids, *, pixels, fill=SampleReader.fill, **others):
        fill(self, ids, pixels=pixels, **others)
        time.sleep(len(ids) * pixels.shape[1] * 60e-6)

    SampleReader.fill = fill
"""
"""A sitecustomize: workers take 2 ms more for a row of 32 px, longer than other processes need for
it, so that jobs wait for workers also on a busy machine."""

LOAD_DEADLINE_S = 600.0


def recipe(image_size: int = 32) -> Recipe:
    return small_recipe(batch_size=48, image_size=image_size, resize_size=image_size)


def serve_slowly(packed: Path, folder: Path, weights: str = "") -> Daemon:
    config = folder / "feeder.toml"
    config.write_text(f'[weights."user {os.getuid()}"]\n{weights}\n' if weights else "")
    options = ("--config", config, "--chunk-images", "8", "--lease-s", "600")
    environ = customised(folder, SLOW)
    return serve(packed, *options, bind=f"ipc://{folder}/n", workers=1, environ=environ)


def time_shares(daemon: Daemon, jobs: list[GreedyJob]) -> tuple[list[float], list[JobRecord]]:
    """Return the jobs' shares of the worker's time between two reports, and what each got.

    A job may be one chunk ahead of its share at any moment, and a chunk takes a second if its
    worker is stopped. So the load goes on until the slowest chunk is at most a tenth of the time.
    """
    with GreedyClients(daemon.endpoint, jobs) as clients:
        while not all(job.batches >= job.sessions for job in jobs):
            clients.turn(DEADLINE_S)
        early = take_record(daemon, clients)
        until_s = time.monotonic() + LOAD_DEADLINE_S
        while time.monotonic() < until_s:
            late = take_record(daemon, clients)
            done = growth(early, late)
            before, now = by_name(early), by_name(late)
            got = [growth(before[job.name], now[job.name]) for job in jobs]
            total_s = sum(job.worker_s for job in got)
            assert sum(job.images for job in got) == done.images
            # One worker: only the chunk that it had at the first report can have begun before.
            assert total_s <= late.clock_s - early.clock_s + slowest_s(done.chunk_s)
            if done.images >= ROWS and total_s >= 10 * slowest_s(done.chunk_s):
                return [job.worker_s / total_s for job in got], got
    raise AssertionError(f"{done.images} images in {total_s:.1f} s of a worker, but {done.chunk_s}")


def take_record(daemon: Daemon, clients: GreedyClients) -> NodeRecord:
    """Return the node process's record with all jobs; the load goes on meanwhile."""
    names = {job.name for job in clients.jobs}
    until_s = time.monotonic() + LOAD_DEADLINE_S
    while time.monotonic() < until_s:
        clients.run_until_rows(50, LOAD_DEADLINE_S)
        record = request_report(daemon.endpoint, DEADLINE_S).nodes[0].now
        if record is not None and names <= by_name(record).keys():
            return record
    raise AssertionError(f"no report with the jobs {names} within {LOAD_DEADLINE_S:g} s")


def slowest_s(chunk_s: Histogram) -> float:
    """The upper bound of the slowest chunk's bucket."""
    return max((s for s, count in zip((*BOUNDS_S, inf), chunk_s.counts, strict=True) if count))


def by_name(record: NodeRecord) -> dict[str, JobRecord]:
    return {job.name: job for job in record.jobs}


@pytest.mark.parametrize(
    ("weights", "jobs", "shares"),
    [
        (
            "half = 0.5",
            [
                GreedyJob("small", recipe(32), sessions=2),
                GreedyJob("large", recipe(96), seed=4),
                GreedyJob("half", recipe(40), sessions=4, seed=5),
            ],
            [0.4, 0.4, 0.2],
        ),
        (
            "three = 3",
            [GreedyJob("three", recipe()), GreedyJob("", recipe(), sessions=8, seed=4)],
            [0.75, 0.25],
        ),
        pytest.param(
            "",
            [GreedyJob("one", recipe()), GreedyJob("many", recipe(), sessions=8, seed=4)],
            [0.5, 0.5],
            marks=pytest.mark.extensive("equal weights; make test has unequal ones"),
        ),
    ],
    ids=["time rather than images", "unnamed sessions are one job", "equal"],
)
def test_jobs_share_the_workers_time_by_weight_whatever_their_sessions(
    packed: Path, tmp_path: Path, weights: str, jobs: list[GreedyJob], shares: list[float]
) -> None:
    with serve_slowly(packed, tmp_path, weights) as daemon:
        found, got = time_shares(daemon, jobs)
    assert found == pytest.approx(shares, abs=0.05)
    if jobs[0].name == "small":
        assert got[0].images > 1.5 * got[1].images, "a job of small images gets more of them"


def test_status_shows_what_each_job_has_got(packed: Path, tmp_path: Path) -> None:
    jobs = [GreedyJob("one", recipe()), GreedyJob("two", recipe(), sessions=2, seed=4)]
    with serve_slowly(packed, tmp_path) as daemon:
        with GreedyClients(daemon.endpoint, jobs) as clients:
            while not all(job.batches >= 3 * job.sessions for job in jobs):
                clients.turn(DEADLINE_S)
        batches = {job.name: job.batches for job in jobs}

        def are_counted() -> bool:
            report = request_report(daemon.endpoint, DEADLINE_S)
            now, before = report.nodes[0].now, report.nodes[0].before
            found = by_name(now) if now else {}
            return before is not None and all(
                name in found and found[name].batches >= number for name, number in batches.items()
            )

        wait_until(are_counted, "a report has the jobs")
        shown = json.loads(call_feeder("status", daemon.endpoint, "--json").stdout)
        text = call_feeder("status", daemon.endpoint).stdout
    rates = {job["name"]: job for job in shown["rates"]["jobs"]}
    assert {rates[name]["account"] for name in batches} == {f"user {os.getuid()}"}
    assert all(rates[name]["batches"] >= number for name, number in batches.items())
    assert "of workers" in text
