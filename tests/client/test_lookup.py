"""Looking endpoints up at a cluster's controller: a real server, with and without keys."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from bench.daemon import free_port
from feeder.client.endpoints import (
    INTERVALS_S,
    LOOKUP_REQUEST,
    Directory,
    Listing,
    Source,
    format_answer,
    parse_answer,
)
from feeder.cluster.lookup_server import _REQUEST_BYTES_MAX as REQUEST_BYTES_MAX
from feeder.cluster.lookup_server import LookupServer, format_list
from feeder.errors import ConfigError
from feeder.security.keys import ClientKeys
from tests.support.key_pairs import KeyPair

LIST = [("feeder-0", "tcp://10.0.0.1:5555"), ("feeder-1", "tcp://10.0.0.2:5555")]
ENDPOINTS = [endpoint for _, endpoint in LIST]


@contextlib.contextmanager
def serving(secret_key: Path | str = "", client_keys: Path | str = "") -> Iterator[LookupServer]:
    server = LookupServer("127.0.0.1", free_port(), str(secret_key), str(client_keys))
    try:
        server.publish(format_list(LIST))
        yield server
    finally:
        server.close()


def look_up(server: LookupServer, keys: ClientKeys | None = None) -> Listing:
    source = Source(f"feeder://{server.address}", keys)
    source.read()
    return source.listing


def test_a_request_over_the_limit_ends_its_connection_and_others_are_answered() -> None:
    with serving() as server, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        with dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            dealer.connect(f"tcp://{server.address}")
            dealer.send(bytes(REQUEST_BYTES_MAX))
            dealer.send(LOOKUP_REQUEST)
            assert dealer.poll(5000)
            assert not monitor.poll(0)
            dealer.send(bytes(REQUEST_BYTES_MAX + 1))
            assert monitor.poll(5000)
            dealer.disable_monitor()
        assert list(look_up(server)) == ENDPOINTS


def test_a_job_follows_the_list_and_keeps_the_last_one_without_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(INTERVALS_S, "feeder", 0.0)
    with serving() as server:
        directory = Directory(f"feeder://{server.address}")
        assert list(directory.read()) == []  # a job may start before its feeders
        assert list(directory.refresh()) == ENDPOINTS
        server.publish(format_list(LIST[1:]))
        assert list(directory.refresh()) == ENDPOINTS[1:]
        server.publish(format_list([]))
        assert list(directory.refresh()) == ENDPOINTS[1:]
    assert list(directory.refresh()) == ENDPOINTS[1:]
    assert "no controller answered" in directory.problems[f"feeder://{server.address}"]


def test_malformed_requests_are_not_answered_and_end_nothing() -> None:
    with serving() as server, zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.connect(f"tcp://{server.address}")
            for frames in (
                [b""],
                [LOOKUP_REQUEST, LOOKUP_REQUEST],
                [b"x" * 60] * 9,
            ):
                dealer.send_multipart(frames)
            dealer.send(LOOKUP_REQUEST)
            assert dealer.poll(30_000)
            assert dealer.recv() == format_answer(format_list(LIST))
        with context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.connect(f"tcp://{server.address}")
            dealer.send(b"x" * 100_000)
        assert list(look_up(server)) == ENDPOINTS


def test_with_keys_only_listed_clients_are_answered(tmp_path: Path) -> None:
    feeder, client, other = (KeyPair.make(tmp_path, name) for name in ("feeder", "client", "other"))
    with serving(feeder.secret, client.public) as server:
        keys = client.to(feeder)
        assert list(look_up(server, keys)) == ENDPOINTS
        with pytest.raises(OSError, match="accepts only clients with keys"):
            look_up(server)
        with pytest.raises(OSError, match="does not accept these keys"):
            look_up(server, other.to(feeder))
        assert list(look_up(server, keys)) == ENDPOINTS


@given(st.binary(max_size=300), st.booleans())
def test_any_answer_is_a_list_or_an_error(data: bytes, is_headed: bool) -> None:
    try:
        found = parse_answer(LOOKUP_REQUEST + b"\n" + data if is_headed else data, "there")
    except ConfigError:
        return
    assert all(endpoint.startswith(("tcp://", "ipc:///")) for endpoint in found)
