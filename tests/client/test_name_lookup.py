"""Deadlines hold, and processes exit, while a name server is silent: real commands, a real hang."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from feeder.errors import PeerError
from feeder.process.name_lookup import resolve_endpoint
from tests.faults.preload import preload
from tests.support.sources import REPOSITORY, error_line, feeder_command

SILENT_S = 150  # longer than any of these commands may take, on a busy machine too


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which no name server answers for names in .silent."""
    environ = preload("silent_names.c", tmp_path_factory.mktemp("names"))
    return {**os.environ, **environ, "SILENCE_S": str(SILENT_S)}


def run_silent(silent: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, which must come while the name server is still silent."""
    began_s = time.monotonic()
    result = subprocess.run(
        arguments,
        cwd=REPOSITORY,
        env=silent,
        capture_output=True,
        text=True,
        timeout=2 * SILENT_S,
        check=False,
    )
    assert time.monotonic() - began_s < SILENT_S, "it has waited for the name server"
    return result


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "tcp://slow.silent:5555", "--timeout", "1"],
        ["preview", "--from", "tcp://slow.silent:5555", "--dataset", "d", "--timeout", "1"],
    ],
)
def test_a_command_ends_at_its_deadline_while_a_name_server_is_silent(
    silent: dict[str, str], tmp_path: Path, arguments: list[str]
) -> None:
    result = run_silent(silent, *feeder_command(*arguments))
    assert result.returncode == PeerError.exit_status
    assert error_line(result) == (
        "feeder: error: tcp://slow.silent:5555: no name server gave the address of slow.silent "
        "within 1 s: try again, or give the address"
    )


@pytest.mark.parametrize("endpoint", ["tcp://slow.silent:5555", "dns://slow.silent:5555"])
def test_a_loader_gives_up_at_its_deadline_and_its_process_exits(
    silent: dict[str, str], endpoint: str
) -> None:
    program = f"""
from trainer_client import NumpyLoader
from feeder.errors import PeerError
try:
    NumpyLoader("{endpoint}", dataset="d", batch_size=4, timeout_s=1)
except PeerError as error:
    print("gave up:", error)
"""
    result = run_silent(silent, sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("gave up: no welcome from"), result.stdout
    assert "within 1 s" in result.stdout


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:5555",
        "tcp://[::1]:5555",
        "ipc:///run/feeder/node",
        "nonsense",
    ],
)
def test_an_endpoint_without_a_name_stays_as_it_is(endpoint: str) -> None:
    before = threading.active_count()
    assert resolve_endpoint(endpoint, 0.0) == endpoint
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("addresses", "endpoint"),
    [
        (["2001:db8::1", "192.0.2.1", "192.0.2.2"], "tcp://192.0.2.1:5555"),
        (["2001:db8::1"], "tcp://[2001:db8::1]:5555"),
    ],
)
def test_a_name_becomes_its_first_ipv4_address_or_else_ipv6(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], endpoint: str
) -> None:
    assert resolve_endpoint("tcp://localhost:5555", 60.0) == "tcp://127.0.0.1:5555"
    rows = [
        (socket.AF_INET6 if ":" in text else socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 0))
        for text in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    assert resolve_endpoint("tcp://host.example:5555", 60.0) == endpoint


def test_a_name_without_an_address_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(PeerError, match=r"^tcp://no:1: the name no does not resolve \(Name or"):
        resolve_endpoint("tcp://no:1", 600.0)
