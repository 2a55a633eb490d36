"""The loader against nodes that are absent, late, broken, of another version, or come back."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
import zmq

from bench.daemon import free_port
from feeder.client import transport as client_transport
from feeder.client.core.node_link import RETRY_INTERVAL_S
from feeder.errors import ConfigError, DatasetError, PeerError, ProtocolError
from feeder.wire.messages import MAGIC, Hello, Ping, Refused, RefusedCode, Request, encode
from tests.support.fake_node import WAIT_S, FakeNode, Key, Message, change_chunk, failed
from tests.trainer_client.test_loader import check_batch, make_loader
from trainer_client import FeederLoader

SHORT_S = 3.0  # for connecting and a welcome, on a busy machine too


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)  # nobody waits for who watches a list
        assert not thread.is_alive(), thread.name


def make_loader_at(endpoint: str) -> None:
    with FeederLoader(
        endpoint, dataset="birds", batch_size=8, image_size=8, timeout_s=SHORT_S, device="cpu"
    ):
        pytest.fail("there was a welcome")


def refuse_with(node: FakeNode, code: RefusedCode, message: str) -> None:
    node.greeting = lambda hello: [encode(Refused(code=code, message=message))]


def check_epoch(node: FakeNode, **options: object) -> None:
    """Iterate over an epoch and compare every batch."""
    with make_loader(node, **options) as loader:
        batches = list(loader)
    assert [batch.index for batch in batches] == list(range(12))
    for batch in batches:
        check_batch(node, batch)


# Nobody there, or not who was meant


def test_nobody_at_the_endpoint() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    start_s = time.monotonic()
    with pytest.raises(PeerError) as caught:
        make_loader_at(endpoint)
    assert SHORT_S <= time.monotonic() - start_s < SHORT_S + WAIT_S / 3
    assert f"no welcome from {endpoint} within 3 s: nobody answers there" in str(caught.value)
    assert "start `feeder serve` or correct the endpoint" in str(caught.value)


def test_nobody_at_an_ipc_path(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="nobody answers there"):
        make_loader_at(f"ipc://{tmp_path}/nobody")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:5555", "http://127.0.0.1", "tcp://127.0.0.1", ""])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be dialled .*: use tcp://HOST:PORT or ipc://"):
        make_loader_at(endpoint)


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    expected = "no endpoint is known yet; dns://nobody:1: Name or service not known"
    with pytest.raises(PeerError, match=f"no welcome from dns://nobody:1 within 3 s: {expected}"):
        make_loader_at("dns://nobody:1")


def test_a_peer_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(PeerError, match="nobody answers there"):
            make_loader_at(endpoint)


def test_a_zmq_peer_that_is_no_feeder() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(PeerError, match="does not answer the greeting; is it a feeder"):
            make_loader_at(f"tcp://127.0.0.1:{port}")


def test_an_unknown_dataset_names_the_peer_and_what_it_has(node: FakeNode) -> None:
    refuse_with(node, "unknown-dataset", "no dataset 'birds' here; served are: fish")
    with pytest.raises(DatasetError, match=f"{node.endpoint}: no dataset 'birds' here; served are"):
        make_loader(node)


def test_a_batch_larger_than_the_dataset(node: FakeNode) -> None:
    refuse_with(node, "bad-recipe", "batch_size 8 is larger than dataset 'birds'")
    with pytest.raises(ConfigError, match=f"{node.endpoint}: batch_size 8 is larger"):
        make_loader(node)


def test_more_ranks_than_batches(node: FakeNode) -> None:
    with pytest.raises(ConfigError, match="12 whole batches of 8, fewer than the 13 ranks"):
        make_loader(node, rank=0, world_size=13)


def test_another_protocol_version_names_both(node: FakeNode) -> None:
    answer = Refused(code="version", message="we speak version 9")
    node.greeting = lambda hello: [MAGIC + bytes([9]) + msgspec.msgpack.encode(answer)]
    with pytest.raises(ProtocolError, match="version 9, this feeder 1") as caught:
        make_loader(node)
    assert node.endpoint in str(caught.value)
    assert str(caught.value).count("protocol version") == 1, "it is told once, and in order"


@pytest.mark.parametrize("garbage", [b"", b"HTTP/1.1 400 Bad Request", MAGIC + b"\x01\xc1"])
def test_garbage_instead_of_a_welcome(node: FakeNode, garbage: bytes) -> None:
    node.greeting = lambda hello: [garbage]
    with pytest.raises(ProtocolError, match=f"{node.endpoint}: who is there does not speak"):
        make_loader(node)


def test_a_full_node_is_asked_again_until_the_deadline(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Patience(client_transport._Patience):
        """Over once the node was asked again, whenever that is."""

        left_s = property(lambda self: float(node.count(Hello) < 2), lambda self, value: None)

    monkeypatch.setattr("feeder.client.transport._Patience", Patience)
    refuse_with(node, "clients", "all 64 sessions are taken")
    began_s = time.monotonic()
    with pytest.raises(PeerError, match="refuses for the moment: all 64 sessions are taken"):
        make_loader(node)
    assert node.count(Hello) <= 1 + (time.monotonic() - began_s) / RETRY_INTERVAL_S


def test_a_node_that_has_room_after_a_while(node: FakeNode) -> None:
    refuse_with(node, "memory", "no room")

    def make_room() -> None:
        node.wait_until(lambda: node.count(Hello) >= 2, "no second greeting")
        node.greeting = None

    helper = threading.Thread(target=make_room)
    helper.start()
    check_epoch(node)
    helper.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window"),
        ({"window": 65}, "window"),
        ({"seed": -1}, "seed"),
        ({"dataset": ""}, "dataset"),
        ({"dataset": "x" * 200}, "dataset"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"recipe": {"image_size": 9}}, "image_size is an argument of its own"),
        ({"rank": 0}, "rank and world_size belong together"),
        ({"rank": 2, "world_size": 2}, r"rank must be 0 .. world_size - 1, got 2 of 2"),
        ({"batch_size": 0}, "batch_size"),
        ({"recipe": {"colour": 1}}, "colour"),
        ({"dtype": torch.int8}, "dtype must be"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be above 0"),
        ({"mean": (1.0,)}, "mean must be three numbers"),
    ],
)
def test_arguments_are_checked_before_anything_starts(
    node: FakeNode, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loader(node, **options)
    assert node.heard == []


# Batches that come late, twice, in disorder, broken or not at all


def test_a_batch_that_does_not_come_names_batch_peer_and_deadline(node: FakeNode) -> None:
    node.script = lambda key, messages: messages[1:] if key == (3, 2) else messages
    with make_loader(node, timeout_s=SHORT_S) as loader:
        loader.set_epoch(3)
        batches = iter(loader)
        assert [next(batches).index for _ in range(2)] == [0, 1]
        with pytest.raises(PeerError) as caught:
            next(batches)
    expected = f"no batch 2 of epoch 3 from {node.endpoint} within 3 s: it spoke"
    assert str(caught.value).startswith(expected)
    assert str(caught.value).endswith("but 1 of 2 chunks are here")


def test_disorder_and_repetition_change_nothing(node: FakeNode) -> None:
    chance = random.Random(3)
    kept: list[Message] = []

    def shuffle(key: Key, messages: list[Message]) -> list[Message]:
        kept.extend(messages)
        replies = [*messages, *messages, *chance.sample(kept, min(4, len(kept)))]
        chance.shuffle(replies)
        return replies

    node.script = shuffle
    check_epoch(node)


def test_late_batches_overtaken_by_their_successors_come_in_their_turn(node: FakeNode) -> None:
    held: list[Message] = []

    def hold_even(key: Key, messages: list[Message]) -> list[Message]:
        if key[1] % 2 == 0:
            held.extend(messages)
            return []
        late, held[:] = list(held), []
        return [*messages, *late]

    node.script = hold_even
    with make_loader(node, window=4) as loader:
        batches = iter(loader)
        for index in range(12):
            batch = next(batches)
            assert batch.index == index
            check_batch(node, batch)


def test_late_chunks_of_an_epoch_that_was_given_up_are_discarded(node: FakeNode) -> None:
    held: list[Message] = []

    def hold_first(key: Key, messages: list[Message]) -> list[Message]:
        if key[0] == 0:
            held.extend(messages)
            return []
        late, held[:] = list(held), []
        return [*late, *messages]

    node.script = hold_first
    with make_loader(node) as loader:
        loader.set_epoch(0)
        node.wait_until(lambda: len(held) >= 2 * 4, "not all of the window was wanted")
        loader.set_epoch(1)
        for batch in loader:
            check_batch(node, batch)
        assert loader.statistics().chunks_discarded >= 2
    released = [key for m in node.heard if isinstance(m, Request) for key in m.release]
    assert {(0, 0), (0, 1), (0, 2), (0, 3)} <= set(released)


@pytest.mark.parametrize(
    ("mangle", "message"),
    [
        (lambda m: m[:-1], "has frames of"),
        (lambda m: [*m, b"more"], "has frames of"),
        (lambda m: [m[0], m[1][:-1], *m[2:]], "has frames of"),
        (lambda m: [m[0], m[2], m[1], m[3]], "has frames of"),
        (lambda m: change_chunk(m, valid=3), "says that 3 rows are real, it must be 8"),
        (lambda m: change_chunk(m, first=2), "4 rows from 2 on, which is no chunk of 4"),
        (lambda m: change_chunk(m, first=-4), "does not speak as a feeder"),
        (lambda m: change_chunk(m, images=2**40), "does not speak as a feeder"),
        (lambda m: [m[0][4:], *m[1:]], "does not speak as a feeder"),
    ],
)
def test_a_mangled_chunk_is_a_protocol_error(
    node: FakeNode, mangle: Callable[[Message], Message], message: str
) -> None:
    node.script = lambda key, messages: [mangle(m) for m in messages] if key[1] == 1 else messages
    with make_loader(node) as loader:
        with pytest.raises(ProtocolError, match=message) as caught:
            list(loader)
        with pytest.raises(ProtocolError, match=message):
            iter(loader)
    assert node.endpoint in str(caught.value)


def test_frames_after_a_message_that_has_none(node: FakeNode) -> None:
    with make_loader(node) as loader:
        node.send([encode(Refused(code="clients", message="no")), b"pixels"])
        with pytest.raises(ProtocolError, match="Refused came with frames it must not have"):
            list(loader)


def test_a_batch_that_cannot_be_made_is_an_error_in_its_turn_and_the_next_epoch_works(
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


# Nodes that go and come back


def test_a_daemon_gone_in_the_middle_of_an_epoch(node: FakeNode) -> None:
    with make_loader(node, window=1, timeout_s=SHORT_S) as loader:
        batches = iter(loader)
        next(batches)
        node.close()
        with pytest.raises(PeerError) as caught:
            list(batches)
    assert f"from {node.endpoint} within 3 s: the connection is lost" in str(caught.value)


@pytest.mark.parametrize("chunk_images", [4, 3])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_daemon_that_restarts_goes_unnoticed(
    tmp_path: Path, transport: str, chunk_images: int
) -> None:
    endpoint = None if transport == "tcp" else f"ipc://{tmp_path}/node"
    # Batch 3 stays half sent, batch 4 arrives whole before its turn.
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


def test_a_node_that_forgot_the_session_goes_unnoticed(node: FakeNode) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        for index in range(12):
            if index in (2, 7):
                node.forget_sessions()
            check_batch(node, (batch := next(batches)))
            assert batch.index == index
        assert 1 <= loader.statistics().reconnects <= 2


def test_the_time_that_this_process_was_stopped_is_not_the_nodes(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Message] = []

    def hold(key: Key, messages: list[Message]) -> list[Message]:
        if key == (0, 0):
            held[:] = messages
            return []
        return messages

    node.script = hold
    with make_loader(node, timeout_s=20.0) as loader, ThreadPoolExecutor(1) as consumer:
        first = consumer.submit(lambda: next(iter(loader)))
        node.wait_until(lambda: held, "the batch is asked for")
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 30.0)
        pings = node.count(Ping)
        node.wait_until(lambda: node.count(Ping) == pings + 2, "the batch takes some time")
        for message in held:
            node.send(message)
        check_batch(node, first.result(WAIT_S))


def test_another_dataset_after_a_restart_is_an_error(node: FakeNode) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        next(batches)
        node.close()
        with (
            FakeNode(endpoint=node.endpoint, fingerprint="0" * 32),
            pytest.raises(DatasetError, match="changed while the daemon restarted"),
        ):
            list(batches)


def test_an_idle_loader_keeps_its_session_alive(node: FakeNode) -> None:
    with make_loader(node):
        node.wait_until(lambda: node.count(Ping) >= 2, "no pings")
