"""The store that benches and tests use: its nginx, and each fault of the proxy before it."""

import http.client
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.line_process import LineProcess
from bench.loopback_store import LoopbackStore
from bench.store_proxy import CHANGED_ETAG, KINDS, STATUSES, StoreProxy
from feeder.errors import ResourceError
from feeder.process.child import python_command
from tests.support.raw_client import DEADLINE_S, wait_until
from tests.support.stores import loopback_store

DATA = bytes(range(256)) * 4_001  # no multiple of a piece
PATH = "/bucket/set/shard-0"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackStore]:
    folder = tmp_path_factory.mktemp("store")
    (folder / "shard-0").write_bytes(DATA)
    (folder / "manifest.json").write_bytes(b"{}")
    with loopback_store({"set": folder}) as running:
        yield running


@pytest.fixture
def proxy(store: LoopbackStore) -> Iterator[StoreProxy]:
    with StoreProxy(store.port) as running:
        yield running


def connect(port: int) -> "closing[http.client.HTTPConnection]":
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S))


def get(
    port: int, path: str = PATH, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Request with headers, whose names have "_" for "-", over a connection of its own."""
    with connect(port) as connection:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_a_folder_is_a_prefix_of_a_bucket_with_ranges_and_etags(store: LoopbackStore) -> None:
    before = store.body_bytes()
    status, body, headers = get(store.port, range="bytes=1000-1999")
    assert (status, body) == (206, DATA[1000:2000])
    assert headers["Content-Range"] == f"bytes 1000-1999/{len(DATA)}"
    etag = headers["ETag"]
    assert get(store.port, method="HEAD", if_match=etag)[0] == 200
    assert get(store.port, if_match='"another"')[0] == 412
    assert get(store.port, "/bucket/set/shard-1")[0] == 404
    assert store.body_bytes() == before + 1000
    assert ("GET", PATH, 206, 1000, "bytes=1000-1999") in store.answers()


def test_a_missing_nginx_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.loopback_store.PROGRAM", "no-such-server")
    with pytest.raises(ResourceError, match="is not installed: apt-get install no-such-server-"):
        LoopbackStore({"set": tmp_path})


def test_without_a_fault_all_is_forwarded_and_counted(proxy: StoreProxy) -> None:
    with connect(proxy.port) as connection:
        for start in (0, 5, 1000):  # over one connection
            connection.request("GET", PATH, headers={"Range": f"bytes={start}-"})
            assert connection.getresponse().read() == DATA[start:]
        connection.request("HEAD", PATH)
        answer = connection.getresponse()
        assert answer.read() == b""
        assert answer.headers["Content-Length"] == str(len(DATA))
    counted = [(one.method, one.asked, one.status, one.body_bytes) for one in proxy.exchanges]
    assert counted == [
        ("GET", "bytes=0-", 206, len(DATA)),
        ("GET", "bytes=5-", 206, len(DATA) - 5),
        ("GET", "bytes=1000-", 206, len(DATA) - 1000),
        ("HEAD", "", 200, 0),
    ]
    assert not proxy.struck()


@pytest.mark.parametrize("kind", STATUSES)
def test_a_status_fault_strikes_so_many_requests_of_its_paths(kind: str, proxy: StoreProxy) -> None:
    proxy.strike(kind, "*/shard-*", times=2)  # type: ignore[arg-type]
    status, code = STATUSES[kind]
    answers = [get(proxy.port)[:2] for _ in range(3)]
    assert [answer[0] for answer in answers] == [status, status, 200]
    assert all(f"<Code>{code}</Code>".encode() in answer[1] for answer in answers[:2])
    assert get(proxy.port, "/bucket/set/manifest.json")[1] == b"{}"
    assert proxy.struck() == {kind: 2}


def test_a_body_that_is_reset_short_or_wrong(proxy: StoreProxy) -> None:
    half = len(DATA) // 2
    proxy.strike("reset", times=1)
    with pytest.raises(ConnectionResetError):
        get(proxy.port)
    proxy.strike("short", times=1)
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(proxy.port)
    assert caught.value.partial == DATA[:half]
    proxy.strike("short-length", times=1)
    assert get(proxy.port)[1] == DATA[:half]
    proxy.strike("flip", times=1)
    body = get(proxy.port)[1]
    assert [at for at in range(len(DATA)) if body[at] != DATA[at]] == [half]
    assert get(proxy.port)[1] == DATA


def test_an_object_that_changed_has_another_etag(proxy: StoreProxy) -> None:
    etag = get(proxy.port, method="HEAD")[2]["ETag"]
    proxy.strike("changed")
    assert get(proxy.port)[2]["ETag"] == CHANGED_ETAG
    status, body, _ = get(proxy.port, if_match=etag)
    assert status == 412
    assert b"<Code>PreconditionFailed</Code>" in body
    proxy.mend()
    assert get(proxy.port, if_match=etag)[1] == DATA


def test_a_stalled_body_goes_on_when_it_is_mended(proxy: StoreProxy) -> None:
    proxy.strike("stall", times=1)
    bodies: list[bytes] = []
    client = threading.Thread(target=lambda: bodies.append(get(proxy.port)[1]))
    client.start()
    wait_until(
        lambda: [one.body_bytes for one in proxy.exchanges] == [len(DATA) // 2], "half of it"
    )
    assert get(proxy.port)[1] == DATA
    assert not bodies
    proxy.mend()
    client.join(DEADLINE_S)
    assert bodies == [DATA]


def test_rates_and_delays_are_kept(store: LoopbackStore, proxy: StoreProxy) -> None:
    def seconds(port: int) -> float:
        began_s = time.monotonic()
        assert get(port)[1] == DATA
        return time.monotonic() - began_s

    proxy.strike("slow", amount=4 * len(DATA), times=1)
    assert seconds(proxy.port) > 0.2
    proxy.strike("late", amount=0.2, times=1)
    assert seconds(proxy.port) > 0.2
    with StoreProxy(store.port, rate=8 * len(DATA), delay_s=0.1) as limited:
        took_s: list[float] = []
        clients = [
            threading.Thread(target=lambda: took_s.append(seconds(limited.port))) for _ in range(4)
        ]
        began_s = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join(DEADLINE_S)
        assert len(took_s) == 4
        assert time.monotonic() - began_s > 0.5  # a half for four bodies, and the delay


def test_closing_ends_what_is_in_flight(store: LoopbackStore) -> None:
    with StoreProxy(store.port) as proxy:
        proxy.strike("late", amount=3600.0)
        problems: list[Exception] = []

        def ask() -> None:
            try:
                get(proxy.port)
            except OSError as error:
                problems.append(error)

        client = threading.Thread(target=ask)
        client.start()
        wait_until(lambda: len(proxy.exchanges) == 1, "the request has come")
    client.join(DEADLINE_S)
    assert len(problems) == 1
    assert isinstance(problems[0], ConnectionError)


def test_a_server_that_is_gone_resets_its_clients(tmp_path: Path) -> None:
    with loopback_store({"set": tmp_path}) as store:
        port = store.port
    with StoreProxy(port) as proxy, pytest.raises(ConnectionResetError):
        get(proxy.port)


def test_one_in_a_process_of_its_own_says_where_and_what_it_costs(store: LoopbackStore) -> None:
    command = python_command("bench.store_proxy", os.getpid(), store.port, 1e9, 0)
    with LineProcess(command) as process:
        assert get(int(process.next_line(DEADLINE_S)))[1] == DATA
        process.write_line("")
        assert 0 < float(process.next_line(DEADLINE_S)) < DEADLINE_S


def test_every_kind_is_tested_here() -> None:
    assert {*KINDS} == {*STATUSES} | {
        *("slow", "late", "stall", "reset", "short", "short-length", "flip", "changed")
    }
