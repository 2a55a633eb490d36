"""Status requests: one connection for many, errors in time, a wait that keys can interrupt."""

from pathlib import Path

import pytest

from feeder.client import stats
from feeder.client.stats import StatsLink, request_names, request_sources
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.wire.messages import (
    MAX_NAMES,
    MAX_SOURCES,
    HostStats,
    HostStatsRequest,
    Names,
    NamesRequest,
    NodeMessage,
    Refused,
    RefusedCode,
    Sources,
    SourcesRequest,
    Stats,
    StatsRequest,
)
from tests.screens.report_node import ReportNode
from tests.support.host_reports import compute_bound, healthy

WAIT_S = 60.0


def test_repeated_requests_use_one_connection() -> None:
    with ReportNode(healthy(), compute_bound()) as node, StatsLink(node.endpoint) as link:
        kinds = []
        for _ in range(3):
            link.ask(HostStatsRequest(), WAIT_S)
            answer = link.take(HostStats, WAIT_S)
            assert answer is not None
            assert answer.report is not None
            kinds.append(answer.report.verdict.kind)
        assert kinds == ["healthy", "compute-bound", "compute-bound"]
        assert len(node.peers) == 1


def test_a_daemon_that_comes_later_is_found_by_the_next_request(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with StatsLink(endpoint) as link:
        link.ask(StatsRequest(), 0.2)
        with pytest.raises(PeerError, match=r"within 0\.2 s: is a feeder serving there"):
            link.take(Stats, WAIT_S)
        with ReportNode(healthy(), endpoint=endpoint):
            link.ask(StatsRequest(), WAIT_S)
            assert link.take(Stats, WAIT_S) == Stats(counters={"batches": 12})


def test_a_request_that_is_given_up_leaves_no_answer_for_the_next() -> None:
    with ReportNode(healthy(), compute_bound()) as node, StatsLink(node.endpoint) as link:
        link.ask(HostStatsRequest(), WAIT_S)
        link.ask(HostStatsRequest(), WAIT_S)
        answer = link.take(HostStats, WAIT_S)
        assert answer is not None
        link.ask(HostStatsRequest(), WAIT_S)
        assert link.take(HostStats, WAIT_S) == HostStats(report=compute_bound())


def test_names_of_many_samples_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_RATE_PAUSE_S", 0.0)
    requests: list[tuple[int, ...]] = []

    def answer(message: NamesRequest) -> NodeMessage:
        requests.append(message.sample_ids)
        assert (message.dataset, message.content) == ("birds", "f")
        if len(requests) == 2:
            return Refused(code="rate", message="later")
        ids = message.sample_ids[: 7 if len(requests) == 1 else None]  # what can be read in time
        return Names(names=tuple(b"caf\xe9/%d.jpg" % number for number in ids))

    ids = [500, *range(200), 3, 3]
    with ReportNode(healthy()) as node:
        node.answer_names = answer
        names = request_names(node.endpoint, "birds", ids, WAIT_S, content="f")
    assert names == {number: f"caf\udce9/{number}.jpg" for number in ids}
    assert max(map(len, requests)) == MAX_NAMES
    assert len(requests) == 1 + 1 + -(-(201 - 7) // MAX_NAMES)


@pytest.mark.parametrize(
    ("code", "kind"), [("unknown-dataset", DatasetError), ("range", ConfigError)]
)
def test_refused_names_are_one_line_with_the_endpoint(
    code: RefusedCode, kind: type[FeederError]
) -> None:
    with ReportNode(healthy()) as node:
        node.answer_names = lambda _: Refused(code=code, message="because of this")
        with pytest.raises(kind, match=f"^{node.endpoint}: because of this$"):
            request_names(node.endpoint, "birds", [1], WAIT_S)


@pytest.mark.parametrize("number", [-1, 2**48])
def test_ids_that_no_dataset_has_are_not_sent(number: int) -> None:
    with pytest.raises(ConfigError, match=f"dataset 'birds' has no sample {number}"):
        request_names("tcp://127.0.0.1:1", "birds", [5, number], WAIT_S)
    assert request_names("tcp://127.0.0.1:1", "birds", [], WAIT_S) == {}


def sources(*rows: tuple[int, int]) -> Sources:
    return Sources(datasets=(("cats", "f"), ("birds", "g")), rows=rows)


def test_sources_of_many_samples_are_asked_for_in_parts() -> None:
    requests: list[int] = []

    def answer(message: SourcesRequest) -> NodeMessage:
        requests.append(len(message.sample_ids))
        assert (message.dataset, message.content) == ("all", "f")
        return sources(*((number % 2, 10 * number) for number in message.sample_ids))

    ids = [*range(MAX_SOURCES + 3), 2, 2]
    with ReportNode(healthy()) as node:
        node.answer_sources = answer
        found = request_sources(node.endpoint, "all", ids, WAIT_S, content="f")
    expected = {number: (("cats", "birds")[number % 2], 10 * number) for number in ids}
    assert found == (expected, False)
    assert requests == [MAX_SOURCES, 3]


@pytest.mark.parametrize("rows", [[(0, 1)], [(0, 1), (2, 1)], [(0, 1), (0, 2), (0, 3)]])
def test_sources_of_other_samples_break_the_protocol(rows: list[tuple[int, int]]) -> None:
    with ReportNode(healthy()) as node:
        node.answer_sources = lambda _: sources(*rows)
        with pytest.raises(ProtocolError, match="breaks the protocol: sources of other samples"):
            request_sources(node.endpoint, "all", [5, 6], WAIT_S)


def test_a_feeder_that_does_not_know_selections_is_one_line() -> None:
    """It drops what it cannot parse."""
    with (
        ReportNode(healthy()) as node,
        pytest.raises(PeerError, match="version without selections") as caught,
    ):
        request_sources(node.endpoint, "all", [5], 0.2)
    assert "\n" not in str(caught.value)
