"""A process that was suspended notices it once, and for how long."""

import pytest

from feeder.node.stall_watch import STALL_CHECK_S, STALL_S, StallWatch


def test_a_late_wake_up_is_a_stall_and_is_returned_once() -> None:
    watch = StallWatch()
    watch.expect(10.0)
    assert watch.observe(50.0) == pytest.approx(40.0)
    assert watch.observe(50.1) == 0.0
    assert watch.observe(50.1, 10.0) == 0.0, "what was due then has been accounted for"


def test_the_loop_may_know_better_when_it_was_due() -> None:
    watch = StallWatch()
    watch.expect(60.0)
    assert watch.observe(50.0, 10.0) == pytest.approx(40.0)


def test_events_and_short_delays_are_no_stalls() -> None:
    watch = StallWatch()
    now_s = 100.0
    for late_s in (0.0, 0.1, 0.9 * STALL_S):
        watch.expect(now_s + STALL_CHECK_S)
        assert watch.observe(now_s + 0.1) == 0.0
        now_s += STALL_CHECK_S + late_s
        assert watch.observe(now_s) == 0.0
        assert watch.observe(now_s, now_s - late_s) == 0.0


def test_a_process_that_waits_for_nothing_may_sleep() -> None:
    watch = StallWatch()
    assert watch.observe(1000.0) == 0.0
    watch.expect(float("inf"))
    assert watch.observe(5000.0) == 0.0
