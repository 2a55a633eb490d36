"""The sd_notify protocol, with a real datagram socket in place of systemd's."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.daemon.notify import Notifier
from feeder.errors import ResourceError


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@feeder-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(10)
        listener.bind(name.replace("@", "\0", 1))
        yield listener, name


def test_messages_follow_the_protocol(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("serving 2 datasets")
    notifier.send("STOPPING=1", "draining")
    notifier.send("STOPPING=1")
    assert [listener.recv(4096) for _ in range(3)] == [
        b"READY=1\nSTATUS=serving 2 datasets",
        b"STOPPING=1\nSTATUS=draining",
        b"STOPPING=1",
    ]


def test_a_status_with_newlines_adds_no_assignment(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    Notifier({"NOTIFY_SOCKET": name}).send("STOPPING=1", "dataset\nMAINPID=1\r\nREADY=1")
    assert listener.recv(4096) == b"STOPPING=1\nSTATUS=dataset MAINPID=1 READY=1"
    Notifier({"NOTIFY_SOCKET": name}).send(status="compute-bound: decode takes\n78 %")
    assert listener.recv(4096) == b"STATUS=compute-bound: decode takes 78 %"


def test_keep_alives_are_sent_if_systemd_expects_them(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    Notifier({"NOTIFY_SOCKET": name}).watchdog()
    Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"}).watchdog()
    Notifier({"NOTIFY_SOCKET": name}).send("STOPPING=1")
    assert [listener.recv(4096) for _ in range(2)] == [b"WATCHDOG=1", b"STOPPING=1"]


def test_without_systemd_nothing_is_sent() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000000"}):
        notifier = Notifier(environ)
        notifier.ready()
        notifier.watchdog()
        notifier.send("STOPPING=1")


def test_readiness_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with pytest.raises(ResourceError, match=r"cannot be notified of readiness: .*gone accepts no"):
        notifier.ready()


def test_other_messages_that_cannot_be_sent_are_dropped(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "2000000"})
    notifier.watchdog()
    notifier.send("STOPPING=1")


def test_a_listener_that_does_not_read_cannot_block_the_daemon(
    systemd: tuple[socket.socket, str],
) -> None:
    listener, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})
    while notifier.send(status="x"):  # the kernel queues a few datagrams, then sending would block
        pass
    assert listener.recv(4096) == b"STATUS=x"
