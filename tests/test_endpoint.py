"""Endpoints: what may be bound, by which node process, and stale socket files."""

import socket
from pathlib import Path

import pytest

from feeder.endpoint import check_exposure, clear_stale_socket, parse_endpoint
from feeder.errors import ConfigError, ResourceError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp://localhost:1", "tcp://127.0.0.1:1"),
        ("tcp://127.8.9.10:0", "tcp://127.8.9.10:0"),
        ("tcp://[::1]:65535", "tcp://[::1]:65535"),
        ("ipc:///run/feeder/socket", "ipc:///run/feeder/socket"),
    ],
)
def test_loopback_and_ipc_are_understood(text: str, shown: str) -> None:
    assert str(parse_endpoint(text)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tcp://0.0.0.0:1", "tcp://0.0.0.0:1"),
        ("tcp://*:1", "tcp://0.0.0.0:1"),
        ("tcp://[::]:1", "tcp://[::]:1"),
        ("tcp://192.168.1.2:1", "tcp://192.168.1.2:1"),
    ],
)
def test_addresses_that_others_can_reach_take_keys_or_a_typed_flag(text: str, shown: str) -> None:
    endpoint = parse_endpoint(text)
    assert str(endpoint) == shown
    assert not endpoint.is_local
    with pytest.raises(ConfigError, match=r"open to the network.*CURVE.*--insecure"):
        check_exposure([endpoint], has_keys=False, is_insecure=False)
    check_exposure([endpoint], has_keys=True, is_insecure=False)
    check_exposure([endpoint], has_keys=False, is_insecure=True)


def test_local_endpoints_need_no_keys() -> None:
    local = [parse_endpoint(f"tcp://{host}:1") for host in ("127.8.9.10", "[::1]", "localhost")]
    check_exposure([*local, parse_endpoint("ipc:///s")], has_keys=False, is_insecure=False)


@pytest.mark.parametrize(
    "text",
    [
        *("", "5555", "udp://127.0.0.1:1", "inproc://x", "tcp://127.0.0.1", "tcp://127.0.0.1:"),
        *(
            "tcp://127.0.0.1:65536",
            "tcp://127.0.0.1:x",
            "tcp://127.0.0.1:²",
            "tcp://host.example:1",
        ),
        *("ipc://relative", "ipc://", f"ipc:///{'x' * 110}", "ipc:///a\0b", "ipc:///\ud800"),
        *("tcp://127.0.0.1:" + "1" * 5000, "tcp://[::1%lo]:1", "tcp://[::2%\n]:1"),
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
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


def test_a_stale_socket_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    clear_stale_socket(path)
    assert not path.exists()
    clear_stale_socket(path)


def test_a_socket_that_somebody_listens_on_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(ResourceError, match="in use"):
            clear_stale_socket(path)
    assert path.exists()


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="is no socket"):
        clear_stale_socket(path)
    assert path.read_text() == "data"
    with pytest.raises(ConfigError, match="there is no folder"):
        clear_stale_socket(tmp_path / "missing" / "s")
