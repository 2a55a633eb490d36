"""The order in which feeders are asked for a batch: the owner of its lane first."""

from collections.abc import Callable, Iterable

from feeder.client.core.batch_lanes import BatchLanes
from feeder.client.core.ownership import Ownership, weigh
from feeder.wire.messages import BatchKey


class Preference:
    """Orders names for batches. The names are the same for all clients of a list."""

    def __init__(self, lanes: BatchLanes) -> None:
        self._lanes = lanes
        self._given: object = None
        self._names: frozenset[str] = frozenset()
        self._ownership = Ownership((), lanes.count)

    def set_names(self, names: Iterable[str]) -> None:
        """Have these names own the lanes from now on; cheap if they are the same as before."""
        if names is self._given:
            return
        self._given, wanted = names, frozenset(names)
        if wanted != self._names:
            self._names = wanted
            self._ownership = Ownership(wanted, self._lanes.count)

    def order(self, key: BatchKey) -> tuple[str, ...]:
        """Return all names for a batch, the preferred ones first."""
        if not self._names:
            return ()
        lane = self._lanes.lane(key)
        if lane is None:
            return self._ownership.order_of_leftovers(*key)
        return self._ownership.order(lane)

    def weigher(self, key: BatchKey) -> Callable[[str], bytes]:
        """Return the weight of a feeder's node processes for a batch; the lightest is preferred."""
        lane = self._lanes.lane(key)
        return lambda node: weigh(node, key if lane is None else lane)
