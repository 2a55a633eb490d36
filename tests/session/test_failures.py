"""Failed batches are counted by reason, and the samples at fault once each."""

import pytest

from feeder.session import filling
from feeder.session.worker_watch import CHUNK_DEADLINE_S, UNANSWERED_S
from feeder.wire.messages import Failed
from tests.support.session_shell import Shell
from tests.support.session_shell import limits as session_limits

A = b"A"


def failed(*reports: tuple[str, str, int | None]) -> Shell:
    """Each report fails a batch: its dataset, code and sample."""
    shell = Shell(datasets=("d", "e"))
    worker = shell.join()
    for dataset in ("d", "e"):
        shell.hello(dataset.encode(), dataset=dataset)
    for index, (dataset, code, sample) in enumerate(reports):
        key = index, 0
        shell.request(dataset.encode(), [key], [])
        shell.fail(worker, code=code, sample=sample)
        shell.finish()
        shell.request(dataset.encode(), [], [key])
    return shell


def test_a_bad_sample_is_counted_once_however_often_it_is_requested() -> None:
    samples = (("d", 3), ("d", 3), ("e", 3), ("d", 4))
    shell = failed(*((dataset, "dataset", sample) for dataset, sample in samples))
    assert shell.counters.batches_failed == {"bad-sample": 4}
    assert shell.counters.bad_samples == 3


def test_bad_samples_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "BAD_SAMPLES_MAX", 5)
    shell = failed(*(("d", "dataset", sample) for sample in range(8)))
    assert shell.counters.batches_failed == {"bad-sample": 8}
    assert shell.counters.bad_samples == 5


def test_a_worker_s_failure_is_a_bad_sample_an_unreadable_file_or_a_shortage() -> None:
    shell = failed(("d", "dataset", None), ("d", "resource", None), ("d", "resource", 3))
    assert shell.counters.batches_failed == {"unreadable": 1, "resource": 2}
    assert shell.counters.bad_samples == 0


def test_a_failed_batch_is_counted_by_what_its_worker_reports() -> None:
    shell = Shell()
    worker = shell.join()
    shell.hello(A)
    shell.request(A, [(0, 0), (0, 1)], [])
    shell.fail(worker)
    shell.finish()
    assert shell.counters.batches_failed == {"bad-sample": 1}
    assert shell.counters.bad_samples == 1


def test_a_batch_of_which_several_chunks_fail_is_failed_once() -> None:
    shell = Shell()
    workers = [shell.join(), shell.join()]
    shell.hello(A)
    shell.request(A, [(0, 0)], [])
    for worker in workers:
        shell.fail(worker)
    assert shell.counters.batches_failed == {"bad-sample": 1}
    assert [type(message) for _, message in shell.inbox].count(Failed) == 1


def test_batches_of_storage_that_does_not_answer_are_no_bad_samples() -> None:
    shell = Shell(session_limits(lease_s=1000))
    shell.join()
    shell.hello(A)
    shell.request(A, [(0, 0)], [])
    shell.advance(CHUNK_DEADLINE_S + 0.1)
    (killed,) = shell.killed
    shell.lose(killed, was_killed=True, is_held=True)
    shell.join()
    shell.advance(UNANSWERED_S)
    assert shell.counters.batches_failed == {"stalled-storage": 1}
    assert shell.counters.bad_samples == 0


def test_a_batch_that_crashes_workers_is_counted_as_such() -> None:
    shell = Shell()
    shell.hello(A)
    shell.request(A, [(0, 0)], [])
    while not shell.counters.batches_failed:
        shell.lose(shell.join())
    assert shell.counters.batches_failed == {"worker-died": 1}


def test_failures_are_kept_by_dataset_with_the_last_reason_until_a_batch_is_made() -> None:
    shell = Shell(datasets=("d", "e"))
    shell.hello(b"a", window=2)
    worker = shell.join()
    shell.request(b"a", [(0, 0)], [])
    shell.fail(worker)
    ((failures, at_s),) = shell.table.failures.values()
    assert (failures.batches, failures.reason, at_s) == (1, "bad-sample", shell.now_s)
    assert failures.message == "sample 3 is damaged"
    assert failures.is_last
    shell.request(b"a", [(0, 1)], [(0, 0)])
    while shell.fills:
        shell.fill(worker)
    assert not failures.is_last
    assert failures.batches == 1
