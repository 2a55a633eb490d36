"""The fetcher as a process of the daemon."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.daemon.fetcher_process import FetcherProcess
from feeder.daemon.supervisor import Supervisor
from feeder.disk_cache.messages import FetcherConfig
from feeder.errors import DatasetError
from tests.support.daemon import DEADLINE_S


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[FetcherProcess]:
    """One that cannot start: what it is to fetch for is no cached dataset."""
    folders = {"x": os.fsencode(tmp_path / "nothing")}
    made = FetcherProcess(FetcherConfig(datasets=folders, disk_path=os.fsencode(tmp_path)))
    made.start(0)
    assert made.channel is not None
    made.channel.set_timeout(DEADLINE_S)
    yield made
    made.end()
    made._listener.close()


def test_a_fetcher_that_cannot_start_ends_the_daemon(fetcher: FetcherProcess) -> None:
    supervisor: Any = SimpleNamespace()
    with pytest.raises(DatasetError, match=r"nothing/origin\.json cannot be read"):
        Supervisor._on_fetcher(supervisor, fetcher)


def test_one_that_has_served_is_logged_and_started_again(
    fetcher: FetcherProcess, caplog: pytest.LogCaptureFixture
) -> None:
    fetcher.beat()
    supervisor: Any = SimpleNamespace()
    Supervisor._on_fetcher(supervisor, fetcher)
    assert "the fetcher ends: " in caplog.text
    assert fetcher.process is not None
    fetcher.process.wait(DEADLINE_S)
    assert fetcher.schedule_restart() is not None
