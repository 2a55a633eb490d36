"""Workers that cannot be started: a passing shortage is retried, anything else is an error."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.metrics.records import NodeRecord
from feeder.node.polling import PollSet
from feeder.node.worker_pool import WorkerPool
from feeder.worker.messages import Configure


def make_pool(*, is_successor: bool) -> WorkerPool:
    configure = Configure(datasets={}, open_shards=8, self_test=not is_successor)
    return WorkerPool(3, configure, PollSet(), print, NodeRecord())


def test_missing_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    pool = make_pool(is_successor=False)
    line = r"a worker cannot be started: .*No such file.*/python'?: check that the installation"
    with pytest.raises(ResourceError, match=line):
        pool.start()
    with pytest.raises(ResourceError, match=line):
        pool.run_due(1.0)
    pool.close()


def test_shortage_is_retried_for_all_missing_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def refuse(*arguments: object, **options: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    pool = make_pool(is_successor=True)
    with caplog.at_level(logging.WARNING):
        pool.run_due(1.0)
    assert [line.partition(":")[0] for line in caplog.messages] == ["a worker cannot be started"]
    pool.run_due(5.9)
    assert tries == 1
    pool.run_due(6.0)
    assert tries == 2
    pool.close()
