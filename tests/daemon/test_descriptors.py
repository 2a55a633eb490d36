"""Limits of open files: their division, and a node process that has reached its limit."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.fetcher import BatchFetcher
from feeder.daemon.config import load_config
from feeder.daemon.node_plan import (
    _NODE_FILES,
    _WORKER_FILES,
    plan_descriptors,
)
from feeder.dataset.opened import Dataset
from feeder.errors import ResourceError
from feeder.node.blob_requests import SENDING_MAX
from tests.support.daemon import (
    Daemon,
    RawClient,
    check_batch,
    serve,
    small_recipe,
    wait_until,
)
from tests.support.misuse import dial_zmtp
from tests.support.sources import error_line, run_feeder


@pytest.fixture(scope="module")
def daemon(packed: Path) -> Iterator[Daemon]:
    with serve(packed, workers=1) as running:
        yield running


@contextlib.contextmanager
def no_file_more(daemon: Daemon) -> Iterator[None]:
    """Lower the node process's limit to its open files, and fill the gaps with connections."""
    node = daemon.node
    former = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    limit = 1 + max(lasting_files(node))
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit, former[1]))
    with contextlib.ExitStack() as connections:
        while not lasting_files(node).issuperset(range(limit)):
            connections.enter_context(
                dial_zmtp(daemon.endpoint)
            )  # the node process has answered it
        yield
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, former)


def lasting_files(process: psutil.Process) -> set[int]:
    """Return the descriptors that stay open.

    Several times a second a node process opens files in /proc and /sys for its memory use.
    """
    lasting = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if not os.readlink(link).startswith(("/proc/", "/sys/")):
                lasting.add(int(link.name))
    return lasting


def test_a_refused_session_names_the_limit_to_raise(daemon: Daemon) -> None:
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


def test_a_worker_is_replaced_once_a_descriptor_is_free(daemon: Daemon, dataset: Dataset) -> None:
    node = daemon.node
    with RawClient(daemon.endpoint) as client:
        client.hello(small_recipe())
        with no_file_more(daemon):
            daemon.workers()[0].kill()
            daemon.wait_line("a worker cannot be started: Too many open files: allow")
        client.want((0, 0))
        wait_until(lambda: client.ping() or client.socket.poll(500), "the session goes on")
        check_batch(dataset, small_recipe(), (0, 0), client.take((0, 0)))
    assert daemon.node == node


def limited(packed: Path, files: int, endpoint: str, soft: int = 0) -> Daemon:
    """Start a daemon whose processes may open ``files`` files."""
    prefix = ("prlimit", f"--nofile={soft or files}:{files}")
    return serve(packed, workers=1, bind=endpoint, prefix=prefix)


def lent_client(endpoint: str) -> BatchFetcher:
    return BatchFetcher(endpoint, dataset="d", recipe=small_recipe())


def flood(endpoint: str, count: int, client: RawClient) -> None:
    """Open ``count`` connections and keep them, while a client pings."""
    path = endpoint.removeprefix("ipc://")
    with contextlib.ExitStack() as kept:
        for number in range(count):
            if number % 100 == 0:
                client.ping()
            connection = kept.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # refused, or the listener is paused
                connection.connect(path)


def test_a_flood_of_connections_ends_neither_the_node_process_nor_a_session(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with limited(packed, 72, endpoint, soft=32) as daemon, RawClient(endpoint) as client:
        node = daemon.node
        assert client.hello(small_recipe()).session
        with enough_files_for(2600):
            for epoch in range(3):
                flood(endpoint, 2500, client)
                client.want((epoch, 0))
                check_batch(dataset, small_recipe(), (epoch, 0), client.take((epoch, 0)))
        wait_until(lambda: daemon.counters()["connections_opened"] > 72, "they were accepted")
        with RawClient(endpoint) as newcomer:
            assert newcomer.hello(small_recipe()).session
        assert daemon.node == node


@contextlib.contextmanager
def enough_files_for(count: int) -> Iterator[None]:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(former[0], count), former[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, former)


def test_sessions_over_the_limit_of_open_files_are_refused_by_name(
    packed: Path, tmp_path: Path
) -> None:
    endpoint, files = f"ipc://{tmp_path}/s", 72
    plan = plan_descriptors(files, load_config(None, {"data": {"d": "/d"}}), 1)
    with limited(packed, files, endpoint) as daemon, contextlib.ExitStack() as clients:
        node = daemon.node
        daemon.wait_line(
            rf"warning: {files} open files are enough for {plan.memories_max} sessions? of a node "
            "process, not for clients_max = 512 and client_sessions_max = 384: raise .*LimitNOFILE="
        )
        lent: list[BatchFetcher] = []
        for number in range(plan.memories_max):
            lent.append(clients.enter_context(lent_client(endpoint)))
            # A node process with so few files has room for one claim at a time.
            wait_until(
                lambda n=number + 1: daemon.counters()["sessions_sharing"] == n, "it claimed"
            )
        refused = clients.enter_context(RawClient(endpoint)).hello(small_recipe())
        assert refused.code == "clients"
        assert "LimitNOFILE=" in refused.message
        for fetcher in lent:
            assert len(list(fetcher.fetch())) == 1
        daemon.workers()[0].kill()
        daemon.wait_line("worker 1 .*: replaced")
        for fetcher in lent:
            assert len(list(fetcher.fetch(1))) == 1
        assert daemon.node == node


def test_too_few_files_for_one_session_is_a_one_line_error(packed: Path, tmp_path: Path) -> None:
    files = 40
    done = run_feeder(
        *("serve", "--data", f"d={packed}", "--workers", "1", "--bind", f"ipc://{tmp_path}/s"),
        prefix=("prlimit", f"--nofile={files}:{files}"),
    )
    assert done.returncode == 4
    assert f"this process may open {files} files, and each node process needs" in error_line(done)
    assert "LimitNOFILE=" in error_line(done)
    assert len(done.stderr.splitlines()) == 1


def test_the_plan_reserves_what_processes_have_open(packed: Path, tmp_path: Path) -> None:
    options = ("--decoded-bytes", "2000000", "--bind", "tcp://127.0.0.1:0")
    with serve(packed, *options, bind=f"ipc://{tmp_path}/s") as daemon:
        assert daemon.node.num_fds() <= _NODE_FILES + 2 * 2 + 2
        assert daemon.workers()[0].num_fds() < _WORKER_FILES
        before = daemon.node.num_fds()
        with lent_client(daemon.endpoint):
            # One more, the client's copy, may not be closed yet.
            wait_until(lambda: daemon.node.num_fds() <= before + 4, "a session takes at most four")


def test_files_are_divided() -> None:
    binds = ("tcp://127.0.0.1:5555", "ipc:///run/feeder/socket")
    config = load_config(None, {"data": {"d": "/d", "e": "/e"}, "serve.bind": binds})

    def plan(limit: int) -> tuple[int, int, int, int]:
        found = plan_descriptors(limit, config, 8)
        used = found.connections_max + found.callers_max + 3 * found.memories_max
        assert used + 24 + 16 + SENDING_MAX + 3 * 2 + 8 <= limit
        assert 16 + 2 * found.memories_max + 2 * found.open_shards <= limit
        return (
            found.memories_max,
            found.connections_max,
            found.callers_max,
            found.open_shards,
        )

    assert plan(65536) == (1024, 4 * 512 + 64, 64, 512)
    assert plan(1024)[0] > 200
    for limit in range(68, 2000):
        memories, connections, callers, shards = plan(limit)
        assert 1 <= memories < connections
        assert callers >= 1
        assert shards >= 1
    with pytest.raises(ResourceError, match="needs 68 for one session"):
        plan(67)
