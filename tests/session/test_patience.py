"""A worker that delays another dataset loses its chunk sooner, unless such chunks take long."""

from collections.abc import Callable

import pytest

from feeder.metrics.hangs import KernelState
from feeder.session.worker_watch import CHUNK_DEADLINE_S, PATIENCE_S, PATIENT_AFTER
from tests.session.watched_shell import LATE_S, shell_with
from tests.support.session_shell import Shell

B = b"b"
BUSY: list[tuple[KernelState, float]] = [("runs", 1.0), ("runs", 0.8), ("storage", 0.6)]


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


def stay(shell: Shell, state: KernelState, share: float) -> None:
    """All workers remain in a state from now on."""
    for worker in shell.workers:
        shell.states[worker] = state, share


@pytest.mark.parametrize("delaying", [behind, surplus])
@pytest.mark.parametrize(("state", "share"), [("storage", 0.0), ("sleeps", 0.0), *BUSY])
def test_a_healthy_slow_worker_finishes_while_others_wait(
    delaying: Callable[[float], Shell], state: KernelState, share: float
) -> None:
    shell = delaying(6.0)
    stay(shell, state, share)
    shell.wait(1.5 * 6.0)
    assert not shell.killed
    assert len(shell.table.watch.stalled) == 0


@pytest.mark.parametrize("delaying", [behind, surplus])
@pytest.mark.parametrize("state", ["storage", "sleeps"])
@pytest.mark.parametrize("chunk_s", [0.6, 2.5, 6.0])
def test_patience_is_three_times_what_chunks_take(
    delaying: Callable[[float], Shell], state: KernelState, chunk_s: float
) -> None:
    shell = delaying(chunk_s)
    stay(shell, state, 0.0)
    patience_s = max(PATIENCE_S, PATIENT_AFTER * chunk_s)
    shell.wait(0.95 * patience_s)
    assert not shell.killed
    shell.wait(0.05 * patience_s + LATE_S)
    assert len(shell.killed) == 1
    assert len(shell.table.watch.stalled) == 1


@pytest.mark.parametrize(("state", "share"), BUSY)
def test_a_worker_that_uses_its_cpu_is_not_killed_for_others(
    state: KernelState, share: float
) -> None:
    shell = behind(3.5)
    stay(shell, state, share)
    shell.wait(CHUNK_DEADLINE_S - 1.0)
    assert not shell.killed
    shell.wait(1.0 + LATE_S)
    assert shell.killed == [1]


def test_patience_never_exceeds_the_deadline() -> None:
    shell = behind(20.0)
    stay(shell, "storage", 0.0)
    shell.wait(CHUNK_DEADLINE_S + LATE_S)
    assert shell.killed == [1]


def test_one_slow_chunk_is_enough_to_be_patient() -> None:
    """The deadline needs more of them: it is shorter than the one without any."""
    shell = shell_with(workers=1, chunk_s=None)
    shell.hello(B, dataset="e")
    shell.wait(4.0)
    shell.fill(1)
    shell.request(B, [(0, 0)], [])
    shell.states[1] = "storage", 0.0
    while [shell.open[shell.fills[t].session].dataset for t in shell.workers[1]] != ["d", "e"]:
        shell.wait(4.0)
        shell.fill(1)
    shell.wait(10.0)
    assert not shell.killed
    shell.wait(2.0 + LATE_S)
    assert shell.killed == [1]
