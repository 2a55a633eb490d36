"""Places of workers, which label their metrics: a replaced worker's successor takes its place.

Numbers of workers are never used again, so as labels they would make new series with each
replacement. In the successor's first report the place's counters begin at zero again, which
Prometheus takes into account.
"""

from collections.abc import Sequence


class WorkerPlaces:
    """The places of all node processes' workers, from 0."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, int]] = {}  # by node process, then by worker

    def of(self, node: int, workers: Sequence[int]) -> list[int]:
        """Return the places of a node process's present workers, given their numbers."""
        former = self._places.get(node, {})
        places = {worker: former[worker] for worker in workers if worker in former}
        taken = set(places.values())
        free = (place for place in range(len(workers) + len(taken)) if place not in taken)
        for worker in workers:
            if worker not in places:
                places[worker] = next(free)
        self._places[node] = places
        return [places[worker] for worker in workers]
