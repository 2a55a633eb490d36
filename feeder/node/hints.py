"""What a node process tells the fetcher beside its wants: what will be wanted, and what no more.

With each batch of its own lanes it announces the pieces that the lane's next batch needs, of the
next epoch if there is none in this one, and takes back those that are used up. The ranks of a job
ask for different batches of a lane, so this is counted by order, not by session: a piece is
announced once and taken back once, at the latest when the epoch or the last session is over. All of
it can be repeated to a new fetcher.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from feeder.disk_cache.messages import Ahead, Behind, NodeToFetcher, Owned
from feeder.plan.epoch import MAX_EPOCH, EpochPlan
from feeder.plan.recipe import Recipe
from feeder.session.state import Session

Range = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Order:
    """The order that the sessions of a dataset, recipe and seed read."""

    sessions: set[int] = field(default_factory=set)
    lanes: dict[int, Range] = field(default_factory=dict)
    """Those whose batches are made here."""
    windows: dict[int, set[Range]] = field(default_factory=dict)
    """By epoch, what was announced and not taken back."""


class Hints:
    """The hints of all sessions of a node process."""

    def __init__(self, send: Callable[[NodeToFetcher], None]) -> None:
        self._send = send
        self._orders: dict[tuple[str, Recipe, int], _Order] = {}

    def give(
        self, session: Session, plan: EpochPlan, index: int, following: Callable[[], EpochPlan]
    ) -> None:
        """Tell what follows from a request for a batch of a lane that this host owns.

        ``following`` returns the plan of the next epoch.
        """
        name, lane, epoch = session.dataset, plan.lane(index), plan.epoch
        order = self._orders.setdefault((name, session.hello.recipe, plan.seed), _Order())
        order.sessions.add(session.number)
        if index >= plan.shape.lanes:  # batches of the epoch before may still be on their way
            self._end_epochs(name, order, [e for e in order.windows if e < epoch])
        ahead = plan.pieces_ahead(index)
        if lane is not None:
            if lane not in order.lanes:
                order.lanes[lane] = plan.lane_range(lane)
                self._send_owned(name)
            if plan.draws_whole_lanes:
                ahead.append(order.lanes[lane])
            if index + plan.shape.lanes >= plan.batches and epoch < MAX_EPOCH:
                self._announce(name, order, epoch + 1, following().pieces_first(lane))
        self._announce(name, order, epoch, ahead)
        window = order.windows[epoch]
        used_up = tuple(piece for piece in plan.pieces_behind(index) if piece in window)
        if used_up:
            window.difference_update(used_up)
            self._send(Behind(name, used_up))

    def end_session(self, number: int) -> None:
        """Take back what only this session reads."""
        for key, order in list(self._orders.items()):
            order.sessions.discard(number)
            if not order.sessions:
                del self._orders[key]
                self._end_epochs(key[0], order, list(order.windows))
                self._send_owned(key[0])

    def repeat(self) -> None:
        """Tell a new fetcher all that holds."""
        for (name, _, _), order in self._orders.items():
            self._send_owned(name)
            for window in filter(None, order.windows.values()):
                self._send(Ahead(name, tuple(sorted(window))))

    def _announce(self, name: str, order: _Order, epoch: int, pieces: Iterable[Range]) -> None:
        window = order.windows.setdefault(epoch, set())
        if fresh := tuple(piece for piece in pieces if piece not in window):
            window.update(fresh)
            self._send(Ahead(name, fresh))

    def _end_epochs(self, name: str, order: _Order, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            if left := tuple(order.windows.pop(epoch)):
                self._send(Behind(name, left))

    def _send_owned(self, name: str) -> None:
        orders = [order for (dataset, _, _), order in self._orders.items() if dataset == name]
        lanes = {lane for order in orders for lane in order.lanes.values()}
        self._send(Owned(name, tuple(sorted(lanes))))
