"""The hints for a fetcher: announced before it is needed, once, and taken back once."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from feeder.disk_cache.messages import Ahead, Behind, NodeToFetcher, Owned
from feeder.node.hints import Hints
from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.session.jobs import Jobs
from feeder.session.state import Session
from tests.support.session_shell import make_session

LAYOUT = ShardLayout(samples=997, shards=7)
ROLLING = {"lanes": 3, "working_set": (400, 8)}
"""Each lane has a window of a part of its pieces."""


class Fetcher:
    """What a fetcher knows from hints."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.held: Counter[int] = Counter()
        self.owned: tuple[tuple[int, int], ...] | None = None
        self.sent = 0
        self.hints = Hints(self.take, self._plans_of, lambda name, ranges: {name: [*ranges]})

    def take(self, message: NodeToFetcher) -> None:
        self.sent += 1
        match message:
            case Ahead(_, ranges) | Behind(_, ranges):
                step = 1 if isinstance(message, Ahead) else -1
                for first, end in ranges:
                    self.held.update(dict.fromkeys(range(first, end), step))
                assert min(self.held.values()) >= 0, "nothing is taken back that was not announced"
            case Owned(_, ranges):
                self.owned = ranges

    def session(self, number: int, job: str = "", jobs: Jobs | None = None) -> Session:
        return make_session(number, "", job, jobs=jobs, **self.fields)

    def plan(self, epoch: int) -> EpochPlan:
        recipe = Recipe.for_split("train", batch_size=7, image_size=8, **self.fields)
        return recipe.plan_epoch(LAYOUT, seed=1, epoch=epoch)

    def holds(self, epoch: int, index: int) -> bool:
        return all(self.held[sample] for sample in self.plan(epoch).samples(index).tolist())

    def _plans_of(self, session: Session) -> Callable[[int], EpochPlan]:
        hello = session.hello
        return partial(self._plan, hello.recipe, hello.seed)

    def _plan(self, recipe: Recipe, seed: int, epoch: int) -> EpochPlan:
        return recipe.plan_epoch(LAYOUT, seed=seed, epoch=epoch)


def lanes_of(plan: EpochPlan) -> dict[int, list[int]]:
    lanes: dict[int, list[int]] = {}
    for index in range(plan.batches):
        if (lane := plan.lane(index)) is not None:
            lanes.setdefault(lane, []).append(index)
    return lanes


@given(
    requests=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 141))),
    shuffle=st.booleans(),
)
def test_whatever_is_requested_all_is_taken_back_in_the_end(
    requests: list[tuple[int, int, int]], shuffle: bool
) -> None:
    fetcher = Fetcher(**ROLLING, shuffle=shuffle)
    jobs = Jobs({})
    sessions = {n: fetcher.session(n, "b" if n == 3 else "a", jobs) for n in (1, 2, 3)}
    for number, epoch, index in requests:
        fetcher.hints.give(sessions[number], epoch, index)
        held = fetcher.held.copy()
        fetcher.hints.repeat()  # to a new fetcher, which is told the same
        fetcher.held.subtract(held)
        assert fetcher.held == held
    for number in sessions:
        fetcher.hints.end_session(number)
    assert not +fetcher.held


def test_the_next_batch_of_each_lane_is_announced_wherever_a_job_begins() -> None:
    for begin in (0, 60):
        fetcher = Fetcher(**ROLLING)
        session = fetcher.session(1)
        lanes = lanes_of(fetcher.plan(0))
        for indices in lanes.values():
            own = [index for index in indices if index >= begin]
            for index, after in zip(own[::2], own[1::2], strict=False):  # others make each second
                fetcher.hints.give(session, 0, index)
                assert fetcher.holds(0, index)
                assert fetcher.holds(0, after)
        assert sum((+fetcher.held).values()) <= 3 * 400, "what is used up was taken back"


def test_an_epochs_last_turn_announces_the_next_ones_first() -> None:
    fetcher = Fetcher(**ROLLING)
    session = fetcher.session(1)
    for indices in lanes_of(fetcher.plan(0)).values():
        fetcher.hints.give(session, 0, indices[-1])
    assert all(fetcher.holds(1, indices[0]) for indices in lanes_of(fetcher.plan(1)).values())


def test_epochs_that_stop_early_leave_nothing() -> None:
    fetcher = Fetcher(**ROLLING)
    session = fetcher.session(1)
    for epoch in range(50):
        for index in range(6):
            fetcher.hints.give(session, epoch, index)
    assert sum((+fetcher.held).values()) <= 2 * 400


def test_two_jobs_keep_their_own_windows() -> None:
    fetcher, jobs = Fetcher(**ROLLING), Jobs({})
    fast, slow = fetcher.session(1, "fast", jobs), fetcher.session(2, "slow", jobs)
    fetcher.hints.give(slow, 3, 0)
    fetcher.hints.give(fast, 10, 0)
    fetcher.hints.give(fast, 10, 3)
    assert fetcher.holds(3, 0)
    fetcher.hints.end_session(1)
    assert fetcher.holds(3, 0)


def test_what_is_owned_is_sent_once_it_is_known() -> None:
    fetcher = Fetcher(**ROLLING)
    session = fetcher.session(1)
    plan = fetcher.plan(0)
    own = lanes_of(plan)[1]
    fetcher.hints.give(session, 0, own[0])
    assert not fetcher.owned
    for index in own[1:]:
        fetcher.hints.give(session, 0, index)
    assert fetcher.owned == tuple(plan.lane_ranges(1))
    fetcher.hints.end_session(1)
    assert fetcher.owned == ()
