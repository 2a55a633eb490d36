"""Heartbeats of a real node process, and what their snapshots say."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.metrics.records import NodeRecord
from feeder.metrics.report import HostReport
from feeder.node.messages import Board, write_board
from feeder.wire.messages import HostStats, HostStatsRequest, Ping, Pong, encode
from tests.node.node_process import NodeUnderTest, running_node
from tests.support.daemon import RawClient, small_recipe, wait_until
from tests.support.host_reports import healthy, many_nodes


@pytest.fixture(scope="module")
def node(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    folder = tmp_path_factory.mktemp("n")
    with running_node(packed, folder, workers=2, cache_decoded_bytes=8 << 20) as running:
        yield running


def test_an_idle_node_process_reports_itself_and_its_workers(node: NodeUnderTest) -> None:
    first, second = node.snapshot(), node.snapshot()
    assert second.clock_s > first.clock_s
    assert second.pid == node.process.pid
    assert second.endpoints == node.ready.endpoints
    assert [worker.pid for worker in second.workers] == list(node.ready.worker_pids)
    assert second.own_cpu_s > 0
    assert second.cpus
    assert second.cache.full_bytes > 0
    assert 8 << 20 >= second.cache.budget_bytes > 0


def test_a_clients_batches_are_in_the_totals(node: NodeUnderTest) -> None:
    recipe, before = small_recipe(), node.snapshot()
    with RawClient(node.endpoint) as client:
        client.hello(recipe)
        client.want((0, 0), (0, 1))
        client.take((0, 0))
        client.take((0, 1))
        client.send(Ping(session=client.session, clock_s=1.0, waited_s=0.5, cpu_s=0.25))
        client.send(Ping(session=client.session, clock_s=9.0, waited_s=3.5, cpu_s=0.75))
        while not isinstance(client.receive(), Pong):
            pass
        now = node.snapshot_when(
            lambda each: bool(each.clients) and each.clients[0].clock_s > 0, "the ping"
        )
        (shown,) = now.clients
        sent_bytes = sum(
            batch.pixels.nbytes + batch.labels.nbytes + batch.sample_ids.nbytes
            for batch in client.batches.values()
        )
        client.bye()
    assert (shown.name, shown.dataset, shown.account) == ("test", "d", f"user {os.getuid()}")
    assert shown.is_local
    assert not shown.is_lent
    assert (shown.window, shown.wanted, shown.images, shown.batches) == (4, 2, 20, 2)
    assert (shown.clock_s, shown.waited_s, shown.cpu_s) == (8.0, 3.0, 0.5)
    assert shown.sent_bytes == now.sent_bytes - before.sent_bytes == sent_bytes
    assert now.images - before.images == 20
    assert sum(worker.images for worker in now.workers) == now.images
    assert shown.worker_s == pytest.approx(_busy_s(now) - _busy_s(before))
    assert sum(worker.cpu_s for worker in now.workers) > 0
    assert now.decoded_bytes > before.decoded_bytes
    assert max(worker.requested_bytes for worker in now.workers) > 0
    assert now.chunk_s is not None
    assert now.batch_s is not None
    assert sum(now.batch_s.counts) == now.batches
    assert now.counters["images"] == now.images
    node.snapshot_when(lambda each: not each.clients, "the session's end")


def test_pongs_carry_the_supervisors_verdict_and_clients_get_its_report(
    node: NodeUnderTest,
) -> None:
    with RawClient(node.endpoint) as client:
        client.hello(small_recipe())
        for report in (healthy(), many_nodes()):
            text = f"{report.verdict.kind}:\nthe disk is slow"

            def is_known(report: HostReport = report, text: str = text) -> bool:
                # Each time anew: on a stalled machine it grows too old for an answer.
                frame = encode(HostStats(report=report))
                write_board(node.board, Board(clock_s=time.monotonic(), verdict=text, frame=frame))
                node.snapshot()  # it reads the board twice a second
                client.ping()
                pong = client.receive()
                client.send(HostStatsRequest())
                known = client.receive() == HostStats(report=report)
                return known and pong.verdict == text.replace("\n", r"\n")  # type: ignore[union-attr]

            wait_until(is_known, "the report and its verdict")
        client.bye()


def test_a_node_process_sends_heartbeats_before_it_takes_clients(
    packed: Path, tmp_path: Path
) -> None:
    with running_node(packed, tmp_path, are_neighbours_sent=False) as node:
        snapshot = node.snapshot()
        assert [worker.state for worker in snapshot.workers] == ["idle"]
        node.process.send_signal(signal.SIGKILL)


def _busy_s(snapshot: NodeRecord) -> float:
    return snapshot.lost_worker_busy_s + sum(worker.busy_s for worker in snapshot.workers)
