"""When a batch is late, by the latencies so far."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.client_shell import make_scheduler


def learn(*latencies_s: float) -> float:
    scheduler = make_scheduler()
    scheduler.latencies_s.extend(latencies_s)
    scheduler.follow({})
    return scheduler.late_after_s


def test_the_delay_is_two_seconds_before_enough_latencies_are_known() -> None:
    assert learn() == 2.0
    assert learn(*[0.5] * 15) == 2.0
    assert learn(*[0.5] * 16) == 0.75


def test_the_delay_follows_two_slow_answers_in_a_hundred_but_not_one() -> None:
    assert learn(9.0, *[0.2] * 127) < 0.31
    assert learn(9.0, 9.0, *[0.2] * 126) == 13.5


def test_the_delay_is_never_below_a_tenth_of_a_second() -> None:
    assert learn(*[0.0001] * 50) == 0.1


def test_old_latencies_are_forgotten() -> None:
    assert learn(*[5.0] * 128, *[0.2] * 128) < 0.31


@given(st.lists(st.floats(0, 1e6), min_size=16, max_size=300))
def test_the_delay_is_above_nearly_all_recent_latencies(latencies_s: list[float]) -> None:
    delay_s = learn(*latencies_s)
    recent_s = latencies_s[-128:]
    assert sum(latency_s > delay_s for latency_s in recent_s) <= len(recent_s) // 100
    assert 0.1 <= delay_s <= max(0.1, 1.5 * max(recent_s))
