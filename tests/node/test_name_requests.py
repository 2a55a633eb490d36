"""Requests for names, which a worker answers: bounds, refusals, the time they may take."""

from types import SimpleNamespace
from typing import Any

import pytest

from feeder.node.name_requests import NAMES_WITHIN_S, PAUSE, WAITING_MAX, NameRequests
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import ServedDataset
from feeder.wire.messages import (
    Names,
    NamesRequest,
    NodeMessage,
    Refused,
    encode,
)
from feeder.worker.messages import NamesRead, ReadNames

SERVED = ServedDataset(content="f", classes=(), layout=ShardLayout(samples=10, shards=2))


class Node:
    """The requests of a node with two workers, and all that it sends."""

    def __init__(self) -> None:
        self.read: list[tuple[int, ReadNames]] = []
        self.answers: list[tuple[bytes, NodeMessage]] = []
        self.pool: Any = SimpleNamespace(
            numbers=(7, 8), send=lambda worker, message: self.read.append((worker, message))
        )
        self.requests = NameRequests(
            {"birds": SERVED},
            self.pool,
            lambda peer, message: self.answers.append((peer, message)),
        )

    def add(self, peer: bytes, message: NamesRequest, now_s: float, stalled: str = "") -> None:
        if self.requests.deadline_s <= now_s:
            self.requests.run_due(now_s)
        self.requests.add(peer, message, {stalled}, now_s)

    def answer(self, now_s: float, names: tuple[bytes, ...] = (b"a",), problem: str = "") -> None:
        ticket = self.read[-1][1].ticket
        self.requests.on_read(NamesRead(ticket, names, 0.5, problem), now_s)


def wanted(*sample_ids: int, dataset: str = "birds", content: str = "") -> NamesRequest:
    return NamesRequest(dataset=dataset, content=content, sample_ids=sample_ids)


def test_a_worker_reads_one_request_at_a_time_and_pauses_after_it() -> None:
    node = Node()
    node.add(b"a", wanted(3, 9), 10.0)
    node.add(b"b", wanted(5, content="f"), 10.0)
    assert [(message.dataset, message.sample_ids) for _, message in node.read] == [
        ("birds", (3, 9))
    ]
    node.answer(10.5, (b"x", b"y"))
    assert node.answers == [(b"a", Names(names=(b"x", b"y")))]
    assert 10.5 + PAUSE * 0.5 > 14.0, "it expires before its turn"
    node.requests.run_due(13.9)
    assert len(node.read) == 1
    node.requests.run_due(14.0)
    assert isinstance(node.answers[-1][1], Refused)
    node.add(b"c", wanted(5), 15.0)
    assert node.read[-1][1].sample_ids == (5,)


@pytest.mark.parametrize(
    ("message", "stalled", "code", "text"),
    [
        (wanted(1, dataset="cats"), "", "unknown-dataset", "no dataset 'cats' here; served: birds"),
        (
            wanted(1, content="e"),
            "",
            "unknown-dataset",
            "'birds' is a different one here, with content fingerprint f",
        ),
        (wanted(0, 10), "", "range", "'birds' has no sample 10, it has 0 .. 9"),
        (wanted(1), "birds", "unreadable", "cannot be read: its storage does not answer"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(
    message: NamesRequest, stalled: str, code: str, text: str
) -> None:
    node = Node()
    node.add(b"a", message, 10.0, stalled)
    ((_, refused),) = node.answers
    assert isinstance(refused, Refused)
    assert (refused.code, node.read) == (code, [])
    assert text in refused.message
    encode(refused)


def test_requests_for_names_that_wait_are_bounded() -> None:
    node = Node()
    for number in range(WAITING_MAX):
        node.add(b"%d" % number, wanted(1), 10.0)
    assert node.answers == []
    node.add(b"one more", wanted(1), 10.0)
    node.add(b"0", wanted(1), 10.0)
    assert [
        (peer, message.code) for peer, message in node.answers if isinstance(message, Refused)
    ] == [(b"one more", "rate"), (b"0", "rate")]
    assert len(node.read) == 1


def test_a_worker_that_does_not_answer_keeps_no_client_waiting_and_gets_no_more() -> None:
    node = Node()
    node.add(b"a", wanted(1), 10.0)
    node.add(b"b", wanted(2), 11.0)
    node.requests.run_due(10.0 + NAMES_WITHIN_S)
    node.requests.run_due(11.0 + NAMES_WITHIN_S)
    assert [peer for peer, _ in node.answers] == [b"a", b"b"]
    node.add(b"c", wanted(3), 16.0)
    assert len(node.read) == 1
    node.answer(16.5)
    assert len(node.answers) == 2, "what comes late is for nobody"
    node.requests.run_due(16.5 + NAMES_WITHIN_S - 1)
    node.add(b"d", wanted(4), 21.5)
    assert node.read[-1][1].sample_ids == (4,)


def test_the_request_of_a_lost_worker_goes_to_another() -> None:
    node = Node()
    node.add(b"a", wanted(1), 10.0)
    (lost, _) = node.read[0]
    node.requests.on_lost(lost + 1)
    node.requests.run_due(10.1)
    assert len(node.read) == 1
    node.requests.on_lost(lost)
    node.requests.run_due(10.2)
    assert [message.sample_ids for _, message in node.read] == [(1,), (1,)]
    node.answer(10.2, (), "shard-00001.fds is damaged")
    ((_, refused),) = node.answers
    assert isinstance(refused, Refused)
    assert refused.message == "names of dataset 'birds' cannot be read: shard-00001.fds is damaged"
