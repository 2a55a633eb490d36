"""The hints of a node process for the fetcher: which samples are next, and which are used up.

A lane's window, in an epoch, is what the last batch that was requested here, the one before it and
some after it need: an interval of the order in which its pieces are read. With each batch it moves
on, and the fetcher gets the difference, whatever turns other feeders have made, and wherever the
job has begun. Towards a lane's end the next epoch's first batches are announced as well. The
windows of epochs that no session reads any more are taken back. The sessions of one job, recipe and
seed share an order, as its ranks request different batches of a lane. All of it can be repeated to
a new fetcher.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.disk_cache.messages import Ahead, Behind, NodeToFetcher, Owned
from feeder.disk_cache.ranges import Range, merge
from feeder.plan.epoch import MAX_EPOCH, EpochPlan
from feeder.session.state import Session

_RANGES_MAX: Final = 4096  # of a message, to fit into a packet

_AHEAD_PIECES: Final = 16
"""Twice as many as are transferred at a time, so that none waits for a batch to be requested. Large
batches of many lanes need more than that for one batch each."""

_AHEAD_SHARE: Final = 4
"""At most one in so many bytes of the working set, which says how much room there is."""


@dataclass(slots=True, eq=False)
class _Order:
    """What the sessions of a job read with one recipe and seed."""

    dataset: str
    plan: Callable[[int], EpochPlan]
    """By epoch."""
    epochs: dict[int, int] = field(default_factory=dict)
    """By session, the epoch of its last request."""
    lanes: dict[int, list[Range]] = field(default_factory=dict)
    """What those are drawn from whose batches are made here."""
    settled: int = 0
    """Batches since the last one of a new lane; -1 once the lanes were sent."""
    windows: dict[tuple[int, int], Range] = field(default_factory=dict)
    """By epoch and lane, what was announced and not taken back: ``EpochPlan.lane_window``."""


class Hints:
    """The hints of all sessions of a node process."""

    def __init__(
        self,
        send: Callable[[NodeToFetcher], None],
        plan_of: Callable[[Session], Callable[[int], EpochPlan]],
        spread: Callable[[str, Iterable[Range]], Mapping[str, list[Range]]],
    ) -> None:
        """``plan_of`` returns the plans of a session, by epoch; ``spread`` the ranges by dataset of
        ranges of what a session is on: ``SelectedParts.spread``."""
        self._send = send
        self._plan_of = plan_of
        self._spread = spread
        self._orders: dict[object, _Order] = {}
        self._by_session: dict[int, object] = {}

    def give(self, session: Session, epoch: int, index: int) -> None:
        """Send what follows from a request for a batch of a lane that this host owns."""
        hello = session.hello
        key = session.job, session.dataset, hello.recipe, hello.seed
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = _Order(session.dataset, self._plan_of(session))
        self._by_session[session.number] = key
        if order.epochs.get(session.number) != epoch:
            order.epochs[session.number] = epoch
            self._end_epochs(order)
        plan = order.plan(epoch)
        for lane, turn in plan.turns(index):
            self._add_lane(order, plan, lane)
            ahead = _turns_ahead(plan, len(order.lanes))
            self._move(order, epoch, lane, plan.lane_window(lane, turn, ahead))
            left = plan.turns_left(lane, turn)
            if left < ahead and epoch < MAX_EPOCH:
                first = order.plan(epoch + 1).lane_window(lane, -left - 1, ahead)
                self._move(order, epoch + 1, lane, first)

    def end_session(self, number: int) -> None:
        """Take back what only this session reads."""
        key = self._by_session.pop(number, None)
        order = self._orders.get(key)
        if order is not None:
            order.epochs.pop(number, None)
            self._end_epochs(order)
            if not order.epochs:
                del self._orders[key]
                self._send_owned(order.dataset)

    def repeat(self) -> None:
        """Send all that holds to a new fetcher."""
        for dataset in {order.dataset for order in self._orders.values()}:
            self._send_owned(dataset)
        for order in self._orders.values():
            for (epoch, lane), window in order.windows.items():
                self._send_ranges(Ahead, order, epoch, lane, *window)

    def _move(self, order: _Order, epoch: int, lane: int, window: Range) -> None:
        """Move a lane's window on; it never moves back, as requests may come in any order."""
        first, end = order.windows.get((epoch, lane), (window[0], window[0]))
        moved = max(first, window[0]), max(end, window[1])
        order.windows[epoch, lane] = moved
        self._send_ranges(Ahead, order, epoch, lane, max(end, moved[0]), moved[1])
        self._send_ranges(Behind, order, epoch, lane, first, min(end, moved[0]))

    def _end_epochs(self, order: _Order) -> None:
        """Take back the windows of epochs that no session reads now, or next."""
        read = {*order.epochs.values(), *(epoch + 1 for epoch in order.epochs.values())}
        for epoch, lane in [key for key in order.windows if key[0] not in read]:
            window = order.windows.pop((epoch, lane))
            self._send_ranges(Behind, order, epoch, lane, *window)

    def _send_ranges(
        self, kind: type[Ahead] | type[Behind], order: _Order, epoch: int, lane: int, *window: int
    ) -> None:
        window_ranges = order.plan(epoch).window_ranges(lane, *window)
        for dataset, ranges in self._spread(order.dataset, window_ranges).items():
            for start in range(0, len(ranges), _RANGES_MAX):
                self._send(kind(dataset, tuple(ranges[start : start + _RANGES_MAX])))

    def _add_lane(self, order: _Order, plan: EpochPlan, lane: int) -> None:
        """Send what this host owns once a turn of its lanes has shown no new one: before that, all
        counts as owned, so that nothing is evicted in error."""
        ranges = plan.lane_ranges(lane)
        if order.lanes.get(lane) != ranges:  # other weights may hold in another epoch
            order.lanes[lane] = ranges
            order.settled = 0
        elif order.settled >= 0:
            order.settled += 1
            if order.settled > len(order.lanes):
                order.settled = -1
                self._send_owned(order.dataset)

    def _send_owned(self, served: str) -> None:
        """Send what this host owns of the datasets that a session on ``served`` reads."""
        for dataset in self._spread(served, ()):
            ranges, are_known = list[Range](), True
            for order in self._orders.values():
                lanes = itertools.chain.from_iterable(order.lanes.values())
                spread = self._spread(order.dataset, lanes)
                if dataset in spread:
                    ranges += spread[dataset]
                    are_known &= order.settled < 0
            owned = merge(ranges)
            self._send(Owned(dataset, owned if are_known and len(owned) <= _RANGES_MAX else ()))


def _turns_ahead(plan: EpochPlan, lanes: int) -> int:
    """How many batches of each of so many lanes, those of this host, are announced."""
    shape = plan.shape
    room = shape.working_set * lanes // shape.lanes // _AHEAD_SHARE
    return max(1, min(_AHEAD_PIECES * shape.piece, room) // (lanes * plan.order_batch_size))
