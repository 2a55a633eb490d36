"""Fair shares: who trains is always heard, who only talks runs out, and time mends it."""

from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.recipe import Recipe
from feeder.session.fair_share import BURST, MALFORMED_COST, TOKENS_A_S, FairShare, cost_of
from feeder.wire.messages import Hello, Ping, Request, StatsRequest

PING = cost_of(Ping(session=1))
HELLO = cost_of(
    Hello(dataset="d", recipe=Recipe.for_split("train", batch_size=1), seed=0, window=1, client="c")
)


def speak(shares: FairShare, peer: bytes, cost: float, now_s: float) -> bool:
    heard = shares.allows(peer, now_s)
    if heard:
        shares.charge(peer, cost)
    return heard


def test_garbage_runs_out_and_others_are_heard() -> None:
    shares = FairShare()
    heard = sum(speak(shares, b"flood", MALFORMED_COST, 0.0) for _ in range(10_000))
    assert heard == BURST / MALFORMED_COST
    assert speak(shares, b"good", HELLO, 0.0)


def test_time_gives_everybody_a_few() -> None:
    shares = FairShare()
    while speak(shares, b"p", PING, 0.0):
        pass
    heard = sum(speak(shares, b"p", PING, ms / 1000) for ms in range(1, 10_001))
    assert 10 * TOKENS_A_S * 0.95 <= heard <= 10 * TOKENS_A_S * 1.05


def test_a_client_that_takes_tiny_batches_as_fast_as_it_can_is_never_silenced() -> None:
    shares = FairShare()
    cost = cost_of(Request(session=1, want=((0, 1),), release=((0, 0),)))
    for _ in range(100_000):  # at one moment: nothing but the batches earns anything
        assert speak(shares, b"p", cost, 0.0)
        shares.earn(b"p")


def test_a_client_that_tries_again_every_half_second_is_never_silenced() -> None:
    shares = FairShare()
    assert all(speak(shares, b"p", HELLO + PING, 0.5 * number) for number in range(1000))


def test_asking_costs_even_where_nothing_is_taken() -> None:
    shares = FairShare()
    cost = cost_of(Request(session=1, want=tuple((0, i) for i in range(64))))
    assert sum(speak(shares, b"p", cost, 0.0) for _ in range(1000)) <= BURST / 16
    assert cost_of(StatsRequest()) > PING


def test_somebody_who_is_silenced_is_told_once_a_second() -> None:
    shares = FairShare()
    shares.allows(b"p", 0.0)
    told = [shares.is_report_due(b"p", ms / 1000) for ms in range(3000)]
    assert [ms for ms, is_told in enumerate(told) if is_told] == [0, 1000, 2000]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.floats(0, 100)), max_size=200))
def test_nobody_gets_a_negative_or_endless_purse(steps: list[tuple[bytes, float]]) -> None:
    shares, now_s = FairShare(), 0.0
    for peer, pause_s in steps:
        now_s += pause_s
        speak(shares, peer, HELLO, now_s)
        shares.earn(peer)
    for peer, _ in steps:
        run = sum(speak(shares, peer, 1.0, now_s) for _ in range(2000))
        assert 0 <= run <= BURST
