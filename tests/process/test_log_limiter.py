"""Repeated lines are limited, and none is lost without being counted."""

import logging
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from feeder.process.log_lines import LogLimiter

STEPS = st.lists(st.tuples(st.floats(0, 30), st.sampled_from("abcd"), st.booleans()), max_size=200)
RECORDS = [logging.makeLogRecord({"msg": f"m{number}"}) for number in range(6)]


def test_some_are_logged_and_then_their_number_once() -> None:
    limits = LogLimiter(admitted_max=3)
    admitted = [limits.admit("a", float(i), record) for i, record in enumerate(RECORDS)]
    assert admitted == [True] * 3 + [False] * 3
    assert limits.take_due(59.9) == []
    assert limits.take_due(75.0) == [(3, RECORDS[5], 60.0)]
    assert limits.take_due(1000.0) == []


def test_the_next_interval_begins_with_the_next_message() -> None:
    limits = LogLimiter(admitted_max=3)
    for record in RECORDS[:4]:
        limits.admit("a", 0.0, record)
    assert limits.take_due(100.0) == [(1, RECORDS[3], 60.0)]
    assert limits.admit("a", 100.0, RECORDS[4])
    assert limits.admit("a", 159.0, RECORDS[5])
    assert limits.take_due(160.0) == []


def test_at_the_end_the_interval_is_as_long_as_it_was() -> None:
    limits = LogLimiter(admitted_max=3)
    for second, record in enumerate(RECORDS[:5]):
        limits.admit("a", float(second), record)
    assert limits.take_due(12.5, is_end=True) == [(2, RECORDS[4], 12.5)]
    assert limits.take_due(13.0, is_end=True) == []


def test_kinds_have_their_own_limits_up_to_a_number_of_kinds() -> None:
    limits = LogLimiter(admitted_max=3, kinds_max=3)
    assert all(limits.admit(kind, 0.0) for kind in "abc" for _ in range(3))
    assert [limits.admit(f"more {i}", 0.0) for i in range(5)] == [True] * 3 + [False] * 2
    assert limits.admit("fresh", 60.0), "intervals that are over free their kinds"
    assert limits.take_due(1000.0) == [], "lines without a record are counted elsewhere"


@given(STEPS)
def test_every_message_is_admitted_or_counted_once(steps: list[tuple[float, str, bool]]) -> None:
    limits, now_s, admitted, counted = LogLimiter(3, 3), 0.0, 0, 0
    for wait_s, kind, takes in steps:
        now_s += wait_s
        admitted += limits.admit(kind, now_s, RECORDS[0])
        if takes:
            counted += sum(count for count, *_ in limits.take_due(now_s))
    counted += sum(count for count, *_ in limits.take_due(now_s, is_end=True))
    assert admitted + counted == len(steps)


@given(STEPS)
def test_any_interval_has_at_most_twice_the_limit_of_a_kind(
    steps: list[tuple[float, str, bool]],
) -> None:
    limits, now_s = LogLimiter(3, 10), 0.0
    admitted: list[tuple[float, str]] = []
    for wait_s, kind, _ in steps:
        now_s += wait_s
        if limits.admit(kind, now_s):
            admitted.append((now_s, kind))
    for start_s, _ in admitted:
        within = Counter(kind for at_s, kind in admitted if start_s <= at_s < start_s + 60.0)
        assert all(count <= 6 for count in within.values())
