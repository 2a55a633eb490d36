"""The session state machine towards clients: answers, refusals, leases, turns, drain."""

import pytest

from feeder.session.events import (
    DrainAsked,
)
from feeder.wire.messages import (
    Bye,
    Draining,
    Lent,
    Ping,
    Pong,
    Refused,
)
from tests.support.session_shell import (
    BATCH,
    ROWS,
    SLOT_BYTES,
    Shell,
    limits,
)

A, B = b"a", b"b"


def _last(shell: Shell) -> object:
    return shell.inbox[-1][1]


def _refusal(shell: Shell) -> Refused:
    message = _last(shell)
    assert isinstance(message, Refused)
    return message


def test_earlier_batches_go_first_and_all_rows_are_sent() -> None:
    shell = Shell()
    worker = shell.join()
    shell.hello(A)
    shell.request(A, [(0, 5), (0, 2)], [])
    order = []
    while shell.fills:
        fill = shell.fill(worker)
        order.append((fill.index, fill.first, fill.count))
    assert order == [(5, 0, 3), (5, 3, 3), (5, 6, 1), (2, 0, 3), (2, 3, 3), (2, 6, 1)]
    assert [wanted.sent for wanted in shell.clients[A].wanted.values()] == [ROWS, ROWS]
    assert shell.record.batches == 2
    assert shell.record.images == 2 * BATCH


def test_a_job_keeps_its_debt_over_the_end_of_its_session() -> None:
    generous = limits(lease_s=1000.0, slots_bytes=100 * SLOT_BYTES)
    shell = Shell(generous, datasets=("d", "e"))
    worker = shell.join()
    shell.hello(B, window=4, job="light")
    light = shell.clients[B].session
    shell.hello(A, dataset="e", job="heavy")
    shell.request(B, [(0, i) for i in range(4)], [])
    shell.request(A, [(0, 0)], [])

    def fill() -> int:
        session = shell.fills[shell.workers[worker][0]].session
        busy_s = 0.01 if session == light else 2.0
        shell.advance(busy_s)
        shell.fill(worker, busy_s=busy_s)
        return session

    while fill() == light:
        pass
    assert fill() != light, "it was in flight before the first one was charged"
    shell.bye(A)
    shell.hello(A, dataset="e", job="heavy")
    shell.request(A, [(0, 0)], [])
    assert [fill() for _ in range(6)] == 6 * [light]


def test_index_past_the_epoch_is_refused() -> None:
    shell = Shell()
    shell.hello(A)
    shell.request(A, [(0, 14)], [])
    assert _refusal(shell).code == "range"
    assert "0 .. 13" in _refusal(shell).message


def test_a_session_belongs_to_its_peer() -> None:
    shell = Shell()
    shell.hello(A)
    shell.message(B, Ping(session=shell.clients[A].session))
    assert _refusal(shell).code == "unknown-session"


def test_any_message_keeps_the_lease() -> None:
    shell = Shell()
    shell.hello(A)
    for _ in range(3):
        shell.advance(6)
        shell.request(A, [], [])
    assert shell.counters.sessions_expired == 0


def test_lease_ends_a_silent_session_and_pings_keep_it() -> None:
    shell = Shell()
    shell.hello(A)
    shell.hello(B)
    for _ in range(3):
        shell.advance(6)
        shell.ping(A)
        pong = _last(shell)
        assert isinstance(pong, Pong)
        assert pong.session == shell.clients[A].session
        assert pong.sharers == 1 + (shell.counters.sessions_expired == 0), "B's is alike"
    assert shell.counters.sessions_expired == 1
    assert shell.closing == [shell.clients[B].session]
    shell.ping(B)
    assert _refusal(shell).code == "unknown-session"


def test_a_chunk_that_was_only_queued_at_dead_workers_is_not_given_up() -> None:
    shell = Shell()
    shell.hello(A)
    worker = shell.join()
    shell.request(A, [(0, 0)], [])
    for _ in range(3):  # each time another chunk was being filled, and the last one was queued
        shell.lose(worker)
        worker = shell.join()
        shell.fill(worker)
    shell.finish()
    assert shell.clients[A].wanted[0, 0].sent == ROWS


def test_drain_finishes_requested_batches_and_takes_no_new_ones() -> None:
    shell = Shell()
    worker = shell.join()
    shell.hello(A, window=1)
    shell.request(A, [(0, 0)], [])
    while shell.fills:
        shell.fill(worker)
    shell.request(A, [(0, 1)], [(0, 0)])
    shell.apply(DrainAsked())
    assert _last(shell) == Draining(session=shell.clients[A].session)
    assert not shell.fills, "the socket still reads the only slot"
    assert not shell.table.is_idle
    shell.request(A, [(0, 2)], [])
    assert _refusal(shell).code == "draining"
    shell.hello(B)
    assert _refusal(shell).code == "draining"
    shell.return_slot()
    assert not shell.table.is_idle
    while shell.fills:
        shell.fill(worker)
    assert shell.table.is_idle
    assert shell.clients[A].wanted[0, 1].sent == ROWS


def _claiming_shell() -> tuple[Shell, int, int]:
    shell = Shell()
    worker = shell.join()
    shell.hello(A, window=2)
    session = shell.clients[A].session
    assert shell.claim(session)
    return shell, worker, session


def test_a_batch_is_lent_whole_and_its_slot_is_returned_on_release() -> None:
    shell, worker, _ = _claiming_shell()
    shell.request(A, [(0, 0), (0, 1)], [])
    while shell.fills:
        shell.fill(worker)
    lent = [message for _, message in shell.inbox if isinstance(message, Lent)]
    assert [(m.epoch, m.index, m.valid) for m in lent] == [(0, 0, BATCH), (0, 1, BATCH)]
    assert {m.slot for m in lent} == {0, 1}
    assert not shell.sent, "no pixels go over the socket"
    assert not shell.returning
    shell.request(A, [(0, 2)], [(0, 0)])
    assert not shell.returning, "the socket has never read it"
    assert {fill.slot for fill in shell.fills.values()} == {lent[0].slot}
    assert (shell.record.batches, shell.counters.batches_lent) == (2, 2)


def test_a_slot_that_is_released_while_it_is_filled_goes_to_the_next_batch_after_that() -> None:
    shell, worker, _ = _claiming_shell()
    window = shell.clients[A].window
    shell.request(A, [(0, index) for index in range(window)], [])
    shell.request(A, [(1, 0)], [(0, 0)])
    while shell.fills:
        shell.fill(worker)
    lent = {(m.epoch, m.index): m.slot for _, m in shell.inbox if isinstance(m, Lent)}
    assert lent.keys() == {*((0, index) for index in range(1, window)), (1, 0)}


@pytest.mark.parametrize("end", ["died", "farewell", "expired"])
def test_memory_that_a_client_maps_outlives_its_session_until_it_is_unmapped(end: str) -> None:
    shell, worker, session = _claiming_shell()
    shell.request(A, [(0, 0)], [])
    while shell.fills:
        shell.fill(worker)
    used = shell.table.sessions.used
    held = used.slots_bytes
    assert shell.table.sessions.held_bytes == held > 0
    if end == "expired":
        shell.advance(11)
        shell.finish()
        assert used.slots_bytes == shell.table.sessions.held_bytes == held
    shell.unmap(session, has_died=end != "farewell")
    shell.message(A, Bye(session=session))  # a farewell may overtake it
    shell.finish()
    assert used.slots_bytes == shell.table.sessions.held_bytes == 0
    counters = shell.counters
    counts = counters.sessions_lost, counters.sessions_closed, counters.sessions_expired
    assert counts == (end == "died", end == "farewell", end == "expired")


def test_slots_cannot_be_claimed_twice_or_late_or_without_a_session() -> None:
    shell, _, session = _claiming_shell()
    assert not shell.claim(session)
    assert not shell.claim(session + 99)
    shell.hello(B, window=1)
    shell.request(B, [(0, 0)], [])
    assert not shell.claim(shell.clients[B].session)
    assert [reason.split(":")[0] for reason in shell.claims_refused] == [
        "the slots of this session are already mapped",
        "there is no such session here (any more)",
        "this session gets its batches over the socket",
    ]
