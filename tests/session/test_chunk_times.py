"""What chunks take is learned quickly, forgotten slowly, and bounded in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.session.worker_watch import GROWTH_MAX, KINDS_MAX, KNOWN_AFTER, ChunkTimes

KIND = "d", "recipe"


def learned(*times_s: float) -> ChunkTimes:
    usual = ChunkTimes()
    for took_s in times_s:
        usual.add(KIND, took_s)
    return usual


def test_nothing_is_known_after_few_chunks() -> None:
    assert learned(*[0.1] * (KNOWN_AFTER - 1)).usual_s(KIND) == 0.0
    assert learned(*[0.1] * KNOWN_AFTER).usual_s(KIND) == pytest.approx(0.1)
    assert learned(*[0.1] * KNOWN_AFTER).usual_s(("d", "other recipe")) == 0.0


def test_the_longest_so_far_is_known_after_one_chunk() -> None:
    assert learned().so_far_s(KIND) == 0.0
    assert learned(4.0).so_far_s(KIND) == 4.0
    assert learned(*[0.1] * KNOWN_AFTER).so_far_s(KIND) == pytest.approx(0.1)


def test_one_outlier_raises_it_a_little_and_some_in_a_row_fully() -> None:
    assert learned(*[0.03] * 20, 7.0).usual_s(KIND) == pytest.approx(GROWTH_MAX * 0.03)
    assert learned(*[0.03] * 20, *[7.0] * 4).usual_s(KIND) == pytest.approx(7.0)


def test_a_peak_is_forgotten_over_some_hundred_chunks() -> None:
    usual = learned(*[1.0] * 20, *[0.03] * 50).usual_s(KIND)
    assert usual > 0.5
    assert learned(*[1.0] * 20, *[0.03] * 1000).usual_s(KIND) == pytest.approx(0.03)


@given(st.lists(st.floats(0.0, 30.0), min_size=KNOWN_AFTER, max_size=200))
def test_it_stays_within_what_was_seen(times_s: list[float]) -> None:
    usual = learned(*times_s).usual_s(KIND)
    assert min(1e-3, *times_s) <= usual <= max(1e-3, *times_s)


def test_the_kinds_used_last_are_kept() -> None:
    usual = learned(*[0.1] * KNOWN_AFTER)
    for number in range(2 * KINDS_MAX):
        usual.add(("d", str(number)), 1.0)
        usual.add(KIND, 0.1)
    assert len(usual) == KINDS_MAX
    assert usual.usual_s(KIND) == pytest.approx(0.1)


def test_a_row_costs_what_such_rows_took_and_one_of_a_new_kind_what_the_last_one_did() -> None:
    times = ChunkTimes()
    for _ in range(40):
        times.add(("d", "heavy"), 0.08, row_s=0.01)
    assert times.row_s(("d", "heavy")) == pytest.approx(0.01, rel=0.01)
    assert times.row_s(KIND) == times.row_s(("d", "heavy"))
    times.add(KIND, 0.008, row_s=0.001)
    times.add(KIND, 9.0)  # a failure
    assert times.row_s(KIND) == pytest.approx(0.01 - 0.009 / 4, rel=0.01)
    assert times.row_s(("d", "heavy")) == pytest.approx(0.01, rel=0.01)
