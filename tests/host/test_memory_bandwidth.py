"""The probe of memory bandwidth."""

import threading

import numpy as np
import pytest

from feeder.host.memory_bandwidth import THREADS_MAX, measure_copy_bandwidth

PLENTY = 1 << 40


def test_a_copy_is_measured_and_leaves_no_thread() -> None:
    before = threading.active_count()
    bandwidth = measure_copy_bandwidth(2, PLENTY)
    assert 1e7 < bandwidth < 1e13
    assert threading.active_count() == before


def test_short_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "full", None)
    assert measure_copy_bandwidth(2, 64 << 20) == 0.0


def test_threads_that_cannot_start_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    assert measure_copy_bandwidth(THREADS_MAX, PLENTY) == 0.0
    (thread,) = started
    thread.join()


def test_memory_that_cannot_be_mapped_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "full", refuse)
    assert measure_copy_bandwidth(1, PLENTY) == 0.0
