"""The loader against nodes that are absent, late, broken, of another version, or restart."""

import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import zmq

from bench.daemon import free_port
from feeder.client import transport as client_transport
from feeder.errors import ConfigError, DatasetError, PeerError, ProtocolError
from feeder.wire.messages import (
    Hello,
    NotReady,
    encode,
)
from tests.support.fake_node import WAIT_S, FakeNode, Key, Message, failed
from tests.trainer_client.test_loader import check_batch, check_epoch, make_loader
from trainer_client import FeederLoader, NumpyLoader

SHORT_S = 3.0  # for connecting and a welcome, on a busy machine too


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _no_thread_leaks() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)  # close() does not wait for a thread that watches a list
        assert not thread.is_alive(), thread.name


def connect(endpoint: str, timeout_s: float = SHORT_S) -> str:
    """Return why a loader cannot connect: a PeerError."""
    options = {"dataset": "birds", "batch_size": 8, "image_size": 8, "device": "cpu"}
    with (
        pytest.raises(PeerError) as caught,
        FeederLoader(endpoint, timeout_s=timeout_s, **options),  # type: ignore[arg-type]
    ):
        pytest.fail("the loader connected")
    return str(caught.value)


# Absent or wrong peers


def test_what_does_not_answer_as_a_feeder_is_named_at_the_deadline(tmp_path: Path) -> None:
    """A port and a path without a listener, one that sends nothing, a ZeroMQ socket of others."""
    closed, path = f"tcp://127.0.0.1:{free_port()}", f"ipc://{tmp_path}/none"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        ThreadPoolExecutor() as pool,
    ):
        router.linger = 0
        silent = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        foreign = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        start_s = time.monotonic()
        reasons = [*pool.map(connect, (closed, path, silent, foreign))]
        assert SHORT_S <= time.monotonic() - start_s < SHORT_S + WAIT_S / 3
    for endpoint, reason in zip((closed, path, silent), reasons, strict=False):
        assert f"no welcome from {endpoint} within 3 s: nothing answers there" in reason
    assert "start `feeder serve` or correct the endpoint" in reasons[0]
    assert "does not answer the greeting; is it a feeder" in reasons[3]


def test_garbage_instead_of_a_welcome(node: FakeNode) -> None:
    node.greeting = lambda hello: [b"HTTP/1.1 400 Bad Request"]
    with pytest.raises(ProtocolError, match=f"{node.endpoint}: what answers there is not a feeder"):
        make_loader(node)


def test_a_feeder_that_packs_is_waited_for_while_it_advances(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The first wait is over after SHORT_S of each standstill, whatever is said meanwhile."""
    answers = [NotReady(text="packing d, 34 %, 5 min left", advances=1)]
    node.greeting = lambda hello: [encode(answers[-1])]
    with pytest.raises(PeerError, match="it is packing d, 34 %, 5 min left"):
        make_loader(node, timeout_s=0.2)
    text = f"{node.endpoint} is packing d, 34 %, 5 min left: waiting"
    assert text in caplog.text

    def advance() -> None:
        for advances in range(2, 6):
            seen = node.count(Hello)
            answers.append(NotReady(text="packing d, 90 %, 1 s left", advances=advances))
            node.wait_until(lambda seen=seen: node.count(Hello) > seen + 1, "no other greeting")
        node.greeting = None

    with ThreadPoolExecutor(1) as pool:
        helper = pool.submit(advance)
        with make_loader(node, timeout_s=SHORT_S) as loader:
            check_epoch(node, loader, 0)
        helper.result()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (FeederLoader, {"window": 0}, "window"),
        (FeederLoader, {"window_bytes": 0}, "window_bytes must be at least 1, got 0"),
        (FeederLoader, {"dataset": "x" * 200}, "dataset"),
        (FeederLoader, {"timeout_s": 0.0}, "timeout_s"),
        (FeederLoader, {"recipe": {"image_size": 9}}, "image_size is an argument of its own"),
        (FeederLoader, {"rank": 0}, "rank and world_size belong together"),
        (FeederLoader, {"rank": 2, "world_size": 2}, r"0 .. world_size - 1, got 2 of 2"),
        (FeederLoader, {"dtype": torch.int8}, "must be torch.float16, torch.bfloat16 or torch.flo"),
        (FeederLoader, {"std": (1.0, 0.0, 1.0)}, "std must be above 0"),
        (FeederLoader, {"summary": True}, r"^summary must be a function that takes a line.*True$"),
        (NumpyLoader, {"dtype": "float16"}, "dtype must be 'int8' or 'float32', got 'float16'"),
        (NumpyLoader, {"dtype": "float32", "channels": 2}, "channels must be 3"),
        (NumpyLoader, {"recipe": {"packing": "uint8-hwc-rgb"}}, "'uint8-hwc-rgb': leave packing"),
        (NumpyLoader, {"std": (1, 1, 1)}, "mean and std are for normalised images, int8 ones are"),
    ],
)
def test_arguments_are_checked_before_connecting(
    node: FakeNode, kind: type, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_loader(node, kind, **options)
    assert "\n" not in str(caught.value)
    assert node.received == []


# Batches that come late, twice, out of order, broken or not at all


def test_a_missing_batch_is_an_error_with_batch_peer_and_deadline(node: FakeNode) -> None:
    node.script = lambda key, messages: messages[1:] if key == (3, 2) else messages
    with make_loader(node, timeout_s=SHORT_S) as loader:
        loader.set_epoch(3)
        batches = iter(loader)
        assert [next(batches).index for _ in range(2)] == [0, 1]
        with pytest.raises(PeerError) as caught:
            next(batches)
    expected = f"no batch 2 of epoch 3 from {node.endpoint} within 3 s: its last message came"
    assert str(caught.value).startswith(expected)
    assert "but 4 of its 8 rows have arrived (node fake/0, session " in str(caught.value)


def test_a_long_wait_is_logged_with_batch_and_node_again_and_when_it_ends(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_transport, "NOTICE_S", 0.06)
    monkeypatch.setattr(client_transport, "NOTICE_INTERVAL_S", 0.05)
    caplog.set_level(logging.WARNING)  # which shows in a job that configures no logging
    held: list[Message] = []

    def hold(key: Key, messages: list[Message]) -> list[Message]:
        held.extend(messages[1:] if key == (0, 1) else [])
        return messages[:1] if key == (0, 1) else messages

    def release() -> None:
        node.wait_until(lambda: len(caplog.records) >= 2, "the wait is logged again")
        for message in held:
            node.send(message)

    node.script = hold
    with make_loader(node) as loader, ThreadPoolExecutor(1) as pool:
        batches = iter(loader)
        assert (next(batches).index, caplog.records) == (0, [])
        helper = pool.submit(release)
        assert (next(batches).index, next(batches).index) == (1, 2)
        helper.result()
    *waits, end = [record.getMessage() for record in caplog.records]
    subject = f"batch 1 of epoch 0 of birds from {node.endpoint}"
    pattern = rf"{re.escape(subject)}: waiting for \d\.\d s: its last .* 4 of its 8 rows"
    assert len(waits) >= 2
    assert all(re.match(pattern, line) for line in waits), waits
    assert re.fullmatch(rf"{re.escape(subject)}: it came after \d\.\d s", end)


def test_a_mangled_chunk_is_a_protocol_error(node: FakeNode) -> None:
    def mangle(key: Key, messages: list[Message]) -> list[Message]:
        return [message[:-1] for message in messages] if key[1] == 1 else messages

    node.script = mangle
    with make_loader(node) as loader:
        for use in (list, iter):  # the session stays ended
            with pytest.raises(ProtocolError, match="has frames of") as caught:
                use(loader)
    assert node.endpoint in str(caught.value)


def test_a_failed_batch_is_an_error_in_its_turn_and_the_next_epoch_works(
    node: FakeNode,
) -> None:
    def fail_one(key: Key, messages: list[Message]) -> list[Message]:
        if key != (0, 2):
            return messages
        return [failed(next(iter(node.sessions)), key, "sample 7 (a/b.JPEG) is corrupt")]

    node.script = fail_one
    with make_loader(node) as loader:
        batches = iter(loader)
        assert [next(batches).index for _ in range(2)] == [0, 1]
        with pytest.raises(DatasetError, match="batch 2 of epoch 0 cannot be had: sample 7"):
            next(batches)
        assert len(list(loader)) == 12


# Nodes that disappear and restart


@pytest.mark.parametrize("chunk_images", [4, 3])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_the_loader_survives_a_restart_of_the_daemon(
    tmp_path: Path, transport: str, chunk_images: int
) -> None:
    endpoint = None if transport == "tcp" else f"ipc://{tmp_path}/node"
    # Batch 3 is sent in part, batch 4 arrives complete before its turn.
    with FakeNode(endpoint=endpoint) as node:
        node.script = lambda key, messages: messages[:1] if key[1] == 3 else messages
        with make_loader(node) as loader:
            batches = iter(loader)
            for index in range(3):
                check_batch(node, (batch := next(batches)))
                assert batch.index == index
            node.close()
            with FakeNode(endpoint=node.endpoint, chunk_images=chunk_images) as fresh:
                for index in range(3, 12):
                    check_batch(fresh, (batch := next(batches)))
                    assert batch.index == index
                assert loader.statistics().reconnects == 1
                loader.close()
                assert fresh.problems == []
