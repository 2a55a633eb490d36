"""A node process that may open no file more: it says so, loses no session, and goes on."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset import Dataset
from tests.daemon import Daemon, RawClient, check_batch, pack_small, small_recipe, wait_until
from tests.misuse import dial, dial_zmtp


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("descriptors"))


@pytest.fixture
def daemon(packed: Path) -> Iterator[Daemon]:
    with Daemon(
        "--data", f"d={packed}", "--workers", "1", "--bind", "tcp://127.0.0.1:0"
    ) as running:
        yield running


@contextlib.contextmanager
def no_file_more(daemon: Daemon) -> Iterator[None]:
    """Lower what the node process may open to what it has open, and fill the gaps."""
    node = daemon.node
    former = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    limit = 1 + max(lasting_files(node))
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit, former[1]))
    with contextlib.ExitStack() as connections:
        while not lasting_files(node).issuperset(range(limit)):
            connections.enter_context(dial_zmtp(daemon.endpoint))  # which it has answered
        yield
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, former)


def lasting_files(process: psutil.Process) -> set[int]:
    """Return which descriptors are open, without those that are about to be closed again.

    Several times a second a node process reads how much memory is in use, in /proc and /sys.
    """
    lasting = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if not os.readlink(link).startswith(("/proc/", "/sys/")):
                lasting.add(int(link.name))
    return lasting


def test_a_session_is_refused_with_the_limit_to_raise(daemon: Daemon) -> None:
    with RawClient(daemon.endpoint) as client, RawClient(daemon.endpoint) as other:
        assert client.hello(small_recipe()).session
        assert other.hello(small_recipe()).session
        other.bye()
        other.await_no_session()
        with no_file_more(daemon):
            refused = other.hello(small_recipe())
        assert refused.code == "memory"
        assert "LimitNOFILE=" in refused.message
        assert other.hello(small_recipe()).session


def test_a_worker_is_replaced_once_that_is_possible(daemon: Daemon, packed: Path) -> None:
    node = daemon.node
    with RawClient(daemon.endpoint) as client, Dataset.open(packed) as dataset:
        client.hello(small_recipe())
        with no_file_more(daemon):
            daemon.workers()[0].kill()
            daemon.wait_line("a worker cannot be started: Too many open files: allow")
        client.want((0, 0))
        wait_until(lambda: client.ping() or client.socket.poll(500), "the session goes on")
        check_batch(dataset, small_recipe(), (0, 0), client.take((0, 0)))
        assert daemon.node == node


def test_connections_leave_files_for_what_they_ask_for(packed: Path) -> None:
    with (
        Daemon(
            *("--data", f"d={packed}", "--workers", "1", "--bind", "tcp://127.0.0.1:0"),
            prefix=("prlimit", "--nofile=128:128"),
        ) as daemon,
        contextlib.ExitStack() as connections,
        RawClient(daemon.endpoint) as client,
    ):
        assert client.hello(small_recipe()).session
        for _ in range(200):
            connections.enter_context(dial(daemon.endpoint))
            client.ping()
        wait_until(lambda: daemon.counters()["connections_opened"] >= 200, "all were taken")
        wait_until(lambda: daemon.node.num_fds() < 100, "those beyond half of the limit are cut")
        daemon.wait_line(r"was cut: there are more than 64; .*LimitNOFILE=")
        assert client.hello(small_recipe()).session
