"""Workers without progress: reported, and killed or spared by what their processes do."""

import pytest

from feeder.metrics.hangs import KernelState
from feeder.session.dispatch import HANGS_MAX
from feeder.session.worker_watch import (
    CHUNK_DEADLINE_S,
    DEADLINE_MIN_S,
    KILL_AFTER,
    PATIENCE_S,
    SILENT_S,
)
from feeder.wire.messages import Failed
from tests.session.watched_shell import LATE_S, A, fill_others, rows_at, shell_with
from tests.support.session_shell import ROWS, Shell

B = b"b"


def silent_workers(shell: Shell) -> list[int]:
    """The workers whose silence was reported and goes on."""
    return [
        worker.record.number for worker in shell.table.watch.workers.values() if worker.is_reported
    ]


def test_a_stopped_worker_is_reported_once_with_its_rows() -> None:
    shell = shell_with()
    shell.states[1] = "stopped", 0.0
    fill_others(shell, 1)
    shell.wait(DEADLINE_MIN_S - 0.1)
    (silence,) = shell.silences
    chunk, session = silence.chunk, silence.chunk.batch.session
    assert (chunk.worker, session.dataset, chunk.first, chunk.count) == (1, "d", 0, 3)
    assert silence.kernel_state == "stopped by a signal"
    assert SILENT_S <= silence.silent_s < SILENT_S + LATE_S
    assert session.number in shell.open
    assert shell.record.silences == 1
    assert silent_workers(shell) == [1]


def test_a_worker_that_goes_on_is_reported_with_its_silence() -> None:
    shell = shell_with()
    shell.states[1] = "stopped", 0.0
    shell.wait(2.5)
    fill_others(shell, 1)
    shell.states[1] = "runs", 1.0
    shell.fill(1)
    (progress,) = [each for each in shell.resumed if each.chunk.worker == 1]
    assert progress.chunk.silent_s == pytest.approx(2.5)
    assert not silent_workers(shell)
    shell.fill(1)
    assert len([each for each in shell.resumed if each.chunk.worker == 1]) == 1
    assert not shell.killed


@pytest.mark.parametrize("chunk_s", [None, 0.03, 0.9, 6.0])
@pytest.mark.parametrize("state", ["stopped", "traced"])
def test_a_stopped_worker_is_killed_whatever_its_chunks_take(
    state: KernelState, chunk_s: float | None
) -> None:
    shell = shell_with(chunk_s=chunk_s)
    shell.states[1] = state, 0.0
    fill_others(shell, 1)
    shell.wait(DEADLINE_MIN_S - 0.1)
    assert len(shell.silences) == 1
    assert not shell.killed
    shell.wait(LATE_S)
    assert [(kill.chunk.worker, kill.condition) for kill in shell.kills] == [(1, "stopped")]
    assert len(shell.table.watch.stalled) == 0


def test_rows_of_a_stopped_worker_go_first_though_the_other_one_is_busy() -> None:
    shell = shell_with()
    shell.states[1] = "stopped", 0.0
    lost = rows_at(shell, 1)
    shell.request(A, [(5, 2), (5, 3)], [])
    shell.states[2] = "runs", 1.0
    while not shell.killed:
        shell.wait(0.5)
        if shell.workers[2]:
            shell.fill(2)
    assert len(shell.workers[2]) == 2, "it was busy all the time"
    shell.lose(1, was_killed=True)
    shell.fill(2)
    shell.fill(2)
    again = rows_at(shell, 2)
    shell.fill(2)
    again |= rows_at(shell, 2)
    assert again == lost
    fill_others(shell, 0)
    assert all(wanted.sent == ROWS for wanted in shell.clients[A].wanted.values())


@pytest.mark.parametrize("chunk_s", [0.03, 0.9])
@pytest.mark.parametrize(
    ("state", "share", "condition"), [("sleeps", 0.0, "asleep"), ("runs", 1.0, "looping")]
)
def test_a_worker_that_hangs_is_killed_after_what_its_chunks_usually_take(
    chunk_s: float, state: KernelState, share: float, condition: str
) -> None:
    shell = shell_with(chunk_s=chunk_s)
    shell.states[1] = state, share
    fill_others(shell, 1)
    deadline_s = max(DEADLINE_MIN_S, KILL_AFTER * chunk_s)
    shell.wait(0.95 * deadline_s)  # the other worker's quick chunks have lowered it a little
    assert not shell.killed
    shell.wait(0.05 * deadline_s + LATE_S)
    assert [(kill.chunk.worker, kill.condition) for kill in shell.kills] == [(1, condition)]
    assert len(shell.table.watch.stalled) == (condition == "asleep"), "it may wait for storage"


@pytest.mark.parametrize(
    ("state", "share"), [("storage", 0.0), ("runs", 0.05), ("runs", 0.15), ("runs", 0.0)]
)
def test_a_worker_that_waits_for_disk_or_cpu_keeps_the_long_deadline(
    state: KernelState, share: float
) -> None:
    shell = shell_with()
    shell.states[1] = state, share
    fill_others(shell, 1)
    shell.wait(9.0)
    assert len(shell.silences) == 1
    assert not shell.killed
    shell.wait(CHUNK_DEADLINE_S - 9.0 + LATE_S)
    assert state == "runs" or shell.killed == [1]


def test_a_worker_in_a_loop_is_killed_on_a_busy_machine_once_it_has_used_the_time() -> None:
    shell = shell_with()
    shell.states[1] = "runs", 0.3
    fill_others(shell, 1)
    shell.wait(2 * DEADLINE_MIN_S)
    assert not shell.killed
    shell.wait(2 * DEADLINE_MIN_S)
    assert [(kill.chunk.worker, kill.condition) for kill in shell.kills] == [(1, "looping")]


def test_a_worker_of_a_busy_machine_is_not_killed_for_others() -> None:
    shell = shell_with(workers=1)
    shell.hello(B, dataset="e")
    shell.fill(1)
    shell.request(B, [(0, 0)], [])
    while {shell.open[shell.fills[t].session].dataset for t in shell.workers[1]} != {"d", "e"}:
        shell.fill(1)
    shell.states[1] = "runs", 0.05
    shell.wait(CHUNK_DEADLINE_S - 1.0)
    assert not shell.killed
    shell.states[1] = "storage", 0.0
    shell.wait(LATE_S)
    assert shell.killed == [1], f"it is spared for {PATIENCE_S} s while it waits for storage"


def test_nothing_is_killed_early_while_nothing_is_known() -> None:
    shell = shell_with(chunk_s=None)
    shell.states[1] = "sleeps", 0.0
    shell.states[2] = "runs", 1.0
    shell.wait(CHUNK_DEADLINE_S - 0.1)
    assert not shell.killed
    shell.wait(LATE_S)
    assert sorted(shell.killed) == [1, 2]


def test_short_stops_in_a_row_are_not_one_long_stop() -> None:
    shell = shell_with()
    fill_others(shell, 1)
    for _ in range(5):
        shell.states[1] = "traced", 0.0
        shell.wait(1.0)
        shell.states[1] = "runs", 0.2
        shell.wait(1.0)
    assert not shell.killed


def test_one_look_does_not_prove_a_stop() -> None:
    shell = shell_with()
    shell.states[1] = "stopped", 0.0
    shell.now_s += 1000.0
    shell.advance(0.0)
    assert not [kill for kill in shell.kills if kill.condition == "stopped"]


@pytest.mark.parametrize("chunk_s", [1.0, 4.0])
def test_where_chunks_take_long_a_worker_may_be_quiet_for_longer(chunk_s: float) -> None:
    shell = shell_with(workers=1, chunk_s=chunk_s)
    shell.states[1] = "storage", 0.0
    shell.wait(3 * chunk_s - 0.2)
    assert not shell.silences
    shell.wait(LATE_S)
    assert len(shell.silences) == 1


def test_rows_that_hang_every_worker_are_given_up_and_named() -> None:
    shell = shell_with(workers=1)
    waited = []
    while not (failures := [m for _, m in shell.inbox if isinstance(m, Failed)]):
        worker = next(iter(shell.workers))
        while shell.workers[worker] and shell.fills[shell.workers[worker][0]].first != 0:
            shell.fill(worker)
        began_s, kills = shell.now_s, len(shell.kills)
        shell.states[worker] = "runs", 1.0
        while len(shell.kills) == kills:
            shell.wait(0.25)
        waited.append(shell.now_s - began_s)
        shell.lose(worker, was_killed=True)
        if not [m for _, m in shell.inbox if isinstance(m, Failed)]:
            worker = shell.join()
            while shell.workers[worker] and shell.fills[shell.workers[worker][0]].first != 0:
                shell.fill(worker)
    assert failures[0].code == "worker-died"
    assert f"{HANGS_MAX} workers did not finish rows 0 .. 2" in failures[0].message
    assert "feeder verify" in failures[0].message
    assert len(waited) == HANGS_MAX
    assert waited[0] < 2 * DEADLINE_MIN_S
    assert waited[1] == pytest.approx(CHUNK_DEADLINE_S, abs=2 * LATE_S), "longer than the first"


@pytest.mark.parametrize(
    ("state", "share"), [("runs", 1.0), ("sleeps", 0.0), ("storage", 0.0), ("stopped", 0.0)]
)
def test_a_chunk_is_not_blamed_for_the_one_before_it(state: KernelState, share: float) -> None:
    """Its worker finishes that one between the decision to kill it and its end."""
    shell = shell_with()
    shell.states[1] = state, share
    _, innocent = (shell.fills[ticket] for ticket in shell.workers[1])
    fill_others(shell, 1)
    while not shell.killed:
        shell.wait(0.5)
    shell.request(A, [(6, 0), (6, 1)], [])
    shell.fill(1)
    shell.lose(1, was_killed=True)
    while shell.fills[shell.workers[2][0]].first != innocent.first:
        shell.fill(2)
    shell.states[2] = "sleeps", 0.0
    shell.wait(DEADLINE_MIN_S + LATE_S)
    assert shell.killed == [1, 2], "it has hung no worker yet, so this one has the usual deadline"


def test_stops_do_not_teach_that_chunks_take_long() -> None:
    shell = shell_with(workers=1)
    for _ in range(4):
        shell.states[1] = "stopped", 0.0
        shell.wait(2.9)  # it is continued after the last look
        shell.fill(1)
    shell.silences.clear()
    shell.states[1] = "sleeps", 0.0
    shell.wait(SILENT_S + LATE_S)
    assert [silence.chunk.worker for silence in shell.silences] == [1]


def test_a_worker_that_has_finished_no_chunk_yet_has_time_to_open_its_files() -> None:
    shell = shell_with()
    shell.states[1] = "sleeps", 0.0
    shell.states[2] = "sleeps", 0.0
    shell.wait(2 * DEADLINE_MIN_S)
    assert shell.killed == [1], "the other one has just come up"


def test_an_idle_table_looks_at_no_worker() -> None:
    shell = shell_with()
    shell.finish()
    assert not shell.table.watch.quiet_workers(shell.now_s + 100.0)


def test_a_read_that_hangs_is_known_with_the_silence_even_of_one_worker() -> None:
    shell = shell_with(workers=1)
    shell.states[1] = "storage", 0.0
    shell.wait(SILENT_S - 0.1)
    assert not shell.table.watch.stalled_names
    shell.wait(LATE_S)
    assert shell.table.watch.stalled_names == {"d"}
    shell.fill(1)
    assert not shell.table.watch.stalled_names


def test_a_slow_disk_is_no_read_that_hangs() -> None:
    """It waits for storage in every look, and reads a little between them."""
    shell = shell_with(workers=1)
    shell.states[1] = "storage", 0.0
    for _ in range(20):
        shell.read_bytes[1] = shell.read_bytes.get(1, 0) + 100_000
        shell.wait(0.25)
    assert len(shell.silences) == 1
    assert not shell.table.watch.stalled_names
