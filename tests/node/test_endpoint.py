"""Endpoints: what may be bound, by which node process, and stale socket files."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.errors import ConfigError, ResourceError
from feeder.node.endpoint import SocketFiles, clear_stale_socket, parse_endpoint


@pytest.mark.parametrize(
    ("text", "shown", "is_local"),
    [
        ("tcp://localhost:1", "tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.10:0", "tcp://127.8.9.10:0", True),
        ("tcp://[::1]:65535", "tcp://[::1]:65535", True),
        ("ipc:///run/feeder/socket", "ipc:///run/feeder/socket", True),
        ("tcp://*:1", "tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", "tcp://[::]:1", False),
        ("tcp://192.168.1.2:1", "tcp://192.168.1.2:1", False),
    ],
)
def test_addresses_that_others_can_reach_are_known(text: str, shown: str, is_local: bool) -> None:
    endpoint = parse_endpoint(text)
    assert (str(endpoint), endpoint.is_local) == (shown, is_local)


def test_a_host_name_is_refused_as_such_with_what_to_write() -> None:
    """It may stand for a loopback address, as on Debian, or for another address tomorrow."""
    expected = (
        "bind: 'tcp://trainer-7.example:5555' has a host name where an address belongs: write "
    )
    with pytest.raises(ConfigError) as caught:
        parse_endpoint("tcp://trainer-7.example:5555")
    assert str(caught.value) == (
        f"{expected}tcp://*:5555 for all addresses of this machine, or one of them (`hostname -I`)"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "5555", "udp://127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:65536"),
        *("tcp://127.0.0.1:²", "ipc://relative", f"ipc:///{'x' * 110}", "ipc:///a\0b"),
        *("ipc:///\ud800", "tcp://127.0.0.1:" + "1" * 5000, "tcp://[::2%\n]:1"),
    ],
)
def test_malformed_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^bind: ") as caught:
        parse_endpoint(text)
    assert str(caught.value).isprintable()


def test_node_processes_bind_side_by_side() -> None:
    tcp, ipc = parse_endpoint("tcp://127.0.0.1:5555"), parse_endpoint("ipc:///run/f")
    assert [str(tcp.for_node(k)) for k in (0, 2)] == [
        "tcp://127.0.0.1:5555",
        "tcp://127.0.0.1:5557",
    ]
    assert [str(ipc.for_node(k)) for k in (0, 1)] == ["ipc:///run/f", "ipc:///run/f.1"]
    assert parse_endpoint("tcp://127.0.0.1:0").for_node(3).port == 0
    with pytest.raises(ConfigError, match="65536"):
        parse_endpoint("tcp://127.0.0.1:65535").for_node(1)


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_socket_file_has_its_mode_and_is_removed_unless_another_daemon_has_its_path(
    tmp_path: Path, is_taken_over: bool
) -> None:
    files, path, other = SocketFiles(0o600), tmp_path / "s", tmp_path / "other"
    with socket.socket(socket.AF_UNIX) as listener:
        with files.create(path):
            listener.bind(os.fspath(path))
        assert path.stat().st_mode & 0o777 == 0o600
        other.touch()
        assert other.stat().st_mode & 0o777 != 0o600, "the umask is as before"
        if is_taken_over:
            other.replace(path)
        files.remove()
    assert path.exists() == is_taken_over


def test_only_the_socket_file_of_no_listener_is_removed(tmp_path: Path) -> None:
    path, precious = tmp_path / "s", tmp_path / "precious"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(ResourceError, match="in use"):
            clear_stale_socket(path)
        assert path.exists()
    for _ in range(2):
        clear_stale_socket(path)
        assert not path.exists()
    precious.write_text("data")
    with pytest.raises(ConfigError, match="is not a socket"):
        clear_stale_socket(precious)
    assert precious.read_text() == "data"
    with pytest.raises(ConfigError, match="there is no folder"):
        clear_stale_socket(tmp_path / "missing" / "s")


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run as another user than root, so that file modes apply."""
    user = os.geteuid()
    os.seteuid(user or 65_534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_inaccessible_folder_is_an_error(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "deeper").mkdir(parents=True)
    closed.chmod(0)
    for path in (closed / "s", closed / "deeper" / "s"):
        with (
            unprivileged(),
            pytest.raises(ResourceError, match=f"ipc://{path} cannot be bound: Permission denied"),
        ):
            clear_stale_socket(path)
    closed.chmod(0o700)


def test_socket_of_another_user_is_not_reported_as_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the folders above it are closed to others
    tmp_path.chmod(0o755)
    path = Path("s")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    path.chmod(0)
    with unprivileged(), pytest.raises(ResourceError, match="is another user's: stop"):
        clear_stale_socket(path)
    assert path.exists()
