"""What is counted: images, seconds and bytes by session and worker, failures, copies."""

from itertools import count

import pytest

from feeder.metrics.records import SlotSeconds
from feeder.session import filling
from feeder.session.events import DrainAsked, SlotSent
from feeder.session.state import Session
from feeder.wire.chunk_work import Filled, FillFailed
from feeder.wire.messages import Ping, Pong
from tests.support.session_shell import BATCH, ROWS, Shell

A = b"a"


def greeted(window: int, *, is_claimed: bool = False) -> tuple[Shell, Session]:
    """Return a shell without workers, and the session of client A."""
    shell = Shell()
    shell.hello(A, window=window)
    (session,) = shell.table.sessions.open.values()
    assert not is_claimed or shell.claim(session.number)
    return shell, session


def fill_all(shell: Shell, worker: int) -> None:
    while shell.fills:
        shell.fill(worker)


def test_a_slot_passes_through_its_states() -> None:
    shell, session = greeted(window=1)
    shell.advance(1.0)
    shell.request(A, [(0, 0)], [])
    shell.advance(2.0)
    fill_all(shell, shell.join())
    shell.advance(3.0)
    shell.apply(SlotSent(session.number, 0, shell.now_s - 0.5))
    shell.advance(1.0)
    shell.request(A, [], [(0, 0)])
    shell.return_slot()
    shell.advance(1.0)
    assert session.slot_times.seconds(shell.now_s) == SlotSeconds(
        free=2.0, filling=2.0, sending=2.5, client=1.5
    )


def test_a_lent_slot_is_never_sending() -> None:
    shell, session = greeted(window=1, is_claimed=True)
    shell.request(A, [(0, 0)], [])
    fill_all(shell, shell.join())
    shell.advance(3.0)
    assert session.slot_times.seconds(shell.now_s) == SlotSeconds(client=3.0)
    assert shell.record.lent_bytes == session.layout.batch_bytes
    assert session.record.sent_bytes == 0


def test_images_bytes_and_worker_seconds_of_a_session_equal_what_it_was_sent() -> None:
    shell = Shell()
    workers = [shell.join(), shell.join()]
    for peer, window in ((A, 3), (b"b", 1)):
        shell.hello(peer, window=window)
    last = shell.clients[A].batches - 1  # has padding
    shell.request(A, [(0, 0), (0, last)], [])
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
    shell, session = greeted(window=1)
    lost = shell.join()
    shell.request(A, [(0, 0)], [])
    ticket = shell.workers[lost][0]
    shell.lose(lost)
    successor = shell.join()
    late = (Filled(ticket, 5.0), FillFailed(ticket, "dataset", "too late", 3))
    for report in late:
        shell.apply(report)
    assert (shell.record.images, shell.counters.chunks, shell.counters.bad_samples) == (0, 0, 0)
    fill_all(shell, successor)
    for report in late:
        shell.apply(report)
    assert (shell.record.images, session.record.images, shell.record.batches) == (BATCH, BATCH, 1)
    assert session.record.worker_s == 0.0
    assert not shell.counters.batches_failed


def test_durations_count_from_request_and_from_dispatch() -> None:
    shell, _ = greeted(window=1)
    shell.request(A, [(0, 0)], [])
    shell.advance(4.0)
    worker = shell.join()
    shell.advance(1.0)
    fill_all(shell, worker)
    assert shell.record.batch_s.total_s == 5.0
    assert shell.record.chunk_s.total_s == 2.0  # the third chunk was dispatched at the end


def test_a_pong_names_the_store_that_batches_wait_for() -> None:
    shell = Shell(cached=("d",))
    shell.hello(A)

    def store() -> str:
        shell.ping(A)
        pong = shell.inbox[-1][1]
        assert isinstance(pong, Pong)
        return pong.store

    assert store() == ""
    shell.request(A, [(0, 0)], [])
    assert store() == "s3://bucket/set"
    shell.fetched()
    assert store() == ""


def test_waits_count_from_the_first_ping_after_the_first_batch() -> None:
    """What a loop waited before says nothing of the pace."""
    shell, session = greeted(window=2)
    record, worker = session.record, shell.join()
    shell.table.verdict = "healthy"
    shell.request(A, [(0, 0)], [])
    shell.ping(A, clock_s=9.0, waited_s=2.0, cpu_s=0.5)
    assert (record.clock_s, record.waited_s, record.cpu_s) == (9.0, 2.0, 0.5), "there is none yet"
    assert shell.inbox[-1] == (A, Pong(session=session.number, verdict="healthy"))
    fill_all(shell, worker)
    shell.ping(A, clock_s=10.0, waited_s=2.25, cpu_s=0.75)
    assert (record.clock_s, record.waited_s, record.cpu_s) == (0.0, 0.0, 0.0)
    shell.message(A, Ping(session=session.number, clock_s=11.0, waited_s=2.5, cpu_s=1.0))
    assert (record.clock_s, record.waited_s, record.cpu_s) == (1.0, 0.25, 0.25)


def test_queued_batches_count_those_without_a_slot() -> None:
    shell, _ = greeted(window=2)
    shell.request(A, [(0, 0), (0, 1)], [])
    assert shell.table.queued_batches == 2
    worker = shell.join()
    fill_all(shell, worker)
    assert shell.table.queued_batches == 0
    shell.request(A, [(0, 2)], [(0, 0)])  # its slot has not returned
    assert (shell.table.queued_batches, shell.table.dispatcher.chunks_in_flight) == (1, 0)
    shell.apply(DrainAsked())
    assert shell.table.queued_batches == 1


@pytest.mark.parametrize(
    ("is_local", "is_ipc", "claim", "reason"),
    [
        (False, False, None, None),
        (True, False, None, "copied-tcp"),
        (True, True, None, "copied-unclaimed"),
        (True, True, "descriptor could not be sent", "copied-refused"),
        (True, True, "granted", None),
    ],
)
def test_batches_that_are_copied_to_a_client_of_this_machine_are_counted_with_the_reason(
    is_local: bool, is_ipc: bool, claim: str | None, reason: str | None
) -> None:
    shell = Shell()
    shell.is_local, shell.is_ipc = is_local, is_ipc
    shell.join()
    shell.hello(A)
    session = shell.clients[A].session
    if claim is not None:
        assert shell.claim(session)
        if claim != "granted":
            shell.unmap(session, has_died=False)
    shell.request(A, [(0, 0), (0, 1)], [])
    shell.finish()
    assert shell.record.batches == 2
    assert shell.counters.fallbacks == ({reason: 2} if reason else {})


# Batches that fail


@pytest.mark.parametrize(
    ("reports", "failed", "bad_samples"),
    [
        ([("d", "dataset", 3), ("d", "dataset", 3)], {"bad-sample": 2}, 1),
        ([("d", "dataset", 3), ("e", "dataset", 3), ("d", "dataset", 4)], {"bad-sample": 3}, 3),
        ([("d", "dataset", sample) for sample in range(8)], {"bad-sample": 8}, 5),
        ([("d", "dataset", None), ("d", "resource", 3)], {"unreadable": 1, "resource": 1}, 0),
    ],
)
def test_failed_batches_are_counted_by_reason_and_each_bad_sample_once(
    monkeypatch: pytest.MonkeyPatch,
    reports: list[tuple[str, str, int | None]],
    failed: dict[str, int],
    bad_samples: int,
) -> None:
    """Each report fails a batch: its dataset, code and sample. Five samples are remembered."""
    monkeypatch.setattr(filling, "BAD_SAMPLES_MAX", 5)
    shell = Shell(datasets=("d", "e"))
    worker = shell.join()
    for dataset in ("d", "e"):
        shell.hello(dataset.encode(), dataset=dataset)
    for index, (dataset, code, sample) in enumerate(reports):
        peer, bad, good = dataset.encode(), (index, 0), (index, 1)
        shell.request(peer, [bad, good], [])
        shell.fail(worker, code=code, sample=sample)
        shell.finish()
        assert shell.clients[peer].wanted[bad].failed
        assert shell.clients[peer].wanted[good].sent == ROWS, "no other batch fails"
        shell.request(peer, [], [bad, good])
        shell.finish()
    assert shell.counters.batches_failed == failed
    assert shell.counters.bad_samples == bad_samples


def test_failures_are_kept_by_dataset_with_the_last_reason_until_a_batch_is_made() -> None:
    shell, _ = greeted(window=2)
    worker = shell.join()
    shell.request(A, [(0, 0)], [])
    shell.fail(worker)
    ((failures, at_s),) = shell.table.failures.values()
    assert (failures.batches, failures.reason, at_s) == (1, "bad-sample", shell.now_s)
    assert failures.message == "sample 3 is damaged"
    assert failures.is_last
    shell.request(A, [(0, 1)], [(0, 0)])
    fill_all(shell, worker)
    assert not failures.is_last
    assert failures.batches == 1
