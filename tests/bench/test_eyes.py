"""``feeder-bench eyes`` on few batches."""

import os
from pathlib import Path

import pytest

from bench.stream.eyes import EyesOptions, measure_eyes
from tests.support.synthetic_sets import pack_synthetic


@pytest.mark.extensive("a whole run of the bench")
def test_a_watched_daemon_is_measured_against_an_unwatched_one(tmp_path: Path) -> None:
    packed = pack_synthetic(tmp_path, images=150)
    options = EyesOptions(rounds=1, batches=2, idle_s=0.5, cores=frozenset(os.sched_getaffinity(0)))
    report = measure_eyes(packed, options)
    rows = {row.name: row for row in report.results}
    assert [*rows] == [
        *("eyes/alone", "eyes/watched", "eyes/idle-connections"),
        *("eyes/scrape-p50", "eyes/scrape-p99", "eyes/idle-cpu"),
    ]
    assert rows["eyes/watched"].ratio is not None
    assert 0 < rows["eyes/scrape-p50"].value <= rows["eyes/scrape-p99"].value
