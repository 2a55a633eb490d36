"""Repeated lines are limited, and none is lost without being counted."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from feeder.process.log_limiter import LogLimiter, Suppressed

STEPS = st.lists(st.tuples(st.floats(0, 30), st.sampled_from("abcd"), st.booleans()), max_size=200)


def limiter(**overrides: int) -> LogLimiter[str]:
    return LogLimiter(**{"admitted_max": 3, "kinds_max": 3, **overrides}, interval_s=60.0)


def test_some_are_logged_and_then_their_number_once() -> None:
    limits = limiter()
    assert [limits.admit("a", f"m{i}", float(i)) for i in range(6)] == [True] * 3 + [False] * 3
    assert limits.is_suppressing
    assert limits.take_due(59.9) == []
    assert limits.take_due(75.0) == [Suppressed(3, "m5", 60.0)]
    assert not limits.is_suppressing
    assert limits.take_due(1000.0) == []


def test_the_next_interval_begins_with_the_next_message() -> None:
    limits = limiter()
    for _ in range(4):
        limits.admit("a", "m", 0.0)
    assert limits.admit("a", "m", 100.0)
    assert limits.take_due(100.0) == [Suppressed(1, "m", 60.0)]
    assert limits.admit("a", "m", 159.0)


def test_at_the_end_the_interval_is_as_long_as_it_was() -> None:
    limits = limiter()
    for second in range(5):
        limits.admit("a", f"m{second}", float(second))
    assert limits.take_all(12.5) == [Suppressed(2, "m4", 12.5)]
    assert limits.take_all(13.0) == []


def test_kinds_have_their_own_limits_up_to_a_number_of_kinds() -> None:
    limits = limiter()
    assert all(limits.admit(kind, kind, 0.0) for kind in "abc" for _ in range(3))
    assert [limits.admit(f"more {i}", "m", 0.0) for i in range(5)] == [True] * 3 + [False] * 2
    assert limits.admit("fresh", "m", 60.0), "intervals that are over free their kinds"


@given(STEPS)
def test_every_message_is_admitted_or_counted_once(steps: list[tuple[float, str, bool]]) -> None:
    limits, now_s, admitted = limiter(), 0.0, 0
    counted: list[Suppressed[str]] = []
    for wait_s, kind, takes in steps:
        now_s += wait_s
        admitted += limits.admit(kind, kind, now_s)
        if takes:
            counted += limits.take_due(now_s)
    counted += limits.take_all(now_s)
    assert admitted + sum(each.count for each in counted) == len(steps)
    assert not limits.is_suppressing


@given(STEPS)
def test_any_interval_has_at_most_twice_the_limit_of_a_kind(
    steps: list[tuple[float, str, bool]],
) -> None:
    limits, now_s = limiter(kinds_max=10), 0.0
    admitted: list[tuple[float, str]] = []
    for wait_s, kind, _ in steps:
        now_s += wait_s
        if limits.admit(kind, kind, now_s):
            admitted.append((now_s, kind))
    for start_s, _ in admitted:
        within = Counter(kind for at_s, kind in admitted if start_s <= at_s < start_s + 60.0)
        assert all(count <= 6 for count in within.values())
