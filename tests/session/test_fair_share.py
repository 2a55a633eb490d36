"""Fair shares: taking batches earns tokens; only sending uses them up, until time refills them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.recipe import Recipe
from feeder.session.fair_share import BURST, EARNED, MALFORMED_COST, FairShare, cost_of
from feeder.wire.messages import (
    BlobsRequest,
    Hello,
    HostStatsRequest,
    NamesRequest,
    Ping,
    Request,
    SourcesRequest,
    StatsRequest,
)

PING = cost_of(Ping(session=1))
HELLO = cost_of(
    Hello(dataset="d", recipe=Recipe.for_split("train", batch_size=1), seed=0, window=1, client="c")
)


def send(shares: FairShare, peer: bytes, cost: float, now_s: float) -> bool:
    """A message arrives; return whether it is allowed."""
    is_allowed = shares.allows(peer, now_s)
    if is_allowed:
        shares.charge(peer, cost)
    return is_allowed


@pytest.mark.parametrize(
    ("cost", "burst", "in_ten_s"),
    [
        (PING, 256, 640),
        (cost_of(Request(session=1, want=tuple((0, i) for i in range(64)))), 16, 37),
        (cost_of(NamesRequest(dataset="d", sample_ids=(0,))), 249, 620),
        (cost_of(NamesRequest(dataset="d", sample_ids=(0,) * 64)), 86, 213),
        (cost_of(SourcesRequest(dataset="d", sample_ids=(0,) * 512)), 128, 320),
        (cost_of(BlobsRequest(content="f", sample_ids=(0,) * 256)), 52, 128),
        (cost_of(StatsRequest()), 32, 80),
        (cost_of(HostStatsRequest()), 8, 20),
        (HELLO, 16, 40),
        (MALFORMED_COST, 64, 160),
    ],
)
def test_a_peer_that_only_sends_gets_a_burst_and_then_what_time_refills(
    cost: float, burst: int, in_ten_s: int
) -> None:
    shares = FairShare()
    assert sum(send(shares, b"p", cost, 0.0) for _ in range(1000)) == burst
    assert send(shares, b"other", HELLO, 0.0)
    allowed = sum(send(shares, b"p", cost, ms / 1000) for ms in range(1, 10_001))
    assert abs(allowed - in_ten_s) <= max(1, 0.05 * in_ten_s)


def test_a_client_that_takes_tiny_batches_at_full_speed_is_never_limited() -> None:
    shares = FairShare()
    cost = cost_of(Request(session=1, want=((0, 1),), release=((0, 0),)))
    for _ in range(100_000):  # at one moment, so only the batches earn tokens
        assert send(shares, b"p", cost, 0.0)
        shares.charge(b"p", -EARNED)


def test_a_client_that_retries_every_half_second_is_never_limited() -> None:
    shares = FairShare()
    assert all(send(shares, b"p", HELLO + PING, 0.5 * number) for number in range(1000))


def test_dropped_messages_are_reported_once_a_second() -> None:
    shares = FairShare()
    shares.allows(b"p", 0.0)
    due = [shares.is_report_due(b"p", ms / 1000) for ms in range(3000)]
    assert [ms for ms, is_due in enumerate(due) if is_due] == [0, 1000, 2000]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.floats(0, 100)), max_size=200))
def test_buckets_have_a_top_and_a_bottom(steps: list[tuple[bytes, float]]) -> None:
    shares, now_s = FairShare(), 0.0
    for peer, pause_s in steps:
        now_s += pause_s
        send(shares, peer, HELLO, now_s)
        shares.charge(peer, -EARNED)
    for peer in {peer for peer, _ in steps}:
        assert sum(send(shares, peer, 1.0, now_s) for _ in range(2 * int(BURST))) <= BURST
        shares.charge(peer, 1e6)
        assert shares.allows(peer, now_s + 1.1), "a second pays any debt"
