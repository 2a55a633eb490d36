"""Workers' time is shared between jobs as their weights are, whatever their sessions ask for."""

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.session.chunk_state import PendingBatch
from feeder.session.dispatch import Dispatcher
from feeder.session.jobs import JobKey, JobTallies, JobWeights
from feeder.session.turns import RowCosts, Turns

ROWS: Final = 32
CHUNK: Final = 8


@dataclass
class Load:
    """A job of a test: sessions with windows, whose clients answer after a while."""

    name: str
    sessions: int = 1
    window: int = 4
    row_s: float = 1e-3
    """What a worker takes for a row."""
    thinks_s: float = 1e-3
    """From a whole batch to the request for the next one."""
    begins_s: float = 0.0
    ends_s: float = float("inf")
    tail: float = 1.0
    """Times a row's time that one chunk in twenty takes."""
    rests: tuple[float, float] = (0.0, 0.0)
    """Between these times its clients request nothing."""
    used_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Workers' time for its chunks, by second."""
    served: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Chunks of each session."""

    @property
    def key(self) -> JobKey:
        return "key", self.name

    def used(self, from_s: int, until_s: int) -> float:
        return sum(self.used_s[second] for second in range(from_s, until_s))


def simulate(
    loads: list[Load],
    *,
    weights: dict[str, float] | None = None,
    workers: int = 4,
    seconds: float = 20.0,
    seed: int = 0,
) -> None:
    """Run the dispatcher for a while; ``loads`` record what they have got."""
    draw = random.Random(seed)
    dispatcher = Dispatcher(JobWeights({"key": weights or {}}))
    for worker in range(workers):
        dispatcher.add_worker(worker)
    order = itertools.count()
    pending: list[tuple[float, int, str, object]] = []
    owner: dict[int, Load] = {}
    free_at_s = dict.fromkeys(range(workers), 0.0)
    session = 0
    for load in loads:
        for _ in range(load.sessions):
            session += 1
            owner[session] = load
            for _ in range(load.window):
                heapq.heappush(pending, (load.begins_s, next(order), "want", session))
    now_s = 0.0
    while pending:
        now_s, _, what, subject = heapq.heappop(pending)
        if now_s >= seconds:
            break
        if what == "want":
            assert isinstance(subject, int)
            load = owner[subject]
            if load.rests[0] <= now_s < load.rests[1]:
                heapq.heappush(pending, (load.rests[1], next(order), "want", subject))
            elif now_s < load.ends_s:
                dispatcher.enqueue(_batch(subject, load), now_s)
        else:
            assert isinstance(subject, tuple)
            ticket, busy_s = subject
            chunk = dispatcher.finish(ticket, now_s, busy_s)
            assert chunk is not None
            load = owner[chunk.batch.session]
            load.used_s[int(now_s)] += busy_s
            load.served[chunk.batch.session] += 1
            if chunk.batch.is_whole:
                again_s = now_s + load.thinks_s * draw.uniform(0.5, 1.5)
                heapq.heappush(pending, (again_s, next(order), "want", chunk.batch.session))
        for chunk in dispatcher.dispatch(now_s):
            load = owner[chunk.batch.session]
            busy_s = load.row_s * chunk.count * draw.uniform(0.5, 1.5)
            busy_s *= load.tail if draw.random() < 0.05 else 1.0
            free_at_s[chunk.worker] = max(free_at_s[chunk.worker], now_s) + busy_s
            done = free_at_s[chunk.worker], next(order), "done", (chunk.ticket, busy_s)
            heapq.heappush(pending, done)


def _batch(session: int, load: Load) -> PendingBatch:
    return PendingBatch(
        session=session,
        dataset="d",
        epoch=0,
        index=0,
        rows=ROWS,
        valid=ROWS,
        chunk_images=CHUNK,
        recipe=f"{load.row_s}",
        job=load.key,
        slot=0,
    )


def shares(loads: list[Load], from_s: int = 2, until_s: int = 20) -> list[float]:
    """Return each job's share of the workers' time, after a start."""
    used = [load.used(from_s, until_s) for load in loads]
    return [each / sum(used) for each in used]


@pytest.mark.parametrize("sessions", [1, 8, 64])
def test_a_job_gets_no_more_for_having_more_sessions(sessions: int) -> None:
    loads = [Load("one"), Load("many", sessions=sessions)]
    simulate(loads)
    assert shares(loads) == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("row_s", [1e-3, 8e-3])
def test_time_is_shared_by_weight_whatever_a_chunk_takes(workers: int, row_s: float) -> None:
    loads = [Load("three", row_s=row_s, window=16), Load("one", sessions=8)]
    simulate(loads, weights={"three": 3}, workers=workers)
    assert shares(loads) == pytest.approx([0.75, 0.25], abs=0.03)


def test_three_jobs_of_different_weights_sessions_and_recipes() -> None:
    loads = [Load("a", sessions=8), Load("b", row_s=4e-3), Load("c", sessions=2, window=2)]
    simulate(loads, weights={"b": 2, "c": 0.5})
    assert shares(loads) == pytest.approx([1 / 3.5, 2 / 3.5, 0.5 / 3.5], abs=0.03)


def test_the_sessions_of_a_job_take_turns() -> None:
    load = Load("a", sessions=5)
    simulate([load, Load("b")])
    served = load.served.values()
    assert max(served) - min(served) <= 0.05 * max(served)


def test_the_share_of_an_idle_job_goes_to_the_others_and_is_not_made_up_for() -> None:
    resting = Load("resting", rests=(5.0, 15.0))
    loads = [resting, Load("busy", sessions=3)]
    simulate(loads, seconds=20.0)
    assert shares(loads, 6, 14) == pytest.approx([0.0, 1.0], abs=0.01)
    assert shares(loads, 15, 16) == pytest.approx([0.5, 0.5], abs=0.08), "from the first second on"
    assert shares(loads, 16, 20) == pytest.approx([0.5, 0.5], abs=0.03)


def test_what_a_job_used_while_alone_is_not_held_against_it() -> None:
    loads = [Load("first"), Load("second", begins_s=10.0)]
    simulate(loads)
    assert shares(loads, 11, 20) == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_job_that_needs_less_than_its_share_gets_what_it_needs() -> None:
    slow = Load("slow", window=1, thinks_s=0.5)
    loads = [slow, Load("greedy", sessions=4)]
    simulate(loads)
    alone = Load("slow", window=1, thinks_s=0.5)
    simulate([alone])
    assert slow.used(2, 20) > 0.85 * alone.used(2, 20)


@settings(max_examples=30, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 2.0, 4.0]),
            st.integers(1, 8),
            st.integers(3, 8),
            st.sampled_from([5e-4, 1e-3, 4e-3]),
        ),
        min_size=2,
        max_size=4,
    ),
    workers=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_jobs_that_always_have_chunks_keep_to_their_weights(
    jobs: list[tuple[float, int, int, float]], workers: int, seed: int
) -> None:
    weights = {f"j{place}": each[0] for place, each in enumerate(jobs)}
    loads = [
        Load(f"j{place}", sessions=sessions, window=4 * window, row_s=row_s, thinks_s=0.0)
        for place, (_, sessions, window, row_s) in enumerate(jobs)
    ]
    simulate(loads, weights=weights, workers=workers, seed=seed)
    total = sum(weights.values())
    assert shares(loads) == pytest.approx([each / total for each in weights.values()], abs=0.05)


def test_nothing_is_kept_of_jobs_that_are_over() -> None:
    turns = Turns(JobWeights())
    for number in range(10_000):
        job = "key", f"job {number}"
        turns.add(number, job)
        turns.serve(number, is_in_turn=True)
        turns.charge(job, 1.0)
        turns.remove(number)
        turns.settle(job, 0.5)
    assert not turns
    assert not turns._jobs


def test_debts_of_idle_jobs_are_bounded() -> None:
    turns = Turns(JobWeights())
    turns.add(-1, ("key", "waits"))  # so that it is never idle as a whole
    for number in range(10_000):
        turns.charge(("key", f"job {number}"), 1.0)
        turns.settle(("key", f"job {number}"), 0.0)
    assert len(turns._jobs) <= 4096
    assert [*turns] == [-1]


def test_one_slow_chunk_raises_the_cost_little_and_many_raise_it_to_theirs() -> None:
    costs = RowCosts()
    kind = "d", "r"
    for _ in range(10):
        costs.learn(kind, 8, 0.008)
    assert costs.cost_s(kind, 4) == pytest.approx(0.004)
    costs.learn(kind, 8, 30.0)
    assert costs.cost_s(kind, 4) < 0.006
    for _ in range(200):
        costs.learn(kind, 8, 0.8)
    assert costs.cost_s(kind, 8) == pytest.approx(0.8, rel=0.1), "chunks take this long now"


def test_jobs_of_one_recipe_get_the_same_rows_though_times_have_a_long_tail() -> None:
    loads = [Load("one", tail=20.0), Load("many", sessions=8, tail=20.0)]
    simulate(loads, seconds=10.0)
    chunks = [sum(load.served.values()) for load in loads]
    assert chunks[0] / sum(chunks) == pytest.approx(0.5, abs=0.01)


def test_costs_are_remembered_for_a_bounded_number_of_kinds() -> None:
    costs = RowCosts()
    for number in range(1000):
        costs.learn(("d", str(number)), 1, 1.0 + number)
    assert len(costs._kinds) == 256
    assert costs.cost_s(("d", "never"), 2) == 2000.0, "as the latest kind"


def test_tallies_are_bounded_and_only_grow() -> None:
    tallies = JobTallies()
    for number in range(100):
        tally = tallies.join(("key", str(number)))
        tally.batches += 1
        tally.worker_s += 1.0
        if number % 2:
            tally.sessions -= 1
        assert sum(each.batches for _, each in tallies) == number + 1
        assert len([*tallies]) <= 33
    assert sum(each.sessions for _, each in tallies) == 50
    again = tallies.join(("key", "98"))
    assert again.batches >= 1


def test_a_cold_start_is_soon_forgotten() -> None:
    costs = RowCosts()
    warm, cold = ("d", "warm"), ("d", "cold")
    for _ in range(100):
        costs.learn(warm, 32, 0.064)
    for _ in range(8):
        costs.learn(cold, 32, 5.0)
    assert costs.cost_s(cold, 32) <= 32 * 0.064
    for _ in range(32):
        costs.learn(cold, 32, 0.064)
    assert costs.cost_s(cold, 32) < 1.5 * 0.064


def test_a_job_that_was_passed_over_gets_no_credit() -> None:
    """As while its dataset stalls."""
    turns = Turns(JobWeights())
    turns.add(1, ("key", "going"))
    turns.add(2, ("key", "stalled"))
    for _ in range(1000):
        turns.serve(1, is_in_turn=True)
        turns.charge(("key", "going"), 0.1)
        turns.settle(("key", "going"), 0.0)
        turns.pass_over({2})
    served = []
    for _ in range(20):
        session = next(iter(turns))
        served.append(session)
        turns.serve(session, is_in_turn=True)
        key = ("key", "going" if session == 1 else "stalled")
        turns.charge(key, 0.1)
        turns.settle(key, 0.0)
    assert 8 <= served.count(1) <= 12
