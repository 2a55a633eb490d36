"""Requests that a worker or the supervisor answers: bounds, refusals, the time they may take."""

import logging

import msgspec
import pytest

from feeder.metrics.report import HostReport
from feeder.node.messages import ReportPart
from feeder.node.relays import (
    FRESH_S,
    NAMES_WITHIN_S,
    PAUSE,
    REPORT_WITHIN_S,
    WAITING_MAX,
    HostReports,
    NameRequests,
)
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import ServedDataset
from feeder.wire.messages import (
    MAX_NODE_HEADER_BYTES,
    Names,
    NamesRequest,
    NodeMessage,
    Refused,
    encode,
)
from feeder.worker.messages import NamesRead, ReadNames
from tests.support.host_reports import healthy

SERVED = ServedDataset(fingerprint="f", classes=(), layout=ShardLayout(samples=10, shards=2))


class Node:
    """The requests of a node with two workers, and all that it sends."""

    def __init__(self) -> None:
        self.read: list[tuple[int, ReadNames]] = []
        self.answers: list[tuple[bytes, NodeMessage]] = []
        self.requests = NameRequests(
            {"birds": SERVED},
            lambda worker, message: self.read.append((worker, message)),
            lambda peer, message: self.answers.append((peer, message)),
        )

    def add(self, peer: bytes, message: NamesRequest, now_s: float, stalled: str = "") -> None:
        self.requests.add(peer, message, {stalled}, now_s)
        self.requests.run_due((7, 8), now_s)

    def answer(self, now_s: float, names: tuple[bytes, ...] = (b"a",), problem: str = "") -> None:
        ticket = self.read[-1][1].ticket
        self.requests.on_read(NamesRead(ticket, names, 0.5, problem), now_s)


def wanted(*sample_ids: int, dataset: str = "birds", fingerprint: str = "") -> NamesRequest:
    return NamesRequest(dataset=dataset, fingerprint=fingerprint, sample_ids=sample_ids)


def test_a_worker_reads_one_request_at_a_time_and_pauses_after_it() -> None:
    node = Node()
    node.add(b"a", wanted(3, 9), 10.0)
    node.add(b"b", wanted(5, fingerprint="f"), 10.0)
    assert [(message.dataset, message.sample_ids) for _, message in node.read] == [
        ("birds", (3, 9))
    ]
    node.answer(10.5, (b"x", b"y"))
    assert node.answers == [(b"a", Names(names=(b"x", b"y")))]
    assert node.requests.deadline_s == 14.0 < 10.5 + PAUSE * 0.5, "expires before its turn"
    node.requests.run_due((7, 8), 13.9)
    assert len(node.read) == 1
    node.requests.run_due((7, 8), 14.0)
    assert isinstance(node.answers[-1][1], Refused)
    node.add(b"c", wanted(5), 15.0)
    assert node.read[-1][1].sample_ids == (5,)


@pytest.mark.parametrize(
    ("message", "stalled", "code", "text"),
    [
        (wanted(1, dataset="cats"), "", "unknown-dataset", "no dataset 'cats' here; served: birds"),
        (wanted(1, fingerprint="e"), "", "unknown-dataset", "'birds' is another one here, f"),
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
    node.requests.run_due((7, 8), 10.0 + NAMES_WITHIN_S)
    node.requests.run_due((7, 8), 11.0 + NAMES_WITHIN_S)
    assert [peer for peer, _ in node.answers] == [b"a", b"b"]
    node.add(b"c", wanted(3), 16.0)
    assert len(node.read) == 1
    node.answer(16.5)
    assert len(node.answers) == 2, "what comes late is for nobody"
    node.requests.run_due((7, 8), 16.5 + NAMES_WITHIN_S - 1)
    node.add(b"d", wanted(4), 21.5)
    assert node.read[-1][1].sample_ids == (4,)


def test_requests_wait_for_a_worker_that_comes_up() -> None:
    node = Node()
    node.requests.add(b"a", wanted(1), (), 10.0)
    node.requests.run_due((), 10.0)
    assert node.requests.deadline_s > 10.0, "the loop would spin"
    node.requests.run_due((7,), node.requests.deadline_s)
    assert [worker for worker, _ in node.read] == [7]


def test_the_request_of_a_lost_worker_goes_to_another() -> None:
    node = Node()
    node.add(b"a", wanted(1), 10.0)
    (lost, _) = node.read[0]
    node.requests.on_lost(lost + 1)
    node.requests.run_due((7, 8), 10.1)
    assert len(node.read) == 1
    node.requests.on_lost(lost)
    node.requests.run_due((7, 8), node.requests.deadline_s)
    assert [message.sample_ids for _, message in node.read] == [(1,), (1,)]
    node.answer(10.2, (), "shard-00001.fds is damaged")
    ((_, refused),) = node.answers
    assert isinstance(refused, Refused)
    assert refused.message == "names of dataset 'birds' cannot be read: shard-00001.fds is damaged"


# --- Reports of the host ------------------------------------------------------------------------

REPORT = healthy()
DATA = msgspec.msgpack.encode(REPORT)
WHOLE = ReportPart(is_last=True, data=DATA)


class Reports(HostReports):
    """Has how often the supervisor was asked, and all answers."""

    def __init__(self) -> None:
        self.times = 0
        self.answers: list[tuple[bytes, HostReport | None]] = []
        super().__init__(self._count, lambda peers, report: self._note(list(peers), report))

    def _count(self) -> None:
        self.times += 1

    def _note(self, peers: list[bytes], report: HostReport | None) -> None:
        self.answers += [(peer, report) for peer in peers]


def test_the_supervisor_is_asked_once_for_all_that_wait() -> None:
    reports = Reports()
    for peer in (b"a", b"b", b"a"):
        reports.add(peer, 10.0)
    assert reports.times == 1
    reports.add_part(ReportPart(is_last=False, data=DATA[:20]), 10.1)
    assert reports.answers == []
    reports.add_part(ReportPart(is_last=True, data=DATA[20:]), 10.2)
    assert reports.answers == [(b"a", REPORT), (b"b", REPORT)]
    assert reports.deadline_s == float("inf")


def test_a_fresh_report_is_sent_again_and_an_old_one_is_not() -> None:
    reports = Reports()
    reports.add_part(WHOLE, 10.0)
    reports.add(b"a", 10.0 + 0.9 * FRESH_S)
    assert (reports.answers, reports.times) == ([(b"a", REPORT)], 0)
    reports.add(b"a", 10.0 + 1.1 * FRESH_S)
    assert (len(reports.answers), reports.times) == (1, 1)


def test_a_silent_supervisor_leaves_clients_without_a_report_in_time() -> None:
    reports = Reports()
    reports.add(b"a", 10.0)
    reports.add(b"b", 11.0)
    assert reports.deadline_s == 10.0 + REPORT_WITHIN_S
    reports.run_due(11.9)
    assert reports.answers == []
    reports.run_due(12.0)
    assert reports.answers == [(b"a", None), (b"b", None)]
    assert reports.deadline_s == float("inf")
    reports.add(b"a", 13.0)
    assert reports.times == 2


def test_clients_that_wait_for_a_report_are_bounded() -> None:
    reports = Reports()
    for number in range(WAITING_MAX):
        reports.add(b"%d" % number, 10.0)
    reports.add(b"one more", 10.0)
    assert reports.answers == [(b"one more", None)]
    reports.add_part(WHOLE, 10.0)
    assert len(reports.answers) == 1 + WAITING_MAX


HALF = ReportPart(is_last=False, data=bytes(MAX_NODE_HEADER_BYTES // 2 + 1))


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ((ReportPart(is_last=True, data=b"\xc1"),), "malformed"),
        ((HALF, HALF, HALF, ReportPart(is_last=True, data=DATA)), ""),
    ],
)
def test_a_report_that_is_malformed_or_too_long_for_a_client_is_none(
    caplog: pytest.LogCaptureFixture, parts: tuple[ReportPart, ...], line: str
) -> None:
    reports = Reports()
    reports.add(b"a", 10.0)
    with caplog.at_level(logging.WARNING):
        for part in parts:
            reports.add_part(part, 10.0)
    assert reports.answers == [(b"a", None)]
    assert line in caplog.text
    reports.add(b"a", 10.0)
    reports.add_part(WHOLE, 10.0)
    assert reports.answers[1:] == [(b"a", REPORT)]
