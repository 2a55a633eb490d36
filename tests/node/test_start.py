"""What a node process starts with: the datasets that the daemon started with, and its workers."""

import os
import shutil
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.dataset.manifest import load_manifest
from feeder.errors import DatasetError, ResourceError
from feeder.metrics.records import NodeRecord
from feeder.node.datasets import RETRY_S, NodeDatasets
from feeder.node.polling import PollSet
from feeder.node.worker_pool import _BACKOFF_MIN_S, _YOUNG_S, WorkerPool, _Worker
from feeder.session.admission import ServedDataset
from feeder.wire.chunk_work import Filled
from feeder.worker.index_memory import IndexMemory
from feeder.worker.messages import Configure, DatasetSource, WorkerToNode
from tests.support.sources import make_source, pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pack(make_source(tmp_path / "source", 3), tmp_path / "dataset")
    return tmp_path / "dataset"


def source(folder: Path, fingerprint: str = "") -> DatasetSource:
    fingerprint = fingerprint or load_manifest(folder).fingerprint
    return DatasetSource(folder=os.fsencode(folder), fingerprint=fingerprint)


def test_the_first_process_opens_all_or_none(folder: Path) -> None:
    datasets = NodeDatasets({"d": source(folder)}, print, is_successor=False)
    assert datasets.sizes["d"].samples == 3
    assert datasets.deadline_s == float("inf")
    with pytest.raises(DatasetError, match="is of another dataset than the one that is served"):
        NodeDatasets({"d": source(folder, "f" * 64)}, print, is_successor=False)


def test_a_successor_leaves_out_what_it_cannot_open_until_it_can(folder: Path) -> None:
    sources = {"d": source(folder), "e": source(folder)}
    sources["gone"] = source(folder.parent / "gone\udcff", sources["d"].fingerprint)
    sources["other"] = source(folder, "f" * 64)
    mended_s: list[float] = []
    datasets = NodeDatasets(sources, mended_s.append, is_successor=True)
    assert set(datasets.sizes) == {"d", "e"}
    assert isinstance(datasets.served["d"], ServedDataset)
    assert b"dataset gone cannot be served: " in str(datasets.served["gone"]).encode()
    assert "restore the old one or restart the daemon" in str(datasets.served["other"])
    datasets.run_due(10.0)
    assert (mended_s, datasets.deadline_s) == ([], 10.0 + RETRY_S)
    shutil.copytree(folder, folder.parent / "gone\udcff")
    datasets.run_due(10.0 + RETRY_S)
    assert mended_s == [10.0 + RETRY_S]
    assert datasets.deadline_s == float("inf"), "it restarts now"


CONFIGURE = Configure(datasets={}, open_shards=8, self_test=True)


class Workers:
    """A pool without processes, whose worker does what a test has it do."""

    def __init__(self) -> None:
        poll_set: Any = SimpleNamespace(remove=lambda _: None)
        indexes = IndexMemory({})
        self.pool = WorkerPool(1, CONFIGURE, poll_set, lambda *_: None, NodeRecord(), indexes)
        indexes.close()

    def report(self, message: WorkerToNode) -> None:
        worker: Any = SimpleNamespace(
            channel=SimpleNamespace(receive_with_fd=lambda: (message, None))
        )
        self.pool._read(worker, 0.0)

    def die(self, age_s: float) -> float:
        """Return the pause before the successor."""
        process: Any = SimpleNamespace(pid=1, returncode=1, wait=lambda _: None)
        channel: Any = SimpleNamespace(fileno=lambda: 0, close=lambda: None)
        worker = self.pool._workers[1] = _Worker(1, process, channel, inf, up_s=0.0)
        self.pool._reap(worker, age_s)
        return self.pool._start_s - age_s


def test_workers_that_die_young_are_replaced_with_backoff_others_at_once() -> None:
    ages = (0.0, 0.0, _YOUNG_S, 0.0)
    assert [*map(Workers().die, ages)] == [_BACKOFF_MIN_S, 2 * _BACKOFF_MIN_S, 0, _BACKOFF_MIN_S]


def test_what_workers_have_done_is_added_up() -> None:
    workers = Workers()
    for _ in range(2):
        workers.report(
            Filled(
                1,
                decoded_bytes=5,
                fallbacks=1,
                stage_seconds={"read": 0.5},
                cache_counts={"hits": 3},
            )
        )
    record = workers.pool.record
    assert (record.stages, record.cache.hits, record.decoded_bytes) == ({"read": 1.0}, 6, 10)
    assert workers.pool.counters.fallbacks == {"turbojpeg": 2}


def test_a_missing_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    indexes = IndexMemory({})
    pool = WorkerPool(3, CONFIGURE, PollSet(), print, NodeRecord(), indexes)
    indexes.close()
    line = r"a worker cannot be started: .*No such file.*/python'?: check that the installation"
    with pytest.raises(ResourceError, match=line):
        pool.start()
    with pytest.raises(ResourceError, match=line):
        pool.run_due(1.0)
    pool.close()
