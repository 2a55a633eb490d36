"""The sd_notify protocol, with a real datagram socket in systemd's place."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.daemon.notify import Notifier
from feeder.errors import ConfigError, ResourceError


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A bound datagram socket, and what systemd would put into NOTIFY_SOCKET for it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@feeder-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(10)
        listener.bind(name.replace("@", "\0", 1))
        yield listener, name


def test_messages_are_what_systemd_expects(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": name})
    notifier.ready("serving 2 datasets")
    notifier.status("idle")
    notifier.stopping()
    assert [listener.recv(4096) for _ in range(3)] == [
        b"READY=1\nSTATUS=serving 2 datasets",
        b"STATUS=idle",
        b"STOPPING=1",
    ]


def test_status_cannot_smuggle_in_an_assignment(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    Notifier(name).status("dataset\nMAINPID=1\r\nREADY=1")
    assert listener.recv(4096) == b"STATUS=dataset MAINPID=1 READY=1"


def test_watchdog_speaks_at_half_the_allowed_time(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    environ = {
        "NOTIFY_SOCKET": name,
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    notifier = Notifier.from_environment(environ)
    assert notifier.watchdog_interval_s == 15.0
    notifier.watchdog()
    assert listener.recv(4096) == b"WATCHDOG=1"


def test_watchdog_of_another_process_is_not_ours(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}
    notifier = Notifier.from_environment(environ)
    assert notifier.watchdog_interval_s is None
    notifier.watchdog()
    notifier.status("after")
    assert listener.recv(4096) == b"STATUS=after"


def test_without_systemd_all_is_silent() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000000"}):
        notifier = Notifier.from_environment(environ)
        assert notifier.watchdog_interval_s is None
        notifier.ready()
        notifier.status("x")
        notifier.watchdog()
        notifier.stopping()
        assert notifier.failures == 0


def test_ready_that_nobody_hears_is_an_error(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    with pytest.raises(ResourceError, match="cannot be told that the daemon is ready"):
        notifier.ready()


def test_other_messages_that_nobody_hears_are_counted(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "gone"), watchdog_interval_s=1.0)
    notifier.status("x")
    notifier.watchdog()
    notifier.stopping()
    assert notifier.failures == 3


def test_listener_that_does_not_read_cannot_hang_us(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    notifier = Notifier(name)
    while not notifier.failures:  # the kernel queues a few datagrams, then sending would block
        notifier.status("x")
    assert listener.recv(4096) == b"STATUS=x"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, "neither a path nor an abstract socket"),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}, "not a positive number"),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"}, "not a positive number"),
    ],
)
def test_nonsense_in_the_environment_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Notifier.from_environment(environ)
