"""Clients that wait for the supervisor's report of the host."""

import logging

import msgspec
import pytest

from feeder.node.host_reports import ANSWER_WITHIN_S, FRESH_S, WAITING_MAX, HostReports
from feeder.node.messages import ReportPart
from feeder.wire.messages import MAX_NODE_HEADER_BYTES
from tests.support.host_reports import healthy

REPORT = healthy()
DATA = msgspec.msgpack.encode(REPORT)
WHOLE = ReportPart(is_last=True, data=DATA)


class Asked(HostReports):
    """Counts how often the supervisor was asked."""

    def __init__(self) -> None:
        self.times = 0
        super().__init__(self._count)

    def _count(self) -> None:
        self.times += 1


def test_the_supervisor_is_asked_once_for_all_that_wait() -> None:
    reports = Asked()
    for peer in (b"a", b"b", b"a"):
        assert reports.request(peer, 10.0) == (False, None)
    assert reports.times == 1
    assert reports.add_part(ReportPart(is_last=False, data=DATA[:20]), 10.1) == ((), None)
    assert reports.add_part(ReportPart(is_last=True, data=DATA[20:]), 10.2) == (
        (b"a", b"b"),
        REPORT,
    )
    assert reports.deadline_s == float("inf")


def test_a_fresh_report_is_sent_again_and_an_old_one_is_not() -> None:
    reports = Asked()
    reports.request(b"a", 10.0)
    reports.add_part(WHOLE, 10.0)
    assert reports.request(b"a", 10.0 + 0.9 * FRESH_S) == (True, REPORT)
    assert reports.times == 1
    assert reports.request(b"a", 10.0 + 1.1 * FRESH_S) == (False, None)
    assert reports.times == 2


def test_a_silent_supervisor_leaves_clients_without_a_report_in_time() -> None:
    reports = Asked()
    reports.request(b"a", 10.0)
    reports.request(b"b", 11.0)
    assert reports.deadline_s == 10.0 + ANSWER_WITHIN_S
    assert reports.take_expired(11.9) == ()
    assert reports.take_expired(12.0) == (b"a", b"b")
    assert reports.deadline_s == float("inf")
    assert reports.request(b"a", 13.0) == (False, None)
    assert reports.times == 2


def test_those_that_wait_are_bounded() -> None:
    reports = Asked()
    for number in range(WAITING_MAX):
        assert reports.request(b"%d" % number, 10.0) == (False, None)
    assert reports.request(b"one more", 10.0) == (True, None)
    peers, _ = reports.add_part(WHOLE, 10.0)
    assert len(peers) == WAITING_MAX


def test_a_malformed_report_is_none_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    reports = Asked()
    reports.request(b"a", 10.0)
    with caplog.at_level(logging.WARNING):
        assert reports.add_part(ReportPart(is_last=True, data=b"\xc1"), 10.0) == ((b"a",), None)
    assert "malformed" in caplog.text
    reports.request(b"a", 10.0)
    assert reports.add_part(WHOLE, 10.0) == ((b"a",), REPORT)


def test_a_report_that_is_too_long_for_a_client_is_none() -> None:
    reports = Asked()
    reports.request(b"a", 10.0)
    half = bytes(MAX_NODE_HEADER_BYTES // 2 + 1)
    reports.add_part(ReportPart(is_last=False, data=half), 10.0)
    assert reports.add_part(ReportPart(is_last=True, data=half), 10.0) == ((b"a",), None)
    reports.request(b"a", 10.0)
    assert reports.add_part(WHOLE, 10.0) == ((b"a",), REPORT)
