"""The end of the daemon by SIGTERM: what was asked for is finished, and all is over within 5 s."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset import Dataset
from feeder.wire import Draining, Refused
from tests.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    client_process,
    happens_within,
    node_processes,
    pack_small,
    small_recipe,
    wait_until,
)

_LARGE = small_recipe(batch_size=16, image_size=320, resize_size=320)  # 4.9 MB a batch


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("drain"))


@pytest.fixture(scope="module")
def dataset(packed: Path) -> Iterator[Dataset]:
    with Dataset.open(packed) as opened:
        yield opened


def serve(packed: Path, *more: str) -> Daemon:
    bind = "tcp://127.0.0.1:0"
    return Daemon("--data", f"d={packed}", "--bind", bind, "--workers", "2", *more)


def test_requests_in_flight_are_finished(packed: Path, dataset: Dataset) -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 0)]
    with serve(packed, "--chunk-images", "2") as daemon, RawClient(daemon.endpoint) as client:
        client.hello(_LARGE)
        client.want(*keys)
        client.receive()
        daemon.family()
        daemon.process.send_signal(signal.SIGTERM)
        for key in keys:
            check_batch(dataset, _LARGE, key, client.take(key), seed=3)
        heard = client.others or [client.receive()]  # it may say so after the last chunk
        assert heard == [Draining(session=client.session)]
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_gone()


def test_nothing_new_is_taken_while_draining(packed: Path) -> None:
    with serve(packed, "--lease-s", "60") as daemon, RawClient(daemon.endpoint) as client:
        stuck = client_process(daemon.endpoint, _LARGE, [(e, i) for e in (0, 1) for i in (0, 1, 2)])
        with stuck:
            assert stuck.stdout is not None
            assert stuck.stdout.readline() == "asked\n"
            stuck.send_signal(signal.SIGSTOP)  # now the drain cannot be over soon
            client.hello(small_recipe())
            daemon.process.send_signal(signal.SIGTERM)
            assert client.receive() == Draining(session=client.session)
            client.want((0, 0))
            answer = client.receive()
            assert isinstance(answer, Refused)
            assert answer.code == "draining"
            assert client.hello(small_recipe()).code == "draining"
            stuck.kill()


def test_an_idle_daemon_ends_at_once(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            daemon.wait_line("draining")
            return took_s

    happens_within(3, end)


def test_a_stuck_client_delays_the_end_by_the_drain_and_no_more(packed: Path) -> None:
    def end() -> float:
        with serve(packed, "--drain-s", "2") as daemon:
            client = client_process(
                daemon.endpoint, _LARGE, [(e, i) for e in (0, 1) for i in (0, 1, 2)]
            )
            with client:
                try:
                    assert client.stdout is not None
                    assert client.stdout.readline() == "asked\n"
                    client.send_signal(signal.SIGSTOP)
                    status, took_s = daemon.stop()
                    assert status == 0
                    assert took_s > 1.5
                    daemon.wait_gone()
                    return took_s
                finally:
                    client.kill()

    happens_within(4.5, end)


def test_a_stuck_node_process_is_killed_in_time(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon:
            daemon.node.suspend()
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(6, end)


def test_a_stuck_worker_does_not_delay_the_end_beyond_the_drain(packed: Path) -> None:
    def end() -> float:
        with serve(packed, "--drain-s", "1") as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            for worker in daemon.workers():
                worker.suspend()
            client.want((0, 0))
            wait_until(lambda: daemon.counters()["sessions"] == 1, "it serves on")
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(4.5, end)


def test_a_second_signal_ends_it_at_once(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon:
            daemon.node.suspend()
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_line("draining")
            status, took_s = daemon.stop(signal.SIGINT)
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(3, end)


def test_who_is_asked_to_end_is_not_ready_any_more(packed: Path) -> None:
    """Where it was held up, and the node process has become ready meanwhile."""
    with Daemon("--data", f"d={packed}", "--workers", "1", is_ready=False) as daemon:
        supervisor = psutil.Process(daemon.process.pid)
        wait_until(lambda: node_processes(supervisor), "a node process has begun")
        supervisor.suspend()
        (node,) = node_processes(supervisor)
        wait_until(lambda: node.children(), "its worker has begun")
        spent: list[tuple[object, ...]] = [()]

        def has_ended_its_start() -> bool:
            """Nothing runs any more: as long as this takes."""
            threading.Event().wait(0.5)
            spent.append(tuple(each.cpu_times()[:2] for each in (node, *node.children())))
            return spent[-1] == spent[-2]

        wait_until(has_ended_its_start, "it is ready")
        daemon.process.send_signal(signal.SIGTERM)
        supervisor.resume()
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_line("draining")
        daemon.wait_gone()
        assert not any("ready" in line for line in daemon.lines)
