"""SIGTERM drains the daemon: requests in flight are served, and it ends within 5 s."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from feeder.dataset.opened import Dataset
from feeder.wire.messages import Draining
from tests.faults.client import stop
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    client_process,
    customised,
    happens_within,
    node_processes,
    serve,
    small_recipe,
    wait_until,
)

_LARGE = small_recipe(batch_size=16, image_size=320, resize_size=320)  # 4.9 MB a batch


def test_requests_in_flight_are_served(packed: Path, dataset: Dataset) -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 0)]
    with serve(packed, "--chunk-images", "2") as daemon, RawClient(daemon.endpoint) as client:
        client.hello(_LARGE)
        client.want(*keys)
        client.receive()
        daemon.family()
        daemon.process.send_signal(signal.SIGTERM)
        for key in keys:
            check_batch(dataset, _LARGE, key, client.take(key), seed=3)
        others = client.others or [client.receive()]  # it may come after the last chunk
        assert others == [Draining(session=client.session)]
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_gone()


def stuck_client(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    keys = [(epoch, index) for epoch in (0, 1) for index in (0, 1, 2)]
    client = stack.enter_context(client_process(daemon.endpoint, _LARGE, keys))
    client.send_signal(signal.SIGSTOP)


def stuck_node(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    daemon.node.suspend()


def second_signal(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    daemon.node.suspend()
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_line("draining")


@pytest.mark.parametrize(
    ("prepare", "drain_s", "least_s", "most_s"),
    [
        (stuck_client, "1", 1, 3.5),
        (stuck_node, "4.5", 0, 7),
        (second_signal, "4.5", 0, 3),
    ],
    ids=["stuck client", "stuck node process", "second signal"],
)
def test_a_signal_ends_the_daemon_whatever_is_stuck(
    packed: Path,
    prepare: Callable[[Daemon, contextlib.ExitStack], None],
    drain_s: str,
    least_s: float,
    most_s: float,
) -> None:
    """At once, or after the drain; a node process that does not react is killed after 5 s."""

    def end() -> float:
        with (
            serve(packed, "--drain-s", drain_s) as daemon,
            contextlib.ExitStack() as stack,
        ):
            prepare(daemon, stack)
            status, took_s = daemon.stop(signal.SIGINT)
            assert status == 0
            assert took_s > least_s
            daemon.wait_gone()
            daemon.wait_line("draining")
            return took_s

    happens_within(most_s, end)


def test_draining_daemon_is_not_ready(packed: Path, tmp_path: Path) -> None:
    """The supervisor is stopped while the node process becomes ready, then gets SIGTERM."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"import sys\nif 'feeder.worker' in sys.orig_argv:\n    open({str(pipe)!r}).read()\n"
    settings = {"environ": customised(tmp_path, code), "is_ready": False}
    with serve(packed, bind=f"ipc://{tmp_path}/s", workers=1, **settings) as daemon:
        writers: list[int] = []

        def has_a_reader() -> bool:
            with contextlib.suppress(OSError):
                writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return bool(writers)

        wait_until(has_a_reader, "the node process has started its worker")
        supervisor = psutil.Process(daemon.process.pid)
        stop(supervisor)
        os.close(writers[0])  # the worker goes on
        (node,) = node_processes(supervisor)
        wait_until(
            lambda: are_asleep(node, *node.children()),
            "the node process has reported that it is ready",
        )
        daemon.process.send_signal(signal.SIGTERM)
        supervisor.resume()
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_line("draining")
        daemon.wait_gone()
        assert not any(line.startswith("feeder: ready") for line in daemon.lines)


def are_asleep(node: psutil.Process, *workers: psutil.Process) -> bool:
    """Return whether a node process and its workers, at least one, sleep at the same time."""
    before = node.num_ctx_switches().voluntary
    states = {each.status() for each in (node, *workers, node)}  # not runnable, nor at a disk
    asleep = bool(workers) and states == {psutil.STATUS_SLEEPING}
    return asleep and node.num_ctx_switches().voluntary == before
