"""ZAP: which clients are admitted, and what is answered, counted and logged."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from feeder.errors import ConfigError, ProtocolError
from feeder.metrics.counters import SocketCounters
from feeder.node.zap_handler import ENDPOINT, KeyList, ZapHandler
from feeder.security.keys import SecretKey, format_public_key
from feeder.wire.zap import parse_request

KEY = bytes(range(32))


def request(key: bytes = KEY, **fields: bytes) -> list[bytes]:
    usual = {
        "version": b"1.0",
        "number": b"1",
        "domain": b"feeder",
        "address": b"10.0.0.3",
        "identity": b"",
        "mechanism": b"CURVE",
        "key": key,
    }
    return [b"", *(usual | fields).values()]


def make_key(name: str) -> SecretKey:
    return SecretKey(name, zmq.curve_keypair()[1].decode())


@pytest.mark.parametrize(
    "frames",
    [
        [],
        request()[1:],
        request(version=b"2.0"),
        request(domain=b"other"),
        request(mechanism=b"NULL"),
        request(key=b"x" * 31),
        [*request(), b"more"],
        request(address=b"x" * 300),
    ],
)
def test_malformed_requests_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        parse_request(frames)


class ZapClient:
    """Sends requests to a handler, as libzmq does."""

    def __init__(self, keys: KeyList) -> None:
        self.now_s = 0.0
        self.counters = SocketCounters()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.handler = ZapHandler(self.context, keys, self.counters)
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(ENDPOINT)

    def request(self, frames: list[bytes]) -> tuple[bytes, bytes] | None:
        """Return status and user of the answer, None if there is none."""
        self.socket.send_multipart(frames)
        self.handler.answer(self.now_s)
        if not self.socket.poll(0):
            return None
        answer = self.socket.recv_multipart()
        return answer[3], answer[5]

    def request_later(self, frames: list[bytes]) -> tuple[bytes, bytes] | None:
        """Send a request when the list is due to be checked again."""
        self.now_s += 1.0
        return self.request(frames)

    def close(self) -> None:
        self.handler.socket.close(0)
        self.context.destroy(linger=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clients"
    path.write_text("")
    return path


@pytest.fixture
def client(path: Path) -> Iterator[ZapClient]:
    client = ZapClient(KeyList(path))
    yield client
    client.close()


def test_key_is_admitted_only_while_it_is_listed(client: ZapClient, path: Path) -> None:
    me = make_key("me").public()
    assert client.request_later(request(me.raw)) == (b"400", b"")
    path.write_text(format_public_key(me))
    assert client.request_later(request(me.raw)) == (b"200", b"me")
    path.write_text("# no clients\n")
    assert client.request_later(request(me.raw)) == (b"400", b"")
    assert client.counters.clients_refused == {"unknown-key": 2}


def test_a_folder_is_read_again_and_a_list_that_may_wait_admits_nobody_until_it_is_there(
    tmp_path: Path,
) -> None:
    me, folder = make_key("me").public(), tmp_path / "later"
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyList(folder)
    client = ZapClient(KeyList(folder, may_wait=True))
    try:
        assert client.request_later(request(me.raw)) == (b"500", b"")
        folder.mkdir()
        assert client.request_later(request(me.raw)) == (b"400", b"")
        (folder / "me.pub").write_text(format_public_key(me))
        assert client.request_later(request(me.raw)) == (b"200", b"me")
        (folder / "me.pub").unlink()
        assert client.request_later(request(me.raw)) == (b"400", b"")
        assert client.request(request(mechanism=b"NULL")) is None
        assert client.counters.clients_refused["malformed"] == 1
    finally:
        client.close()


def test_no_client_is_admitted_while_the_list_cannot_be_read(client: ZapClient, path: Path) -> None:
    me = make_key("me").public()
    path.write_text(format_public_key(me))
    assert client.request_later(request(me.raw)) == (b"200", b"me")
    path.write_text("damaged")
    for _ in range(2):
        assert client.request_later(request(me.raw)) == (b"500", b"")
    path.unlink()
    assert client.request_later(request(me.raw)) == (b"500", b"")
    path.symlink_to("x" * 300)
    assert client.request_later(request(me.raw)) == (b"500", b"")
    assert client.counters.clients_refused == {"no-list": 4}
    path.unlink()
    path.write_text(format_public_key(me))
    assert client.request_later(request(me.raw)) == (b"200", b"me")
    path.rename(path.with_name("away"))
    assert client.request_later(request(me.raw)) == (b"500", b"")
    path.with_name("away").rename(path)  # unchanged
    assert client.request_later(request(me.raw)) == (b"200", b"me")


def test_refusal_is_logged_once_a_minute_for_each_key(
    client: ZapClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one, two = make_key("one").public(), make_key("two").public()
    for key in (one, one, two):
        client.request(request(key.raw))
    assert [key.text[:8] in line for key, line in zip((one, two), caplog.messages, strict=True)]
    assert not any(one.text[:9] in line or "one" in line for line in caplog.messages)
    client.now_s = 61.0
    client.request(request(one.raw))
    assert len(caplog.messages) == 3
    assert "10.0.0.3" in caplog.messages[2]


def test_many_unknown_keys_do_not_fill_the_log(
    client: ZapClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(1000):
        client.request(request(number.to_bytes(32, "little")))
    assert len(caplog.messages) == 64
    assert all(vars(record)["kind"] is None for record in caplog.records), "no second limit"
    assert client.counters.clients_refused == {"unknown-key": 1000}
