"""Datasets whose file systems do not answer, and chunks whose workers die."""

import pytest

from feeder.session.worker_watch import CHUNK_DEADLINE_S, PATIENCE_S, UNANSWERED_S
from feeder.wire.messages import Failed
from tests.session.test_silence import LATE_S
from tests.support.session_shell import ROWS, Shell, limits

A, B, C = b"a", b"b", b"c"


def patient_shell(workers: int = 2) -> Shell:
    """Return a shell without expiry of leases, with workers 1, 2 and so on."""
    shell = Shell(limits(lease_s=10_000.0), ("d", "e"))
    for _ in range(workers):
        shell.join()
    return shell


def want(shell: Shell, peer: bytes, dataset: str, batches: int = 2) -> None:
    shell.hello(peer, dataset=dataset)
    shell.request(peer, [(0, index) for index in range(batches)], [])


def datasets_in_flight(shell: Shell) -> dict[int, list[str]]:
    """Return the datasets of each worker's chunks, oldest first."""
    return {
        worker: [shell.open[shell.fills[ticket].session].dataset for ticket in tickets]
        for worker, tickets in shell.workers.items()
    }


def failures(shell: Shell, peer: bytes) -> list[Failed]:
    return [m for p, m in shell.inbox if p == peer and isinstance(m, Failed)]


def alone_with(shell: Shell, first: int) -> int:
    """Return the worker that has only the chunk from row ``first``, after filling others."""
    while True:
        firsts = {w: [shell.fills[t].first for t in held] for w, held in shell.workers.items()}
        alone = [worker for worker, rows in firsts.items() if rows == [first]]
        if alone:
            return alone[0]
        shell.fill(next(worker for worker, rows in firsts.items() if rows and rows[0] != first))


def fill_all_but(shell: Shell, dataset: str) -> None:
    """Fill all chunks of other datasets."""
    while True:
        in_flight = datasets_in_flight(shell)
        ready = [worker for worker, names in in_flight.items() if names and names[0] != dataset]
        while shell.returning:
            shell.return_slot()
        if not ready:
            return
        shell.fill(ready[0])


def test_a_stalled_dataset_keeps_one_worker_while_others_wait() -> None:
    shell = patient_shell()
    want(shell, A, "d")  # both workers are reading it, with one chunk behind
    want(shell, B, "e")
    shell.advance(PATIENCE_S - 0.1)
    assert not shell.killed
    shell.advance(LATE_S)
    (killed,) = shell.killed
    shell.lose(killed)
    shell.join()
    fill_all_but(shell, "d")
    assert all(wanted.sent == ROWS for wanted in shell.clients[B].wanted.values())
    assert sum(bool(names) for names in datasets_in_flight(shell).values()) == 1
    assert not failures(shell, A)


def test_a_stalled_dataset_is_probed_alone_until_it_answers() -> None:
    shell = patient_shell()
    want(shell, A, "d")
    shell.advance(CHUNK_DEADLINE_S)
    for worker in list(shell.killed):
        shell.lose(worker)
    assert len(shell.table.watch.stalled) == 1
    first, second = shell.join(), shell.join()
    assert datasets_in_flight(shell) == {first: ["d"], second: []}
    shell.fill(first)
    assert len(shell.table.watch.stalled) == 0
    shell.finish()
    assert all(wanted.sent == ROWS for wanted in shell.clients[A].wanted.values())


def test_a_dataset_with_a_held_worker_is_not_probed_and_its_batches_fail() -> None:
    shell = patient_shell()
    want(shell, A, "d")
    want(shell, B, "e")
    shell.advance(CHUNK_DEADLINE_S)
    for worker in list(shell.killed):
        shell.lose(worker, was_killed=True, is_held=True)
    held = list(shell.killed)
    while len(shell.workers) < 2:
        shell.join()
    fill_all_but(shell, "d")
    assert all(wanted.sent == ROWS for wanted in shell.clients[B].wanted.values())
    assert not any(datasets_in_flight(shell).values())
    while shell.now_s < UNANSWERED_S - 1:
        shell.advance(1)
    assert not failures(shell, A)
    shell.advance(1)
    lines = [failed.message for failed in failures(shell, A)]
    assert lines == [
        "dataset d cannot be read: no answer in 36 s, is its file system alive?",
    ] * len(shell.clients[A].wanted)
    assert {failed.code for failed in failures(shell, A)} == {"dataset"}
    assert shell.counters.batches_failed == {"stalled-storage": 2}
    assert shell.counters.bad_samples == 0
    shell.request(A, [(1, 0)], [(0, 0), (0, 1)])
    fill_all_but(shell, "e")
    assert not any(datasets_in_flight(shell).values())
    for worker in held:
        shell.release(worker)
    shell.finish()
    assert shell.clients[A].wanted[1, 0].sent == ROWS
    assert len(shell.table.watch.stalled) == 0


@pytest.mark.parametrize(
    ("was_killed", "tries", "words"),
    [(False, 3, "look for a damaged sample"), (True, 10, "is the memory")],
)
def test_rows_that_end_every_worker_fail_their_batch_once_with_how_the_workers_ended(
    was_killed: bool, tries: int, words: str
) -> None:
    shell = patient_shell()
    want(shell, A, "d", batches=1)
    shell.lose(1)  # it had another chunk behind this one
    shell.join()
    for death in range(tries):
        assert not failures(shell, A), f"after {death} deaths"
        shell.lose(alone_with(shell, 0), was_killed=was_killed)
        shell.join()
    (failed,) = failures(shell, A)
    assert (failed.code, failed.epoch, failed.index) == ("worker-died", 0, 0)
    assert "rows 0 .. 2" in failed.message
    assert words in failed.message
    assert shell.counters.batches_failed == {"worker-died": 1}
    shell.finish()
    assert shell.table.is_idle, "nothing more of it is filled"
