"""What a node process starts with: the datasets that the daemon started with, and its workers."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from feeder.dataset.manifest import load_manifest
from feeder.errors import DatasetError, ResourceError
from feeder.metrics.records import NodeRecord
from feeder.node.datasets import RETRY_S, NodeDatasets
from feeder.node.polling import PollSet
from feeder.node.worker_pool import WorkerPool
from feeder.session.admission import ServedDataset
from feeder.worker.messages import Configure, DatasetSource
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


def test_a_missing_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    configure = Configure(datasets={}, open_shards=8, self_test=True)
    pool = WorkerPool(3, configure, PollSet(), print, NodeRecord())
    line = r"a worker cannot be started: .*No such file.*/python'?: check that the installation"
    with pytest.raises(ResourceError, match=line):
        pool.start()
    with pytest.raises(ResourceError, match=line):
        pool.run_due(1.0)
    pool.close()
