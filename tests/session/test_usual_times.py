"""What chunks usually take is learned quickly, forgotten slowly, and bounded in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.session.usual_times import GROWTH_MAX, KINDS_MAX, KNOWN_AFTER, UsualTimes

KIND = "d", "recipe"


def learned(*times_s: float) -> UsualTimes:
    usual = UsualTimes()
    for took_s in times_s:
        usual.add(KIND, took_s)
    return usual


def test_nothing_is_known_after_few_chunks() -> None:
    assert learned(*[0.1] * (KNOWN_AFTER - 1)).of(KIND) is None
    assert learned(*[0.1] * KNOWN_AFTER).of(KIND) == pytest.approx(0.1)
    assert learned(*[0.1] * KNOWN_AFTER).of(("d", "other recipe")) is None


def test_the_longest_so_far_is_known_after_one_chunk() -> None:
    assert learned().so_far(KIND) == 0.0
    assert learned(4.0).so_far(KIND) == 4.0
    assert learned(*[0.1] * KNOWN_AFTER).so_far(KIND) == pytest.approx(0.1)


def test_one_outlier_raises_it_a_little_and_some_in_a_row_fully() -> None:
    assert learned(*[0.03] * 20, 7.0).of(KIND) == pytest.approx(GROWTH_MAX * 0.03)
    assert learned(*[0.03] * 20, *[7.0] * 4).of(KIND) == pytest.approx(7.0)


def test_a_peak_is_forgotten_over_some_hundred_chunks() -> None:
    usual = learned(*[1.0] * 20, *[0.03] * 50).of(KIND)
    assert usual is not None
    assert usual > 0.5
    assert learned(*[1.0] * 20, *[0.03] * 1000).of(KIND) == pytest.approx(0.03)


@given(st.lists(st.floats(0.0, 30.0), min_size=KNOWN_AFTER, max_size=200))
def test_it_stays_within_what_was_seen(times_s: list[float]) -> None:
    usual = learned(*times_s).of(KIND)
    assert usual is not None
    assert min(1e-3, *times_s) <= usual <= max(1e-3, *times_s)


def test_the_kinds_used_last_are_kept() -> None:
    usual = learned(*[0.1] * KNOWN_AFTER)
    for number in range(2 * KINDS_MAX):
        usual.add(("d", str(number)), 1.0)
        usual.add(KIND, 0.1)
    assert len(usual) == KINDS_MAX
    assert usual.of(KIND) == pytest.approx(0.1)
