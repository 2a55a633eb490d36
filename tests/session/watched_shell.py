"""Shells whose workers are watched: what their chunks usually take is known."""

from feeder.session.worker_watch import KNOWN_AFTER
from tests.support.session_shell import Shell, limits

A = b"a"
LATE_S = 0.6
"""A look is late by less."""


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


def rows_at(shell: Shell, worker: int) -> set[tuple[int, int]]:
    """Return index of the batch and first row of each chunk that a worker has."""
    fills = [shell.fills[ticket] for ticket in shell.workers[worker]]
    return {(fill.index, fill.first) for fill in fills}


def fill_others(shell: Shell, silent: int) -> None:
    """Fill all chunks except those of one worker."""
    while ready := [w for w, tickets in shell.workers.items() if tickets and w != silent]:
        shell.fill(ready[0])
