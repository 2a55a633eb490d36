"""Workers without progress: reported, killed or spared; what chunks take, which decides that."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from feeder.metrics.hangs import KernelState
from feeder.session.dispatch import HANGS_MAX
from feeder.session.events import Resumed
from feeder.session.worker_watch import (
    CHUNK_DEADLINE_S,
    DEADLINE_MIN_S,
    GROWTH_MAX,
    KILL_AFTER,
    KINDS_MAX,
    KNOWN_AFTER,
    PATIENCE_S,
    PATIENT_AFTER,
    SILENT_S,
    UNANSWERED_S,
    ChunkTimes,
)
from feeder.wire.messages import Failed
from tests.support.session_shell import ROWS, Shell, limits

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


def test_the_kinds_used_last_are_kept() -> None:
    times = learned(*[0.1] * KNOWN_AFTER)
    for number in range(2 * KINDS_MAX):
        times.add(("d", str(number)), 1.0)
        times.add(KIND, 0.1)
    assert len(times) == KINDS_MAX
    assert times.usual_s(KIND) == pytest.approx(0.1)


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


A, B = b"a", b"b"
LATE_S = 0.6
"""A look is late by less."""

Process: TypeAlias = tuple[KernelState, float]
"""What a worker's process does, and its share of a CPU."""

LOOPS: Process = "runs", 1.0
SLEEPS: Process = "sleeps", 0.0
READS: Process = "storage", 0.0
STOPPED: Process = "stopped", 0.0


def shell_with(workers: int = 2, chunk_s: float | None = 0.03) -> Shell:
    """Return a shell with workers 1, 2, … that wait, and a client A that wants batches of "d".

    Chunks of "d" usually take ``chunk_s``; None: nothing is known of them yet.
    """
    shell = Shell(limits(lease_s=10_000.0), ("d", "e"))
    shell.hello(A, window=4)
    first = shell.join()
    for index in range(KNOWN_AFTER if chunk_s else 0):
        key = index // 8, index % 8
        shell.request(A, [key], [])
        while shell.fills:
            shell.wait(chunk_s or 0.0)
            shell.fill(first)
        shell.request(A, [], [key])
        while shell.returning:
            shell.return_slot()
    for _ in range(workers - 1):
        shell.join()
    shell.request(A, [(5, 0), (5, 1)], [])
    shell.silences.clear()
    shell.resumed.clear()
    shell.record.silences = 0
    for worker in shell.workers:
        shell.states[worker] = "runs", 0.0
    return shell


def fill_others(shell: Shell, silent: int) -> None:
    """Fill all chunks except those of one worker."""
    while ready := [w for w, tickets in shell.workers.items() if tickets and w != silent]:
        shell.fill(ready[0])


def kills(shell: Shell) -> list[tuple[int, str]]:
    return [(kill.chunk.worker, kill.condition) for kill in shell.kills]


def test_a_stopped_worker_is_reported_once_with_its_rows_and_its_return() -> None:
    shell = shell_with()
    shell.states[1] = STOPPED
    fill_others(shell, 1)
    shell.wait(2.5)
    (silence,) = shell.silences
    chunk, session = silence.chunk, silence.chunk.batch.session
    assert (chunk.worker, session.dataset, chunk.first, chunk.count) == (1, "d", 0, 3)
    assert silence.kernel_state == "stopped by a signal"
    assert SILENT_S <= silence.silent_s < SILENT_S + LATE_S
    assert session.number in shell.open
    assert shell.record.silences == 1
    worker = shell.table.watch.workers[1]
    assert worker.is_reported
    shell.states[1] = LOOPS
    shell.fill(1)
    (progress,) = shell.resumed
    assert progress.chunk.silent_s == pytest.approx(2.5)
    assert not worker.is_reported
    shell.fill(1)
    assert len(shell.resumed) == 1
    assert not shell.killed


QUICK_S = DEADLINE_MIN_S
"""The deadline where chunks usually take 0.03 s; 0.9 s make it KILL_AFTER times as long."""


@pytest.mark.parametrize(
    ("process", "chunk_s", "spared_s", "condition"),
    [
        *((STOPPED, chunk_s, QUICK_S, "stopped") for chunk_s in (None, 0.03, 0.9, 6.0)),
        (("traced", 0.0), 0.9, QUICK_S, "stopped"),
        (SLEEPS, 0.03, QUICK_S, "asleep"),
        (LOOPS, 0.03, QUICK_S, "looping"),
        (SLEEPS, 0.9, KILL_AFTER * 0.9, "asleep"),
        (LOOPS, 0.9, KILL_AFTER * 0.9, "looping"),
        (SLEEPS, None, CHUNK_DEADLINE_S, "asleep"),
        (LOOPS, None, CHUNK_DEADLINE_S, "looping"),
        (READS, 0.03, CHUNK_DEADLINE_S, "storage"),
        (("runs", 0.05), 0.03, CHUNK_DEADLINE_S, None),
        (("runs", 0.0), 0.03, CHUNK_DEADLINE_S, None),
        (("runs", 0.3), 0.03, 2 * DEADLINE_MIN_S, None),  # it has used the time somewhat later
    ],
)
def test_a_silent_worker_is_killed_at_the_deadline_of_what_its_process_does(
    process: Process, chunk_s: float | None, spared_s: float, condition: str | None
) -> None:
    """``condition`` None: later than ``spared_s``, if it is not looping."""
    shell = shell_with(chunk_s=chunk_s)
    shell.states[1] = process
    fill_others(shell, 1)
    shell.wait(0.95 * spared_s)  # the other worker's quick chunks have lowered it a little
    assert len(shell.silences) == 1
    assert not shell.killed
    shell.wait(0.05 * spared_s + LATE_S)
    assert condition is None or kills(shell) == [(1, condition)]
    stalls = condition in ("asleep", "storage")
    assert condition is None or len(shell.table.watch.stalled) == stalls, "it may wait for storage"
    if process == ("runs", 0.3):
        shell.wait(2 * DEADLINE_MIN_S)
        assert kills(shell) == [(1, "looping")]


def test_rows_of_a_stopped_worker_go_first_though_the_other_one_is_busy() -> None:
    def rows_at(worker: int) -> set[tuple[int, int]]:
        fills = [shell.fills[ticket] for ticket in shell.workers[worker]]
        return {(fill.index, fill.first) for fill in fills}

    shell = shell_with()
    shell.states[1] = STOPPED
    lost = rows_at(1)
    shell.request(A, [(5, 2), (5, 3)], [])
    shell.states[2] = LOOPS
    while not shell.killed:
        shell.wait(0.5)
        if shell.workers[2]:
            shell.fill(2)
    assert len(shell.workers[2]) == 2, "it was busy all the time"
    shell.lose(1, was_killed=True)
    shell.fill(2)
    shell.fill(2)
    again = rows_at(2)
    shell.fill(2)
    again |= rows_at(2)
    assert again == lost
    fill_others(shell, 0)
    assert all(wanted.sent == ROWS for wanted in shell.clients[A].wanted.values())


def test_short_stops_in_a_row_are_not_one_long_stop() -> None:
    shell = shell_with()
    fill_others(shell, 1)
    for _ in range(5):
        shell.states[1] = "traced", 0.0
        shell.wait(1.0)
        shell.states[1] = "runs", 0.2
        shell.wait(1.0)
    assert not shell.killed


@pytest.mark.parametrize(
    ("chunk_s", "quiet_s"), [(1.0, 3.0), (4.0, 12.0), (12.0, CHUNK_DEADLINE_S / 2)]
)
def test_where_chunks_take_long_a_worker_may_be_quiet_for_longer(
    chunk_s: float, quiet_s: float
) -> None:
    shell = shell_with(workers=1, chunk_s=chunk_s)
    shell.states[1] = READS
    shell.wait(quiet_s - 0.2)
    assert not shell.silences
    shell.wait(LATE_S)
    assert len(shell.silences) == 1


def test_rows_that_hang_every_worker_are_given_up_and_named() -> None:
    shell = shell_with(workers=1)
    waited: list[float] = []
    failures: list[Failed] = []
    while not failures:
        (worker,) = shell.workers
        while shell.fills[shell.workers[worker][0]].first != 0:
            shell.fill(worker)
        began_s, killed = shell.now_s, len(shell.kills)
        shell.states[worker] = LOOPS
        while len(shell.kills) == killed:
            shell.wait(0.25)
        waited.append(shell.now_s - began_s)
        shell.lose(worker, was_killed=True)
        failures = [m for _, m in shell.inbox if isinstance(m, Failed)]
        shell.join()
    assert failures[0].code == "worker-died"
    assert shell.counters.chunks_returned == 2, "both of the first worker's, the other one no more"
    assert f"{HANGS_MAX} workers did not finish rows 0 .. 2" in failures[0].message
    assert "feeder verify" in failures[0].message
    assert len(waited) == HANGS_MAX
    assert waited[0] < 2 * DEADLINE_MIN_S
    assert waited[1] == pytest.approx(CHUNK_DEADLINE_S, abs=2 * LATE_S), "longer than the first"


@pytest.mark.parametrize("process", [LOOPS, SLEEPS, READS, STOPPED])
def test_a_chunk_is_not_blamed_for_the_one_before_it(process: Process) -> None:
    """Its worker finishes that one between the decision to kill it and its end."""
    shell = shell_with()
    shell.states[1] = process
    _, innocent = (shell.fills[ticket] for ticket in shell.workers[1])
    fill_others(shell, 1)
    while not shell.killed:
        shell.wait(0.5)
    shell.request(A, [(6, 0), (6, 1)], [])
    shell.fill(1)
    shell.lose(1, was_killed=True)
    while shell.fills[shell.workers[2][0]].first != innocent.first:
        shell.fill(2)
    shell.states[2] = SLEEPS
    shell.wait(DEADLINE_MIN_S + LATE_S)
    assert shell.killed == [1, 2], "it has hung no worker yet, so this one has the usual deadline"


def test_a_worker_that_has_finished_no_chunk_yet_has_time_to_open_its_files() -> None:
    shell = shell_with()
    shell.states[1] = shell.states[2] = SLEEPS
    shell.wait(2 * DEADLINE_MIN_S)
    assert shell.killed == [1], "the other one has just come up"


def test_a_read_that_hangs_is_known_with_the_silence_unless_the_disk_is_only_slow() -> None:
    """That waits for storage in every look, and reads a little between them."""
    for read_bytes, stalled in ((0, {"d"}), (100_000, set())):
        shell = shell_with(workers=1)
        shell.states[1] = READS
        for _ in range(11):
            assert not shell.table.watch.stalled_names or shell.now_s > SILENT_S
            shell.read_bytes[1] = shell.read_bytes.get(1, 0) + read_bytes
            shell.wait(0.25)
        assert len(shell.silences) == 1
        assert shell.table.watch.stalled_names == stalled
        shell.fill(1)
        assert not shell.table.watch.stalled_names


# A worker that delays another dataset


def behind(chunk_s: float) -> Shell:
    """Return a shell whose worker 1 fills a chunk of "d" and has one of "e" behind it."""
    shell = shell_with(workers=1, chunk_s=chunk_s)
    shell.hello(B, dataset="e")
    shell.request(B, [(0, 0)], [])
    while [shell.open[shell.fills[t].session].dataset for t in shell.workers[1]] != ["d", "e"]:
        shell.fill(1)
    return shell


def surplus(chunk_s: float) -> Shell:
    """Return a shell whose workers 1 and 2 have chunks of "d" alone, while one of "e" waits."""
    shell = shell_with(chunk_s=chunk_s)
    shell.hello(B, dataset="e")
    shell.request(B, [(0, 0)], [])
    return shell


@pytest.mark.parametrize("delaying", [behind, surplus])
@pytest.mark.parametrize("process", [READS, SLEEPS])
@pytest.mark.parametrize("chunk_s", [0.6, 2.5, 6.0])
def test_patience_is_three_times_what_chunks_take(
    delaying: Callable[[float], Shell], process: Process, chunk_s: float
) -> None:
    shell = delaying(chunk_s)
    shell.states.update(dict.fromkeys(shell.workers, process))
    patience_s = max(PATIENCE_S, PATIENT_AFTER * chunk_s)
    shell.wait(0.95 * patience_s)
    assert not shell.killed
    assert not shell.table.watch.stalled
    shell.wait(0.05 * patience_s + LATE_S)
    assert len(shell.killed) == 1
    assert len(shell.table.watch.stalled) == 1


# The whole daemon is suspended, as by a cgroup freezer: such time counts as no worker's silence


@pytest.mark.parametrize(
    ("process", "chunk_s"),
    [
        (LOOPS, 3.5),
        (("runs", 0.8), 3.5),
        (("storage", 0.6), 3.5),
        (READS, 20.0),  # three times as long is more than the deadline
    ],
)
def test_a_worker_that_uses_its_cpu_is_not_killed_for_others_before_its_deadline(
    process: Process, chunk_s: float
) -> None:
    shell = behind(chunk_s)
    shell.states[1] = process
    shell.wait(CHUNK_DEADLINE_S - 1.0)
    assert not shell.killed
    shell.wait(1.0 + LATE_S)
    assert shell.killed == [1]


def suspend(shell: Shell, seconds: float) -> None:
    """All processes stand still; the node process notices it when it goes on."""
    shell.now_s += seconds
    shell.apply(Resumed())


@pytest.mark.parametrize("process", [LOOPS, ("runs", 0.05), SLEEPS, READS, STOPPED])
@pytest.mark.parametrize("chunk_s", [None, 0.03, 0.9])
def test_no_worker_is_silent_or_stuck_after_a_suspension(
    process: Process, chunk_s: float | None
) -> None:
    shell = shell_with(chunk_s=chunk_s)
    for suspended_s in (1.0, 10.0, 1000.0):
        shell.states.update(dict.fromkeys(shell.workers, process))
        shell.wait(0.5)
        suspend(shell, suspended_s)
        shell.wait(SILENT_S - 0.6)
        assert not shell.silences
        assert not shell.killed
        fill_others(shell, 0)
        shell.request(A, [(6, 0), (6, 1)], [*shell.clients[A].wanted])
        while shell.returning:
            shell.return_slot()


@pytest.mark.parametrize("is_suspended", [False, True])
def test_neither_stops_nor_suspensions_teach_that_chunks_take_long(is_suspended: bool) -> None:
    shell = shell_with(workers=1)
    for _ in range(4):
        if is_suspended:
            suspend(shell, 20.0)
        else:
            shell.states[1] = STOPPED
            shell.wait(2.9)  # it is continued after the last look
        shell.fill(1)
    shell.silences.clear()
    shell.states[1] = SLEEPS
    shell.wait(SILENT_S + LATE_S)
    assert [silence.chunk.worker for silence in shell.silences] == [1]


@pytest.mark.parametrize("is_later", [False, True])
def test_batches_of_a_stalled_dataset_wait_as_long_as_ever(is_later: bool) -> None:
    shell = shell_with(workers=1)
    shell.states[1] = READS
    shell.wait(CHUNK_DEADLINE_S + LATE_S)
    assert len(shell.table.watch.stalled) == 1
    shell.lose(1, was_killed=True, is_held=True)
    if is_later:
        shell.wait(UNANSWERED_S)
        shell.inbox.clear()
        shell.request(A, [(7, 0)], [(5, 0), (5, 1)])
    suspend(shell, 100.0)
    shell.wait(1.0)
    assert not [message for _, message in shell.inbox if isinstance(message, Failed)]
    shell.wait(UNANSWERED_S)
    assert [message for _, message in shell.inbox if isinstance(message, Failed)]
