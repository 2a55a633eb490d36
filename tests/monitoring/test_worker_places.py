"""Labels of workers that are replaced."""

from hypothesis import given
from hypothesis import strategies as st

from feeder.monitoring.exposition import WorkerPlaces


def test_a_successor_takes_the_place_and_the_others_keep_theirs() -> None:
    places = WorkerPlaces()
    assert places.of(0, [1, 2, 3]) == [0, 1, 2]
    assert places.of(0, [1, 3, 4]) == [0, 2, 1]
    assert places.of(1, [1, 2]) == [0, 1], "another node process"
    assert places.of(0, [3, 4, 5]) == [2, 1, 0]


@given(
    alive=st.lists(st.lists(st.integers(1, 40), unique=True, max_size=8), min_size=1, max_size=20)
)
def test_places_are_different_kept_and_bounded(alive: list[list[int]]) -> None:
    places, before = WorkerPlaces(), dict[int, int]()
    for workers in alive:
        found = dict(zip(workers, places.of(0, workers), strict=True))
        assert len(set(found.values())) == len(workers)
        assert all(found[worker] == before[worker] for worker in workers if worker in before)
        assert max(found.values(), default=0) < 16
        before = found
