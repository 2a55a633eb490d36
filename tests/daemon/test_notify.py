"""Notifications of systemd, with a datagram socket of the test in its place.

The real daemon runs in the part of the unit's sandbox that a test can set up: no new privileges,
and no memory that is both writable and executable.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.daemon.notify import Notifier
from feeder.errors import DatasetError, ResourceError
from feeder.plan.recipe import Recipe
from tests.support.daemon import DEADLINE_S, SAMPLES, RawClient


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket in the abstract namespace; the real daemon below is given one with a path."""
    name = f"@feeder-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(10)
        listener.bind(name.replace("@", "\0", 1))
        yield listener, name


def test_messages_follow_the_protocol(listening: tuple[socket.socket, str]) -> None:
    listener, name = listening
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("serving 2 datasets")
    notifier.send("STOPPING=1", "draining")
    notifier.send("STOPPING=1")
    assert [listener.recv(4096) for _ in range(3)] == [
        b"READY=1\nSTATUS=serving 2 datasets",
        b"STOPPING=1\nSTATUS=draining",
        b"STOPPING=1",
    ]


def test_a_status_with_newlines_adds_no_assignment(listening: tuple[socket.socket, str]) -> None:
    listener, name = listening
    Notifier({"NOTIFY_SOCKET": name}).send("STOPPING=1", "dataset\nMAINPID=1\r\nREADY=1")
    assert listener.recv(4096) == b"STOPPING=1\nSTATUS=dataset MAINPID=1 READY=1"
    Notifier({"NOTIFY_SOCKET": name}).send(status="compute-bound: decode takes\n78 %")
    assert listener.recv(4096) == b"STATUS=compute-bound: decode takes 78 %"


def test_readiness_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with pytest.raises(ResourceError, match=r"cannot be notified of readiness: .*gone accepts no"):
        notifier.ready()


def test_a_listener_that_does_not_read_cannot_block_the_daemon(
    listening: tuple[socket.socket, str],
) -> None:
    listener, name = listening
    notifier = Notifier({"NOTIFY_SOCKET": name})
    while notifier.send(status="x"):  # the kernel queues a few datagrams, then sending would block
        pass
    assert listener.recv(4096) == b"STATUS=x"


# --- the real daemon --------------------------------------------------------------------------

SANDBOXED = """\
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
libc.prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE; fails before Linux 6.3
os.execv(sys.executable, [sys.executable, "-m", "feeder", "serve", *sys.argv[1:]])
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(DEADLINE_S)
        yield listener


def start(folder: Path, packed: Path) -> subprocess.Popen[str]:
    config = folder / "feeder.toml"
    config.write_text(
        f'[serve]\nbind = ["ipc://{folder}/socket"]\nworkers = 1\n[data]\nset = "{packed}"\n'
    )
    return subprocess.Popen(
        [sys.executable, "-c", SANDBOXED, "--config", str(config)],
        env={"PATH": os.defpath, "NOTIFY_SOCKET": str(folder / "notify")},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_ready_daemon_serves_and_sigterm_reports_stopping(
    tmp_path: Path, systemd: socket.socket, packed: Path
) -> None:
    with start(tmp_path, packed) as daemon:
        try:
            ready = systemd.recv(4096)
            assert ready.startswith(b"READY=1\nSTATUS="), ready
            with RawClient(f"ipc://{tmp_path}/socket") as client:
                recipe = Recipe.for_split("val", batch_size=SAMPLES)
                assert client.hello(recipe, dataset="set").samples == SAMPLES
                client.want((0, 0))
                batch = client.take((0, 0))
                assert sorted(batch.sample_ids) == list(range(SAMPLES))
                assert batch.pixels.any()
            serves = f"1 worker serves set at ipc://{tmp_path}/socket"
            assert ready.decode() == f"READY=1\nSTATUS=ready, {serves}"
            assert systemd.recv(4096).decode().startswith(f"STATUS={serves}; ")
            daemon.send_signal(signal.SIGTERM)
            assert systemd.recv(4096).startswith(b"STOPPING=1")
            _, messages = daemon.communicate(timeout=DEADLINE_S)
            assert daemon.returncode == 0, messages
            assert "ready, " in messages
        finally:
            daemon.kill()


def test_a_daemon_that_cannot_decode_is_never_ready(
    tmp_path: Path, systemd: socket.socket, packed: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in packed.iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".fds":
            data[64:-64] = bytes(len(data) - 128)  # header and end stay, every sample is zeros
        (broken / file.name).write_bytes(data)
    with start(tmp_path, broken) as daemon:
        try:
            _, messages = daemon.communicate(timeout=DEADLINE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == DatasetError.exit_status, messages
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)
