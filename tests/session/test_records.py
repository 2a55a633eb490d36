"""Totals by session, worker and slot state."""

import copy
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.metrics.fields import add
from feeder.metrics.records import SlotSeconds
from feeder.session.events import DrainAsked, SlotSent
from feeder.session.state import SlotTimes
from feeder.wire.chunk_work import Filled, FillFailed
from feeder.wire.messages import Ping, Pong
from tests.support.session_shell import BATCH, Shell, limits

PEERS = (b"a", b"b")


def total_s(seconds: SlotSeconds) -> float:
    return seconds.free + seconds.filling + seconds.sending + seconds.client


def act(shell: Shell, action: str, peer: bytes, fresh: "count[int]") -> None:
    """Do something that a client, a worker or the socket does, where it is possible now."""
    view, busy = shell.clients.get(peer), [w for w, held in shell.workers.items() if held]
    if action == "hello" and (view is None or view.session not in shell.mapped):
        shell.hello(peer, window=3)
    elif action == "want" and view is not None and len(view.wanted) < view.window:
        shell.request(peer, [(next(fresh), 0)], [])
    elif action == "release" and view is not None and view.wanted:
        shell.request(peer, [], [next(iter(view.wanted))])
    elif action == "bye" and view is not None and view.session not in shell.mapped:
        shell.bye(peer)
    elif action == "claim" and view is not None and not view.has_requested:
        if view.session not in shell.mapped:
            shell.claim(view.session)
    elif action == "unmap" and view is not None and view.session in shell.mapped:
        shell.unmap(view.session)
    elif action == "fill" and busy:
        shell.fill(busy[0])
    elif action == "fail" and busy:
        shell.fail(busy[0])
    elif action == "lose" and busy:
        shell.lose(busy[0], was_killed=True)
        shell.join()
    elif action == "sent" and view is not None:
        for slot in range(view.window):
            shell.apply(SlotSent(view.session, slot, shell.now_s - 0.05))
    elif action == "return" and shell.returning:
        shell.return_slot()
    elif action == "close" and shell.closing:
        shell.close_slots()


ACTIONS = (
    *("hello", "want", "want", "want", "release", "release", "bye", "claim", "unmap"),
    *("fill", "fill", "fill", "fail", "lose", "sent", "return", "return", "close"),
)


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(PEERS)), max_size=80))
def test_the_states_of_slots_add_up_to_the_slots_of_all_sessions(
    steps: list[tuple[str, bytes]],
) -> None:
    shell, fresh = Shell(limits(lease_s=1e9)), count()
    table = shell.table
    shell.join()
    open_s = 0.0  # of all slots of open sessions
    for action, peer in steps:
        open_s += 0.1 * sum(session.layout.slots for session in table.sessions.open.values())
        shell.advance(0.1)
        act(shell, action, peer, fresh)
        seconds = copy.copy(shell.record.slots)
        for session in table.sessions.open.values():
            slots = session.slot_times
            add(seconds, slots.seconds(shell.now_s))
        assert total_s(seconds) == pytest.approx(open_s, abs=1e-6)
        assert len(shell.fills) == table.dispatcher.chunks_in_flight


def test_a_slot_passes_through_its_states() -> None:
    shell = Shell()
    shell.hello(b"a", window=1)
    (session,) = shell.table.sessions.open.values()
    shell.advance(1.0)
    shell.request(b"a", [(0, 0)], [])
    shell.advance(2.0)
    worker = shell.join()
    while shell.fills:
        shell.fill(worker)
    shell.advance(3.0)
    shell.apply(SlotSent(session.number, 0, shell.now_s - 0.5))
    shell.advance(1.0)
    shell.request(b"a", [], [(0, 0)])
    shell.return_slot()
    shell.advance(1.0)
    assert session.slot_times.seconds(shell.now_s) == SlotSeconds(
        free=2.0, filling=2.0, sending=2.5, client=1.5
    )


def test_a_lent_slot_is_never_sending() -> None:
    shell = Shell()
    shell.hello(b"a", window=1)
    (session,) = shell.table.sessions.open.values()
    assert shell.claim(session.number)
    shell.request(b"a", [(0, 0)], [])
    worker = shell.join()
    while shell.fills:
        shell.fill(worker)
    shell.advance(3.0)
    seconds = session.slot_times.seconds(shell.now_s)
    assert seconds == SlotSeconds(client=3.0)
    assert shell.record.lent_bytes == session.layout.batch_bytes
    assert session.record.sent_bytes == 0


def test_images_bytes_and_worker_seconds_of_a_session_equal_what_it_was_sent() -> None:
    shell = Shell()
    workers = [shell.join(), shell.join()]
    for peer, window in ((b"a", 3), (b"b", 1)):
        shell.hello(peer, window=window)
    last = shell.clients[b"a"].batches - 1  # has padding
    shell.request(b"a", [(0, 0), (0, last)], [])
    shell.request(b"b", [(0, 1)], [])
    seconds: dict[int, float] = {}
    by_worker: dict[int, float] = {}
    for number in count(1):
        busy = [worker for worker in workers if shell.workers[worker]]
        if not busy:
            break
        shell.advance(0.5)
        fill = shell.fill(busy[0], busy_s=0.25 * number, cpu_s=0.125)
        seconds[fill.session] = seconds.get(fill.session, 0.0) + 0.25 * number
        by_worker[busy[0]] = by_worker.get(busy[0], 0.0) + 0.25 * number
    for session in shell.table.sessions.open.values():
        sent = [chunk for chunk in shell.sent if chunk.session == session.number]
        real = sum(max(0, min(chunk.images, chunk.valid - chunk.first)) for chunk in sent)
        assert session.record.images == real
        assert session.record.sent_bytes == session.layout.batch_bytes * (
            sum(chunk.images for chunk in sent) // BATCH
        )
        assert session.record.worker_s == seconds[session.number]
    record, by_number = shell.record, shell.table.watch.workers
    assert {number: worker.record.busy_s for number, worker in by_number.items()} == by_worker
    assert sum(worker.record.images for worker in by_number.values()) == record.images
    assert sum(record.batch_s.counts) == record.batches == 3
    assert sum(record.chunk_s.counts) == shell.counters.chunks
    shell.lose(workers[0])
    assert record.lost_worker_busy_s == by_worker[workers[0]]
    assert list(by_number) == workers[1:]


def test_what_a_lost_worker_still_reports_counts_nothing() -> None:
    """Its chunk is its successor's by then, and would count twice."""
    shell = Shell()
    shell.hello(b"a", window=1)
    lost = shell.join()
    shell.request(b"a", [(0, 0)], [])
    ticket = shell.workers[lost][0]
    shell.lose(lost)
    successor = shell.join()
    shell.apply(Filled(ticket, 5.0))
    shell.apply(FillFailed(ticket, "dataset", "too late", 3))
    assert (shell.record.images, shell.counters.chunks, shell.counters.bad_samples) == (0, 0, 0)
    while shell.fills:
        shell.fill(successor)
    (session,) = shell.table.sessions.open.values()
    assert (shell.record.images, session.record.images, shell.record.batches) == (BATCH, BATCH, 1)
    assert session.record.worker_s == 0.0
    assert not shell.counters.batches_failed


def test_durations_count_from_request_and_from_dispatch() -> None:
    shell = Shell()
    shell.hello(b"a", window=1)
    shell.request(b"a", [(0, 0)], [])
    shell.advance(4.0)
    worker = shell.join()
    shell.advance(1.0)
    while shell.fills:
        shell.fill(worker)
    assert shell.record.batch_s.total_s == 5.0
    assert shell.record.chunk_s.total_s == 2.0  # the third chunk was dispatched at the end


def test_a_ping_sets_the_clients_waits_and_its_pong_has_the_verdict() -> None:
    shell = Shell()
    shell.hello(b"a")
    (session,) = shell.table.sessions.open.values()
    shell.table.verdict = "healthy"
    shell.message(b"a", Ping(session=session.number, clock_s=9.0, waited_s=2.0, cpu_s=1.0))
    record = session.record
    assert (record.clock_s, record.waited_s, record.cpu_s) == (9.0, 2.0, 1.0)
    assert shell.inbox[-1] == (b"a", Pong(session=session.number, verdict="healthy"))


def test_queued_batches_count_those_without_a_slot() -> None:
    shell = Shell(limits(window_max=4))
    shell.hello(b"a", window=2)
    shell.request(b"a", [(0, 0), (0, 1)], [])
    assert shell.table.queued_batches == 2
    worker = shell.join()
    while shell.fills:
        shell.fill(worker)
    assert shell.table.queued_batches == 0
    shell.request(b"a", [(0, 2)], [(0, 0)])  # its slot has not returned
    assert (shell.table.queued_batches, shell.table.dispatcher.chunks_in_flight) == (1, 0)
    shell.apply(DrainAsked())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(("free", "filling", "sending", "client")),
            st.floats(0.0, 1e6),
        ),
        max_size=50,
    )
)
def test_slot_times_never_lose_or_invent_time(moves: list[tuple[int, str, float]]) -> None:
    now_s, times = 1e6, SlotTimes(3, 1e6)
    for slot, state, elapsed_s in moves:
        now_s += elapsed_s
        times.move(slot, state, now_s)  # type: ignore[arg-type]
    seconds = times.seconds(now_s + 1.0)
    assert total_s(seconds) == pytest.approx(3 * (now_s + 1.0 - 1e6), rel=1e-9)


def test_waits_count_from_the_first_ping_after_the_first_batch() -> None:
    """What a loop waited before says nothing of the pace."""
    shell = Shell()
    shell.hello(b"a", window=2)
    (session,) = shell.table.sessions.open.values()
    shell.request(b"a", [(0, 0)], [])
    shell.ping(b"a", clock_s=1.0, waited_s=1.0, cpu_s=0.5)
    assert session.record.waited_s == 1.0, "while there is none, it waits"
    worker = shell.join()
    while shell.fills:
        shell.fill(worker)
    shell.ping(b"a", clock_s=2.0, waited_s=1.25, cpu_s=0.75)
    assert (session.record.clock_s, session.record.waited_s, session.record.cpu_s) == (
        0.0,
        0.0,
        0.0,
    )
    shell.ping(b"a", clock_s=3.0, waited_s=1.5, cpu_s=1.0)
    assert (session.record.clock_s, session.record.waited_s, session.record.cpu_s) == (
        1.0,
        0.25,
        0.25,
    )
