"""What chunks take is learned quickly, forgotten slowly, and bounded in memory."""

import pytest

from feeder.session.worker_watch import GROWTH_MAX, KNOWN_AFTER, ChunkTimes

KIND = "d", "recipe"


def learned(*times_s: float) -> ChunkTimes:
    times = ChunkTimes()
    for took_s in times_s:
        times.add(KIND, took_s)
    return times


@pytest.mark.parametrize(
    ("times_s", "so_far_s", "usual_s"),
    [
        ([], 0.0, 0.0),
        ([4.0], 4.0, 0.0),
        ([0.1] * (KNOWN_AFTER - 1), 0.1, 0.0),
        ([0.1] * KNOWN_AFTER, 0.1, 0.1),
        ([0.03] * 20 + [7.0], GROWTH_MAX * 0.03, GROWTH_MAX * 0.03),  # an outlier
        ([0.03] * 20 + [7.0] * 4, 7.0, 7.0),
        ([1.0] * 20 + [0.03] * 140, 0.5, 0.5),  # a peak is forgotten slowly
        ([1.0] * 20 + [0.03] * 1000, 0.03, 0.03),
    ],
)
def test_what_chunks_take_at_most_is_learned_quickly_and_forgotten_slowly(
    times_s: list[float], so_far_s: float, usual_s: float
) -> None:
    times = learned(*times_s)
    assert times.so_far_s(KIND) == pytest.approx(so_far_s, rel=0.02)
    assert times.usual_s(KIND) == pytest.approx(usual_s, rel=0.02)
    assert times.usual_s(("d", "other recipe")) == 0.0


def test_a_row_costs_what_such_rows_took_and_one_of_a_new_kind_what_the_last_one_did() -> None:
    times, heavy = ChunkTimes(), ("d", "heavy")
    for _ in range(40):
        times.add(heavy, 0.08, row_s=0.01)
    assert times.row_s(heavy) == pytest.approx(0.01, rel=0.01)
    assert times.row_s(KIND) == times.row_s(heavy)
    times.add(KIND, 0.008, row_s=0.001)
    times.add(KIND, 9.0)  # a failure
    assert times.row_s(KIND) == pytest.approx(0.01 - 0.009 / 4, rel=0.01)
    assert times.row_s(heavy) == pytest.approx(0.01, rel=0.01)
