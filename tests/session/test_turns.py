"""Workers' time is shared between jobs as their weights are, whatever their sessions ask for.

Most tests run the dispatcher with a simulated clock, workers and clients: see ``simulate``.
"""

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.metrics.hangs import KernelState, ProcessLook
from feeder.session.dispatch import Dispatcher
from feeder.session.jobs import Jobs
from feeder.session.state import PendingBatch, Session
from tests.support.session_shell import make_session

ROWS: Final = 32
CHUNK: Final = 8

LIGHT_S: Final = 0.45e-3
HEAVY_S: Final = 2.7e-3
"""For a row of 224 px, as measured: without augmentation, and with hue and saturation."""

DEFAULT_WINDOW: Final = 5
"""Of a loader with ``window=4``: it has one more slot, for the batch that its consumer holds."""


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
    chunk: int = CHUNK
    """Most rows of a chunk."""
    every_s: float = 0.0
    """Time between two requests on average, at least: how fast its training is."""
    greedy_from_s: float = float("inf")
    """From then on it is as fast as it can be."""
    batches: int = 1 << 30
    """Of a session; another one follows, with another recipe."""
    first_row_s: float | None = None
    """What a worker takes for a row of the first session's recipe, if that is different."""
    rests: tuple[float, float] = (0.0, 0.0)
    """Between these times its clients request nothing."""
    used_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Workers' time for its chunks, by second."""
    served: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Chunks of each session."""

    def session(self, number: int, jobs: Jobs) -> Session:
        """Make one of its sessions; no other has its recipe."""
        session = make_session(
            number, "key", self.name, window=self.window, jobs=jobs, batch_size=ROWS
        )
        session.chunk_images, session.kind = self.chunk, ("d", f"{self.name} {number}")
        return session

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
    """Run the dispatcher for a while; ``loads`` record what they have got.

    A worker fills its chunks one after the other. A client requests another batch some time after
    one of its window is whole. No worker may be idle while there are chunks to dispatch.
    """
    draw = random.Random(seed)
    jobs = Jobs({"key": weights or {}})
    dispatcher = Dispatcher(jobs)
    for worker in range(workers):
        dispatcher.add_worker(worker)
    order = itertools.count()
    pending: list[tuple[float, int, str, object]] = []
    owner: dict[int, Load] = {}
    free_at_s = dict.fromkeys(range(workers), 0.0)
    in_flight = dict.fromkeys(range(workers), 0)
    row_s: dict[int, float] = {}  # by session
    sessions: dict[int, Session] = {}
    remaining: dict[int, int] = {}  # batches that a session will request, and get, by session
    due_s: dict[str, float] = defaultdict(float)  # the next request, by job
    numbers = itertools.count(1)

    def begin(load: Load, now_s: float) -> None:
        session = next(numbers)
        is_first = all(other is not load for other in owner.values())
        row_s[session] = (
            load.row_s if load.first_row_s is None or not is_first else load.first_row_s
        )
        owner[session], remaining[session] = load, load.batches
        sessions[session] = load.session(session, jobs)
        for _ in range(min(load.window, load.batches)):
            heapq.heappush(pending, (now_s, next(order), "want", session))

    for load in loads:
        for _ in range(load.sessions):
            begin(load, load.begins_s)
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
            elif now_s < due_s[load.name] and now_s < load.greedy_from_s:
                heapq.heappush(pending, (due_s[load.name], next(order), "want", subject))
            else:
                due_s[load.name] = max(due_s[load.name], now_s - load.every_s) + load.every_s
                dispatcher.enqueue(_batch(sessions[subject]), now_s)
        else:
            assert isinstance(subject, tuple)
            ticket, busy_s = subject
            chunk = dispatcher.finish(ticket, now_s, busy_s)
            assert chunk is not None
            in_flight[chunk.worker] -= 1
            session = chunk.batch.session.number
            load = owner[session]
            load.used_s[int(now_s)] += busy_s
            load.served[session] += 1
            if chunk.batch.is_whole:
                remaining[session] -= 1
                again_s = now_s + load.thinks_s * draw.uniform(0.5, 1.5)
                if remaining[session] >= load.window:
                    heapq.heappush(pending, (again_s, next(order), "want", session))
                elif not remaining[session]:
                    begin(load, again_s)
        for chunk in dispatcher.dispatch(now_s):
            load = owner[chunk.batch.session.number]
            busy_s = row_s[chunk.batch.session.number] * chunk.count * draw.uniform(0.5, 1.5)
            free_at_s[chunk.worker] = max(free_at_s[chunk.worker], now_s) + busy_s
            in_flight[chunk.worker] += 1
            done = free_at_s[chunk.worker], next(order), "done", (chunk.ticket, busy_s)
            heapq.heappush(pending, done)
        assert all(in_flight.values()) or not jobs.ready, "a worker is idle"


def _batch(session: Session) -> PendingBatch:
    return PendingBatch(session, 0, 0, ROWS, slot=0)


def shares(loads: list[Load], from_s: int = 2, until_s: int = 20) -> list[float]:
    """Return each job's share of the workers' time, after a start."""
    used = [load.used(from_s, until_s) for load in loads]
    return [each / sum(used) for each in used]


def check_shares(
    loads: list[Load],
    expected: float,
    during: tuple[int, int] = (2, 20),
    *,
    weights: tuple[float, float] = (1, 1),
    workers: int = 4,
) -> None:
    """Simulate two jobs; ``expected`` is the share of the first one, between two seconds."""
    weight_of = {load.name: weight for load, weight in zip(loads, weights, strict=True)}
    simulate(loads, weights=weight_of, workers=workers, seconds=during[1])
    assert shares(loads, *during)[0] == pytest.approx(expected, abs=0.04)


def light_and_heavy(window: int = DEFAULT_WINDOW, **fields: Any) -> list[Load]:
    """Return two greedy jobs with a batch to a chunk: of few chunks, shares are hardest to keep."""
    heavy = {"row_s": HEAVY_S, "window": window, "chunk": ROWS} | fields
    return [Load("light", row_s=LIGHT_S, window=window, chunk=ROWS), Load("heavy", **heavy)]


@pytest.mark.parametrize(("workers", "window"), [(1, DEFAULT_WINDOW), (4, DEFAULT_WINDOW), (2, 16)])
@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 3), (100, 1), (1, 100)])
def test_shares_hold_though_a_whole_window_may_be_in_flight(
    weights: tuple[int, int], workers: int, window: int
) -> None:
    share = weights[0] / sum(weights)
    check_shares(light_and_heavy(window), share, (5, 10), weights=weights, workers=workers)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    "attack", [{"first_row_s": LIGHT_S / 50}, {}], ids=["ever new recipes", "new sessions"]
)
def test_a_job_gains_nothing_by_new_sessions(attack: dict[str, float], workers: int) -> None:
    """The first one is cheap; those that follow would be charged like it, or without its debts."""
    check_shares(light_and_heavy(batches=8, **attack), 0.5, (5, 10), workers=workers)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_job_that_took_less_than_its_share_has_no_hoard(workers: int) -> None:
    loads = light_and_heavy()
    loads[0].every_s, loads[0].greedy_from_s = 10 * ROWS * LIGHT_S / workers, 10.0
    check_shares(loads, 0.5, (11, 16), workers=workers)


def test_the_sessions_of_a_job_take_turns_whatever_their_windows() -> None:
    loads = [Load("a", window=window) for window in (4, 8, 16)]
    simulate([*loads, Load("b")], seconds=10.0)
    served = [sum(load.served.values()) for load in loads]
    assert max(served) - min(served) <= 0.05 * max(served)


def test_the_share_of_an_idle_job_goes_to_the_others_and_is_not_made_up_for() -> None:
    resting = Load("resting", rests=(5.0, 15.0))
    loads = [resting, Load("busy", sessions=3)]
    simulate(loads, seconds=20.0)
    assert shares(loads, 6, 14) == pytest.approx([0.0, 1.0], abs=0.01)
    assert shares(loads, 15, 16) == pytest.approx([0.5, 0.5], abs=0.08), "from the first second on"
    assert shares(loads, 16, 20) == pytest.approx([0.5, 0.5], abs=0.03)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_job_that_is_paced_by_its_training_gets_what_it_takes_and_leaves_the_rest(
    workers: int,
) -> None:
    takes = 0.4 * workers  # seconds of a worker, in a second
    loads = light_and_heavy()
    loads[0].every_s = ROWS * LIGHT_S / takes
    simulate(loads, workers=workers, seconds=10.0)
    assert loads[0].used(5, 10) == pytest.approx(5 * takes, rel=0.05)
    assert sum(load.used(5, 10) for load in loads) == pytest.approx(5 * workers, rel=0.05)


@settings(max_examples=20, deadline=None)
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
    simulate(loads, weights=weights, workers=workers, seed=seed, seconds=10.0)
    total = sum(weights.values())
    assert shares(loads, until_s=10) == pytest.approx(
        [each / total for each in weights.values()], abs=0.05
    )


def test_a_job_is_owed_at_most_a_second_for_each_chunk_in_flight() -> None:
    jobs = Jobs({})
    slow, quick = (Load(name).session(number, jobs) for number, name in enumerate("ab"))
    for session in (slow, quick):
        jobs.add(session)
        jobs.begin_chunk(session)
    jobs.remove(slow)  # its whole window is in flight
    for _ in range(100):
        jobs.begin_chunk(quick)
        jobs.charge(quick.job, 1.0)
        jobs.settle(quick.job, 1.0, 1.0)
    jobs.add(slow)
    assert jobs.credit_s(slow.job) == pytest.approx(2.0)


def test_idle_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.session.jobs._IDLE_MAX", 64)
    jobs = Jobs({})
    for number in range(200):
        session = Load(f"job {number}").session(number, jobs)
        jobs.add(session)
        jobs.remove(session)
        if session.job.record is not None:
            session.job.record.sessions -= 1
    assert len(jobs._jobs) <= 64


@pytest.mark.parametrize(
    ("state", "least_s", "most_s"),
    [("runs", 1.4, 1.5), ("stopped", 0.0, 0.05)],  # half of the time was the other job's
)
def test_a_chunk_is_charged_with_its_time_unless_its_worker_was_stopped(
    state: KernelState, least_s: float, most_s: float
) -> None:
    dispatcher = Dispatcher(jobs := Jobs({}))
    dispatcher.add_worker(1)
    for session, name in enumerate(["one", "other"]):
        dispatcher.enqueue(_batch(Load(name, chunk=ROWS).session(session, jobs)), 0.0)
    first, _ = dispatcher.dispatch(0.0)
    for now_s in (1.0, 1.5):
        dispatcher.watch.check({1: ProcessLook(state, 0.0)}, (), now_s)
    dispatcher.finish(first.ticket, 2.9, 2.9)
    assert least_s <= -jobs.credit_s(first.batch.session.job) <= most_s
