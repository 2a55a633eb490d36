"""The simplest client against nodes that break the protocol: an error at once, never a hang."""

import itertools
import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feeder.client.blocking import BatchFetcher
from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.plan.labels import INDEX_LABELS
from feeder.wire.claim import CLAIM_BYTES, encode_answer
from feeder.wire.messages import (
    BatchKey,
    Failed,
    Hello,
    Lent,
    Pong,
    Request,
    Stats,
    Welcome,
    encode,
)
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory
from tests.client.test_blocking import RECIPE, ScriptedNode, _chunk
from tests.support.fake_node import FakeNode, Message, change_chunk

LONG_S = 600.0  # longer than any test may take: nothing here may wait for its deadline
FIRST = (0, 0)


def _open(
    node: FakeNode, *, timeout_s: float = LONG_S, total_s: float = math.inf, window: int = 4
) -> BatchFetcher:
    return BatchFetcher(
        node.endpoint,
        dataset="set",
        recipe=RECIPE,
        timeout_s=timeout_s,
        total_s=total_s,
        window=window,
    )


Change = Callable[[list[Message]], list[Message]]
CHANGES: dict[str, Change] = {
    "a chunk is repeated": lambda chunks: [chunks[0], chunks[0], *chunks[1:]],
    "a chunk is repeated in place of another": lambda chunks: [chunks[0], chunks[0]],
    "a chunk comes after the batch is whole": lambda chunks: [*chunks, chunks[-1]],
    "chunks overlap": lambda chunks: [change_chunk(chunks[0], images=4), *chunks[1:]],
    "a chunk repeats a row of another": lambda chunks: [
        chunks[0],
        change_chunk(chunks[1], first=2),
    ],
    "a chunk reaches past the batch": lambda chunks: [change_chunk(chunks[1], images=3)],
    "a chunk is short": lambda chunks: [change_chunk(chunks[0], images=2)],
    "a chunk counts too few real rows": lambda chunks: [change_chunk(chunks[0], valid=4)],
    "a chunk counts too many real rows": lambda chunks: [change_chunk(chunks[0], valid=6)],
    "chunks count real rows differently": lambda chunks: [
        chunks[0],
        change_chunk(chunks[1], valid=1),
    ],
    "a chunk is of another batch": lambda chunks: [change_chunk(chunks[0], index=3)],
    "a chunk is of another epoch": lambda chunks: [change_chunk(chunks[0], epoch=7)],
    "a frame is missing": lambda chunks: [chunks[0][:-1]],
    "there is a frame more": lambda chunks: [[*chunks[0], b""]],
    "pixels are short": lambda chunks: [[chunks[0][0], b"1", *chunks[0][2:]]],
    "labels are long": lambda chunks: [[*chunks[0][:2], chunks[0][2] + b"1", chunks[0][3]]],
    "a batch is lent without slots": lambda chunks: [[_lent()]],
    "a failure is of another batch": lambda _: [[_failed(index=3)]],
    "a failure follows the whole batch": lambda chunks: [*chunks, [_failed(index=0)]],
    "a second welcome comes": lambda chunks: [chunks[0], [_welcome()]],
    "counters come": lambda chunks: [chunks[0], [encode(Stats(counters={}))]],
    "a message has frames of its own": lambda chunks: [chunks[0], [encode(Pong(session=1)), b"x"]],
    "it is no message": lambda chunks: [chunks[0], [b"GET / HTTP/1.1"]],
    "it is of another version": lambda chunks: [chunks[0], [b"FDR\x7f" + chunks[1][0][4:]]],
}


def _lent(**fields: int) -> bytes:
    values = {"session": 1, "request": 0, "epoch": 0, "index": 0, "slot": 0, "valid": 5}
    return encode(Lent(**values | fields))  # type: ignore[arg-type]


def _failed(index: int) -> bytes:
    return encode(Failed(session=1, epoch=0, index=index, code="dataset", message="disk on fire"))


def _welcome(**fields: object) -> bytes:
    values: dict[str, object] = {
        "session": 1,
        "dataset": "set",
        "fingerprint": "f",
        "recipe_fingerprint": RECIPE.fingerprint(),
        "classes": ("a", "b"),
        "samples": 20,
        "batches": 4,
        "shards": 2,
        "lanes": 1,
        "window": 2,
        "chunk_images": 3,
        "node": "n",
        "number": 0,
        "incarnation": 1,
        "siblings": (("ipc:///n",),),
        "feeder_version": "0",
        "self_test": "5" * 32,
        "libraries": {},
    }
    return encode(Welcome(**values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", CHANGES)
def test_a_protocol_violation_is_an_error_at_once_that_names_the_node(what: str) -> None:
    """The next batch is good, so that messages after a whole batch are read as well."""
    with FakeNode(samples=20, shards=2, chunk_images=3) as node:
        node.script = lambda key, chunks: CHANGES[what](chunks) if key == FIRST else chunks
        with (
            _open(node) as fetcher,
            pytest.raises(ProtocolError, match=rf"^{node.endpoint}\b"),
        ):
            list(fetcher.fetch([FIRST, (0, 1)]))


def test_chunks_in_any_order_are_no_error() -> None:
    with FakeNode(samples=20, shards=2, chunk_images=2) as node:
        node.script = lambda _, chunks: chunks[::-1]
        with _open(node) as fetcher:
            batches = [(batch.key, batch.valid) for batch in fetcher.fetch([FIRST, (0, 1)])]
    assert batches == [((0, 0), 5), ((0, 1), 5)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dataset": "another"}, "another"),
        ({"recipe_fingerprint": "0" * 32}, "reads the recipe differently"),
        ({"window": 3}, "3 batches at once"),
        ({"batches": 5}, "5 batches"),
        ({"batches": 3}, "3 batches"),
        ({"lanes": 3}, "lanes"),
        ({"samples": 2**48}, "samples"),
    ],
)
def test_a_welcome_that_does_not_fit_the_hello_is_refused(
    fields: dict[str, object], reason: str
) -> None:
    with FakeNode() as node:
        node.greeting = lambda _: [_welcome(**fields)]
        with pytest.raises(ProtocolError, match=rf"^{node.endpoint}\b.*{reason}"):
            _open(node, window=2)


@contextmanager
def chattering(node: FakeNode) -> Iterator[None]:
    """Have a node keep sending messages without rows: Pongs, messages of other sessions."""
    elsewhere = Failed(session=8, epoch=0, index=0, code="dataset", message="elsewhere")
    chatter = itertools.cycle([encode(Pong(session=1)), _lent(session=8), encode(elsewhere)])
    stop = threading.Event()

    def talk() -> None:
        while not stop.wait(0.01):
            if node.peers:
                node.send([next(chatter)], node.peers[0])

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        yield
    finally:
        stop.set()
        talker.join()


def test_other_messages_do_not_postpone_a_deadline() -> None:
    with FakeNode(samples=20, shards=2, chunk_images=3) as node, chattering(node):
        node.script = lambda _, chunks: chunks[:1]
        with (
            _open(node, timeout_s=0.5) as fetcher,
            pytest.raises(PeerError, match=r"within 0\.5 s"),
        ):
            next(fetcher.fetch([FIRST]))


def test_a_greeting_without_an_answer_ends_in_time_despite_other_messages() -> None:
    with FakeNode() as node, chattering(node):
        node.greeting = lambda _: None
        with pytest.raises(PeerError, match=r"within 0\.5 s"):
            _open(node, timeout_s=0.5)


def test_the_error_names_the_deadline_that_has_passed() -> None:
    with FakeNode(samples=20, shards=2, chunk_images=3) as node:
        node.script = lambda key, chunks: chunks if key == FIRST else []
        with (
            _open(node, timeout_s=LONG_S, total_s=0.5) as fetcher,
            pytest.raises(PeerError, match=r"within 0\.5 s in all: "),
        ):
            list(fetcher.fetch([FIRST, (0, 1)]))
        with (
            _open(node, timeout_s=0.5, total_s=LONG_S) as fetcher,
            pytest.raises(PeerError, match=r"within 0\.5 s: "),
        ):
            list(fetcher.fetch([FIRST, (0, 1)]))


def test_the_same_batch_twice_at_once_is_refused() -> None:
    with FakeNode(samples=20, shards=2, chunk_images=3) as node, _open(node) as fetcher:
        with pytest.raises(ConfigError, match="batch 0 of epoch 0 is requested twice"):
            list(fetcher.fetch([FIRST, FIRST]))
        assert [batch.key for batch in fetcher.fetch([FIRST, (0, 1)])] == [FIRST, (0, 1)]


def _stop_after(*keys: BatchKey) -> Iterator[BatchKey]:
    yield from keys
    raise ValueError("the source of keys fails")


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([FIRST, (0, 1), (0, 1), (0, 2)], ConfigError),
        ([FIRST, (0, 1), (0, 2), (0, 2)], ConfigError),
        (_stop_after(FIRST, (0, 1), (0, 2)), ValueError),
    ],
)
def test_a_key_that_cannot_be_requested_leaves_the_window_as_it_was(
    keys: Iterable[BatchKey], error: type[Exception]
) -> None:
    with (
        FakeNode(samples=20, shards=2, chunk_images=3) as node,
        _open(node, window=2) as fetcher,
    ):
        with pytest.raises(error):
            list(fetcher.fetch(keys))
        again = [FIRST, (0, 1), (0, 2), (0, 3)]
        assert [batch.key for batch in fetcher.fetch(again)] == again
        assert node.largest_window == 2
        assert not node.problems


def test_a_batch_may_be_requested_again_as_soon_as_it_is_released() -> None:
    with (
        FakeNode(samples=20, shards=2, chunk_images=3) as node,
        _open(node, window=1) as fetcher,
    ):
        assert [batch.key for batch in fetcher.fetch([FIRST, FIRST])] == [FIRST, FIRST]
        assert not node.problems


@contextmanager
def lending(tmp_path: Path, answer: Callable[[Request], list[Message]]) -> Iterator[str]:
    """Run a node that grants two slots, and then answers the first request with ``answer``."""
    endpoint = f"ipc://{tmp_path}/node"
    memory = SlotMemory.create(SlotLayout.of_recipe(RECIPE, INDEX_LABELS, slots=2))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{tmp_path}/node.slots")
    listener.listen()

    def grant() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(CLAIM_BYTES)
            fd = memory.open_read_only()
            socket.send_fds(connection, [encode_answer()], [fd])
            os.close(fd)
            connection.recv(1)  # its end

    def speak(message: object) -> list[Message]:
        match message:
            case Hello():
                return [[_welcome()]]
            case Request():
                return answer(message) if message.want else []
        return []

    granting = threading.Thread(target=grant)
    granting.start()
    node = ScriptedNode(endpoint, speak)
    try:
        yield endpoint
    finally:
        node.close()
        listener.shutdown(socket.SHUT_RDWR)
        granting.join()
        listener.close()
        memory.close()


LOANS: dict[str, list[Message]] = {
    "a slot is lent twice at once": [[_lent(index=1, slot=1)], [_lent(index=0, slot=1)]],
    "a batch is lent twice": [[_lent(index=0, slot=0)], [_lent(index=0, slot=1)]],
    "a slot is lent that there is not": [[_lent(slot=2)]],
    "a batch is lent that was not requested": [[_lent(index=3)]],
    "too many rows are real": [[_lent(valid=6)]],
    "it answers another request": [[_lent(request=7)]],
    "a chunk comes where batches are lent": [_chunk(0, 0, 0, 3, session=1)],
    "frames come with it": [[_lent(), b"row"]],
    "it fails after all": [[_lent()], [_failed(index=0)]],
}


@pytest.mark.parametrize("what", LOANS)
def test_a_loan_that_breaks_the_protocol_is_an_error_at_once(tmp_path: Path, what: str) -> None:
    loans = LOANS[what]
    with (
        lending(tmp_path, lambda _: loans) as endpoint,
        BatchFetcher(endpoint, dataset="set", recipe=RECIPE, timeout_s=LONG_S, window=2) as fetcher,
        pytest.raises(ProtocolError, match=f"^{endpoint}"),
    ):
        list(fetcher.fetch([FIRST, (0, 1)]))
    assert fetcher.copied_because is None
