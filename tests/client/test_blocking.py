"""The simplest client against a node whose every message is scripted here."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from feeder.client.blocking import BatchFetcher
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.plan.recipe import Recipe
from feeder.wire.claim import claim_path
from feeder.wire.messages import (
    Bye,
    Chunk,
    Failed,
    Hello,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
    decode_from_client,
    encode,
)

RECIPE = Recipe.for_split("train", batch_size=5, image_size=8)
Answer = Callable[[object], list[list[bytes]]]


def _welcome(window: int = 2) -> bytes:
    return encode(
        Welcome(
            session=9,
            dataset="set",
            fingerprint="f",
            recipe_fingerprint=RECIPE.fingerprint(),
            classes=("a", "b"),
            samples=20,
            batches=4,
            shards=1,
            lanes=1,
            window=window,
            chunk_images=3,
            node="n",
            number=0,
            incarnation=1,
            siblings=(("ipc:///n",),),
            feeder_version="0",
            self_test="5" * 32,
            libraries={},
        )
    )


def _chunk(epoch: int, index: int, first: int, images: int, session: int = 9) -> list[bytes]:
    header = Chunk(session=session, epoch=epoch, index=index, first=first, images=images, valid=5)
    rows = np.arange(first, first + images, dtype=np.int64)
    pixels = np.broadcast_to((rows + 10 * index).astype(np.int8)[:, None], (images, 8 * 8 * 3))
    return [encode(header), pixels.tobytes(), rows.tobytes(), (rows + 100 * index).tobytes()]


class ScriptedNode:
    """Answers every message with what ``answer`` returns, and keeps all that it received."""

    def __init__(self, endpoint: str, answer: Answer) -> None:
        self.received: list[object] = []
        self._answer = answer
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.bind(endpoint)
        self.has_bye = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            identity, frame = self._router.recv_multipart()
            message = decode_from_client(frame)
            self.received.append(message)
            if isinstance(message, Bye):
                self.has_bye.set()
            for frames in self._answer(message):
                self._router.send_multipart([identity, *frames])

    def close(self) -> None:
        """Idempotent."""
        self._stop.set()
        self._thread.join()
        self._router.close()
        self._context.term()


@contextmanager
def _scripted(tmp_path: Path, answer: Answer) -> Iterator[tuple[str, ScriptedNode]]:
    endpoint = f"ipc://{tmp_path}/node"
    node = ScriptedNode(endpoint, answer)
    try:
        yield endpoint, node
    finally:
        node.close()


def _serve_well(message: object) -> list[list[bytes]]:
    match message:
        case Hello():
            return [[_welcome()]]
        case Ping():
            return [[encode(Pong(session=9))]]
        case Request():
            chunks = [
                _chunk(epoch, index, first, images)
                for epoch, index in reversed(message.want)
                for first, images in ((3, 2), (0, 3))
            ]
            return [_chunk(0, 0, 0, 5, session=8), *chunks]  # one is of a session long gone
        case _:
            return []


def _open(endpoint: str, timeout_s: float = 20.0) -> BatchFetcher:
    return BatchFetcher(endpoint, dataset="set", recipe=RECIPE, timeout_s=timeout_s)


def test_batches_come_in_the_order_asked_and_within_the_window(tmp_path: Path) -> None:
    keys = [(0, 2), (0, 0), (1, 3), (0, 1)]
    with _scripted(tmp_path, _serve_well) as (endpoint, node):
        with _open(endpoint) as fetcher:
            seen = []
            for batch in fetcher.fetch(keys):
                index = batch.key[1]
                seen.append(batch.key)
                assert (batch.pixels[:, 0, 0, 0] == np.arange(5) + 10 * index).all()
                assert batch.labels.tolist() == [0, 1, 2, 3, 4]
                assert batch.sample_ids.tolist() == [100 * index + row for row in range(5)]
                assert batch.valid == 5
            fetcher.close()
        assert node.has_bye.wait(20)
    assert seen == keys
    requests = [message for message in node.received if isinstance(message, Request)]
    assert requests[0].want == ((0, 2), (0, 0))
    assert [key for request in requests for key in request.release] == keys
    held: set[tuple[int, int]] = set()
    for request in requests:
        held -= set(request.release)
        held |= set(request.want)
        assert len(held) <= 2


def test_a_fetch_that_was_not_used_up_does_not_spoil_the_next(tmp_path: Path) -> None:
    with _scripted(tmp_path, _serve_well) as (endpoint, node), _open(endpoint) as fetcher:
        next(fetcher.fetch([(0, 0), (0, 1), (0, 2)]))
        again = [batch.key for batch in fetcher.fetch([(0, 0), (0, 3)])]
        assert again == [(0, 0), (0, 3)]
    requests = [message for message in node.received if isinstance(message, Request)]
    assert requests[1].release == ((0, 0), (0, 1))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("unknown-dataset", DatasetError),
        ("bad-recipe", ConfigError),
        ("version", ProtocolError),
        ("draining", PeerError),
    ],
)
def test_refusals_become_errors_of_their_kind(
    tmp_path: Path, code: str, error: type[FeederError]
) -> None:
    refused = encode(Refused(code=code, message="because"))  # type: ignore[arg-type]
    with (
        _scripted(tmp_path, lambda _: [[refused]]) as (endpoint, _),
        pytest.raises(error, match=rf"node refuses \({code}\): because"),
    ):
        _open(endpoint)


def test_the_error_of_a_failed_batch_names_it(tmp_path: Path) -> None:
    def answer(message: object) -> list[list[bytes]]:
        if isinstance(message, Hello):
            return [[_welcome()]]
        failed = Failed(session=9, epoch=0, index=1, code="dataset", message="shard is damaged")
        return [[encode(failed)]]

    with (
        _scripted(tmp_path, answer) as (endpoint, _),
        _open(endpoint) as fetcher,
        pytest.raises(DatasetError, match="batch 1 of epoch 0: shard is damaged"),
    ):
        next(fetcher.fetch([(0, 1)]))


@pytest.mark.parametrize("fault", ["short frame", "row outside", "unasked", "no frames"])
def test_chunks_that_do_not_fit_are_refused(tmp_path: Path, fault: str) -> None:
    def answer(message: object) -> list[list[bytes]]:
        if isinstance(message, Hello):
            return [[_welcome()]]
        chunk = {
            "short frame": lambda: [*_chunk(0, 0, 0, 5)[:1], b"1", *_chunk(0, 0, 0, 5)[2:]],
            "row outside": lambda: _chunk(0, 0, 3, 3),
            "unasked": lambda: _chunk(0, 1, 0, 5),
            "no frames": lambda: _chunk(0, 0, 0, 5)[:1],
        }[fault]()
        return [chunk]

    with (
        _scripted(tmp_path, answer) as (endpoint, _),
        _open(endpoint) as fetcher,
        pytest.raises(ProtocolError, match="/node breaks the protocol: "),
    ):
        next(fetcher.fetch([(0, 0)]))


def test_silence_ends_at_the_deadline_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        PeerError, match=r"no answer from ipc://.*/nobody within 0\.2 s: nothing answers there"
    ):
        _open(f"ipc://{tmp_path}/nobody", timeout_s=0.2)
    with (
        _scripted(tmp_path, lambda _: []) as (endpoint, _),
        pytest.raises(
            PeerError, match=r"within 0\.2 s: it accepted the connection but does not answer"
        ),
    ):
        _open(endpoint, timeout_s=0.2)


def test_a_node_that_restarts_while_slots_are_claimed_is_greeted_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = claim_path(f"ipc://{tmp_path}/node")
        assert path is not None
        listener.bind(path)
        listener.listen()
        with ThreadPoolExecutor() as pool, _scripted(tmp_path, _serve_well) as (endpoint, first):
            opening = pool.submit(_open, endpoint)
            claimed, _ = listener.accept()  # never answered
            first.close()
            Path(path).unlink()
            with (
                claimed,
                _scripted(tmp_path, _serve_well) as (_, second),
                opening.result() as fetcher,
            ):
                assert [batch.key for batch in fetcher.fetch([(0, 0)])] == [(0, 0)]
                assert isinstance(second.received[0], Hello)


def test_a_node_that_ends_during_a_fetch_leaves_a_remedy(tmp_path: Path) -> None:
    answer: Answer = lambda message: _serve_well(message) if isinstance(message, Hello) else []  # noqa: E731
    with _scripted(tmp_path, answer) as (endpoint, node), _open(endpoint, 1.0) as fetcher:
        node.close()
        with pytest.raises(PeerError, match=r"within 1 s: .*is `feeder serve` still running"):
            next(fetcher.fetch([(0, 0)]))


def test_closing_twice_and_after_the_node_has_gone_is_harmless(tmp_path: Path) -> None:
    with _scripted(tmp_path, _serve_well) as (endpoint, _):
        fetcher = _open(endpoint)
    fetcher.close()
    fetcher.close()
