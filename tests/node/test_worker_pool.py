"""Workers that cannot be started: what passes is waited for, what does not is an error."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.node.worker_pool import WorkerPool
from feeder.worker.messages import Configure


class Polls:
    """Nobody polls."""

    def add(self, source: int, call: Callable[[], None]) -> None:
        """Do nothing."""

    def remove(self, source: int) -> None:
        """Do nothing."""


def make_pool() -> WorkerPool:
    return WorkerPool(3, Configure(datasets={}, open_shards=8, self_test=False), Polls(), print)


def test_a_program_that_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    pool = make_pool()
    line = r"a worker cannot be started: .*No such file.*/python'?: is the installation whole"
    with pytest.raises(ResourceError, match=line):
        pool.start()
    pool._missing_from_s = [0.0]  # as one that has died
    pool.deadline_s = 0.0
    with pytest.raises(ResourceError, match=line):
        pool.run_due(1.0)
    pool.close()


def test_a_machine_without_room_is_asked_again_for_all_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def refuse(*arguments: object, **options: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    pool = make_pool()
    pool._missing_from_s = [0.0, 0.0, 9.0]
    pool.deadline_s = 0.0
    with caplog.at_level(logging.WARNING):
        pool.run_due(1.0)
    assert [line.partition(":")[0] for line in caplog.messages] == ["a worker cannot be started"]
    assert sorted(pool._missing_from_s) == [6.0, 6.0, 9.0]
    assert (tries, pool.deadline_s) == (1, 6.0)
    pool.close()
