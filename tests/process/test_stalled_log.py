"""An unread stderr or stdout: the daemon keeps serving, and reports the lines that it dropped."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from feeder.client.stats import request_counters
from feeder.dataset.opened import Dataset
from feeder.errors import PeerError
from tests.support.daemon import (
    DEADLINE_S,
    RawClient,
    check_batch,
    small_recipe,
    wait_until,
)
from tests.support.sources import REPOSITORY, feeder_command

NAME = "n" * 128
"""Of the dataset: each session logs a line with it."""


def fill(fd: int) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\n" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\n")
    os.set_blocking(fd, True)


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fill(writer)
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


@contextlib.contextmanager
def stopped_terminal() -> Iterator[tuple[int, int]]:
    """A terminal after Ctrl-S."""
    main, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    yield main, terminal
    for end in (main, terminal):
        os.close(end)


class UnreadDaemon:
    """A daemon with two workers and the stderr and stdout that the test gives it."""

    def __init__(self, packed: Path, endpoint: str, *more: str, stdout: int, stderr: int) -> None:
        self.endpoint = endpoint
        options = ("--data", f"{NAME}={packed}", "--bind", endpoint, "--workers", "2", *more)
        self.process = subprocess.Popen(
            feeder_command("serve", *options),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )

    def __enter__(self) -> "UnreadDaemon":
        try:
            wait_until(self._serves, "the daemon serves")
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            psutil.wait_procs(children, DEADLINE_S)
        self.process.wait()

    def workers(self) -> set[int]:
        node = psutil.Process(self.process.pid).children()[0]
        return {worker.pid for worker in node.children()}

    def counter(self, name: str) -> int:
        return int(request_counters(self.endpoint, DEADLINE_S)[name])

    def end(self) -> int:
        """Stop it within the usual time; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def _serves(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(PeerError):
            return bool(request_counters(self.endpoint, 0.5))
        return False


def replace_a_worker(daemon: UnreadDaemon, dataset: Dataset) -> None:
    before = daemon.workers()
    with RawClient(daemon.endpoint) as client:
        client.hello(small_recipe(), dataset=NAME)
        os.kill(min(before), signal.SIGKILL)
        epoch = 0

        def is_replaced() -> bool:
            nonlocal epoch
            key = (epoch, 0)
            client.want(key)
            check_batch(dataset, small_recipe(), key, client.take(key))
            client.want(release=(key,))
            epoch += 1
            return len(daemon.workers() - before) == 1 and daemon.counter("workers") == 2

        wait_until(is_replaced, "the worker is replaced")
        client.bye()


@pytest.mark.parametrize("make", [full_pipe, stopped_terminal])
def test_unread_stderr_and_stdout_do_not_stop_the_daemon(
    make: Callable[[], contextlib.AbstractContextManager[tuple[int, int]]],
    dataset: Dataset,
    packed: Path,
    tmp_path: Path,
) -> None:
    with make() as (_, writer):
        flags = fcntl.fcntl(writer, fcntl.F_GETFL)
        with UnreadDaemon(packed, f"ipc://{tmp_path}/s", stdout=writer, stderr=writer) as daemon:
            replace_a_worker(daemon, dataset)
            assert daemon.end() == 0
        assert fcntl.fcntl(writer, fcntl.F_GETFL) == flags, "the open file is shared"


def test_dropped_lines_are_counted_and_reported_once_the_log_is_read_again(
    packed: Path, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with (
        full_pipe() as (reader, writer),
        UnreadDaemon(
            packed,
            endpoint,
            *("--log-level", "debug"),
            stdout=subprocess.DEVNULL,
            stderr=writer,
        ) as daemon,
    ):

        def has_dropped() -> bool:
            with RawClient(endpoint) as client:  # a new one each time: message rates are limited
                for _ in range(15):
                    assert client.hello(small_recipe(), dataset=NAME).session
                client.bye()
            return daemon.counter("log_lines_dropped") > 0

        wait_until(has_dropped, "lines are dropped")
        wait_until(lambda: daemon.counter("sessions") == 0, "the last session ends")
        dropped = daemon.counter("log_lines_dropped")
        chunks: list[bytes] = []

        def read() -> None:
            while not chunks or not chunks[-1].endswith(b"\0"):
                chunks.append(os.read(reader, 65536))

        listener = threading.Thread(target=read, daemon=True)
        listener.start()
        report = re.compile(
            rb"^feeder: node 0: warning: ([\d,]+) log lines? dropped while stderr was not",
            re.MULTILINE,
        )

        def reported() -> int:
            return sum(int(found.replace(b",", b"")) for found in report.findall(b"".join(chunks)))

        wait_until(lambda: reported() >= dropped, "dropped lines are reported")
        assert reported() == daemon.counter("log_lines_dropped")
        assert daemon.end() == 0
        os.write(writer, b"\n\0")
        listener.join()
    text = b"".join(chunks)
    assert b"\nfeeder: draining" in text, "later lines arrive"
    assert all(line.startswith(b"feeder: ") for line in text.strip(b"\n\0").split(b"\n")), (
        "a line is torn"
    )


@pytest.mark.parametrize(("arguments", "status"), [((), 3), (("--workers", "none"), 2)])
def test_daemon_exits_with_its_status_if_stderr_is_not_read(
    arguments: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    with full_pipe() as (_, writer):
        done = subprocess.run(
            feeder_command("serve", "--data", f"d={tmp_path}/missing", *arguments),
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=writer,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == status
