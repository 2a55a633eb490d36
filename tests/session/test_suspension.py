"""The whole daemon is suspended, as by a cgroup freezer: that time is nobody's silence."""

import pytest

from feeder.metrics.hangs import KernelState
from feeder.session.events import Resumed
from feeder.session.worker_watch import CHUNK_DEADLINE_S, DEADLINE_MIN_S, SILENT_S, UNANSWERED_S
from feeder.wire.messages import Failed
from tests.session.watched_shell import LATE_S, A, fill_others, shell_with
from tests.support.session_shell import Shell

STATES: list[tuple[KernelState, float]] = [
    ("runs", 1.0),
    ("runs", 0.8),
    ("runs", 0.05),
    ("sleeps", 0.0),
    ("storage", 0.0),
    ("stopped", 0.0),
]


def suspend(shell: Shell, seconds: float) -> None:
    """All processes stand still; the node process notices it when it goes on."""
    shell.now_s += seconds
    shell.apply(Resumed())


@pytest.mark.parametrize("frozen_s", [1.0, 10.0, 40.0, 1000.0])
@pytest.mark.parametrize(("state", "share"), STATES)
@pytest.mark.parametrize("chunk_s", [None, 0.03, 0.9])
def test_no_worker_is_silent_or_stuck(
    frozen_s: float, state: KernelState, share: float, chunk_s: float | None
) -> None:
    shell = shell_with(chunk_s=chunk_s)
    for worker in shell.workers:
        shell.states[worker] = state, share
    shell.wait(0.5)
    suspend(shell, frozen_s)
    shell.wait(SILENT_S - 0.6)
    assert not shell.silences
    assert not shell.killed


@pytest.mark.parametrize("ran_s", [0.1, 1.3, 2.2, 2.9])
def test_a_worker_that_hangs_is_killed_after_its_own_time(ran_s: float) -> None:
    shell = shell_with()
    shell.states[1] = "sleeps", 0.0
    fill_others(shell, 1)
    shell.wait(ran_s)
    suspend(shell, 10.0)
    assert not shell.killed
    shell.wait(DEADLINE_MIN_S + LATE_S)
    (kill,) = shell.kills
    assert (kill.chunk.worker, kill.condition) == (1, "asleep")
    assert kill.silent_s < 2 * DEADLINE_MIN_S, "without the suspension"


def test_looks_from_before_prove_nothing() -> None:
    shell = shell_with()
    shell.states[1] = "stopped", 0.0  # it was about to be continued
    fill_others(shell, 1)
    shell.wait(2.5)
    suspend(shell, 10.0)
    shell.wait(1.0)
    assert not shell.killed


def test_it_does_not_teach_that_chunks_take_long() -> None:
    shell = shell_with()
    suspend(shell, 20.0)
    shell.fill(1)
    shell.fill(2)
    shell.states[1] = "sleeps", 0.0
    fill_others(shell, 1)
    shell.wait(DEADLINE_MIN_S + LATE_S)
    assert shell.killed == [1]
    assert not shell.resumed


def test_a_worker_that_is_being_killed_stays_so() -> None:
    shell = shell_with()
    shell.states[1] = "sleeps", 0.0
    fill_others(shell, 1)
    shell.wait(DEADLINE_MIN_S + LATE_S)
    assert shell.killed == [1]
    suspend(shell, 10.0)
    shell.wait(10.0)
    assert shell.killed == [1]


@pytest.mark.parametrize("is_asked_later", [False, True])
def test_batches_of_a_stalled_dataset_wait_as_long_as_ever(is_asked_later: bool) -> None:
    shell = shell_with(workers=1)
    shell.states[1] = "storage", 0.0
    shell.wait(CHUNK_DEADLINE_S + LATE_S)
    assert len(shell.table.watch.stalled) == 1
    shell.lose(1, was_killed=True, is_held=True)
    if is_asked_later:
        shell.wait(UNANSWERED_S)
        shell.inbox.clear()
        shell.request(A, [(7, 0)], [(5, 0), (5, 1)])
    suspend(shell, 100.0)
    shell.wait(1.0)
    assert not [message for _, message in shell.inbox if isinstance(message, Failed)]
    shell.wait(UNANSWERED_S)
    assert [message for _, message in shell.inbox if isinstance(message, Failed)]
