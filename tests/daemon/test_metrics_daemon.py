"""The metrics and the report of a real daemon."""

import contextlib
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feeder.client.stats import request_report
from feeder.metrics.records import NodeRecord
from feeder.wire.messages import Ping
from tests.support.daemon import (
    DEADLINE_S,
    SAMPLES,
    Daemon,
    RawClient,
    serve,
    small_recipe,
    wait_until,
)
from trainer_client import NumpyLoader

METRICS_LINE = r"^feeder: metrics: http://(127\.0\.0\.1:[0-9]+)/metrics$"


@pytest.fixture(scope="module")
def daemon(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path = tmp_path_factory.mktemp("run") / "socket"
    with serve(packed, "--metrics", "127.0.0.1:0", workers=1, bind=f"ipc://{path}") as daemon:
        yield daemon


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.code, error.read().decode()


def address_of(daemon: Daemon) -> str:
    match = re.match(METRICS_LINE, daemon.wait_line(METRICS_LINE))
    assert match is not None
    return match[1]


def metric(address: str, name: str) -> float:
    text = get(address, "/metrics")[1]
    found = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[-1]) if found else -1.0


def test_the_verdict_is_logged_once_it_has_held(daemon: Daemon) -> None:
    daemon.wait_line(r"^feeder: idle: ")


def record_when(endpoint: str, holds: Callable[[NodeRecord], bool], what: str) -> NodeRecord:
    """The node process's first record for which ``holds`` is true."""
    found: list[NodeRecord] = []

    def is_there() -> bool:
        now = request_report(endpoint, DEADLINE_S).nodes[0].now
        found[:] = [now] if now and holds(now) else []
        return bool(found)

    wait_until(is_there, what)
    return found[0]


def test_what_a_client_takes_is_in_the_report_and_in_the_metrics(daemon: Daemon) -> None:
    address, images = address_of(daemon), 'feeder_images_total{node="0"}'
    wait_until(lambda: get(address, "/readyz") == (200, "ready\n"), "it is ready")
    before = record_when(daemon.endpoint, lambda now: not now.clients, "a heartbeat came")
    with RawClient(daemon.endpoint) as client:
        client.hello(small_recipe())
        client.want((0, 0), (0, 1))
        arrived = [client.take((0, 0)), client.take((0, 1))]
        client.send(Ping(session=client.session, clock_s=1.0, waited_s=0.5, cpu_s=0.25))
        client.send(Ping(session=client.session, clock_s=9.0, waited_s=3.5, cpu_s=0.75))
        now = record_when(
            daemon.endpoint, lambda each: any(c.clock_s > 0 for c in each.clients), "the ping"
        )
        wait_until(lambda: metric(address, images) == now.images, "images are counted")
        assert metric(address, 'feeder_sessions{node="0"}') == 1
        client.bye()
    (shown,) = now.clients
    assert (shown.name, shown.dataset, shown.account) == ("test", "d", f"user {os.getuid()}")
    assert (shown.is_local, shown.is_lent) == (True, False)
    assert (shown.window, shown.wanted, shown.images, shown.batches) == (4, 2, 20, 2)
    assert (shown.clock_s, shown.waited_s, shown.cpu_s) == (8.0, 3.0, 0.5)
    sent = [array for batch in arrived for array in (batch.pixels, batch.labels, batch.sample_ids)]
    assert shown.sent_bytes == now.sent_bytes - before.sent_bytes == sum(x.nbytes for x in sent)
    assert now.images - before.images == 20
    (was,), (worker,) = before.workers, now.workers
    assert worker.images == now.images
    assert shown.worker_s == pytest.approx(worker.busy_s - was.busy_s)
    assert worker.cpu_s > 0
    assert worker.requested_bytes > 0
    assert now.decoded_bytes > before.decoded_bytes
    assert now.batch_s is not None
    assert sum(now.batch_s.counts) == now.batches
    assert metric(address, 'feeder_node_state{node="0",state="ready"}') == 1
    assert metric(address, "feeder_host_cpus") >= 1


def test_a_node_process_that_dies_is_neither_ready_nor_counted_until_it_serves_again(
    daemon: Daemon,
) -> None:
    address = address_of(daemon)
    wait_until(lambda: get(address, "/readyz")[0] == 200, "it is ready")
    daemon.node.send_signal(signal.SIGKILL)
    wait_until(
        lambda: get(address, "/readyz") == (503, "node process 0 is restarting\n"), "it is not"
    )
    assert get(address, "/healthz") == (200, "ok\n")
    wait_until(lambda: get(address, "/readyz")[0] == 200, "it is again")
    wait_until(lambda: metric(address, 'feeder_node_restarts_total{node="0"}') == 1, "counted")


def test_a_loader_has_the_verdict_of_the_report(daemon: Daemon) -> None:
    with NumpyLoader(daemon.endpoint, dataset="d", batch_size=10, image_size=32) as loader:

        def is_same() -> bool:
            for _ in loader:
                pass
            kind, colon, _ = loader.statistics().verdict.partition(": ")
            return bool(colon) and kind == request_report(daemon.endpoint, DEADLINE_S).verdict.kind

        wait_until(is_same, "the loader's verdict is the daemon's")


def test_the_report_has_what_each_job_has_got_at_its_weight(packed: Path, tmp_path: Path) -> None:
    """How time is shared is tested in tests/session, and on real daemons by make test-shares."""
    account = f"user {os.getuid()}"
    (tmp_path / "feeder.toml").write_text(f'[weights."{account}"]\nthree = 3\n"" = 0.5')
    bind = f"ipc://{tmp_path}/s"
    with serve(packed, "--config", tmp_path / "feeder.toml", workers=1, bind=bind):
        for job in ("three", "", ""):  # loaders without a name are one job
            with NumpyLoader(bind, dataset="d", batch_size=10, image_size=32, job=job) as loader:
                assert len(list(loader)) == SAMPLES // 10

        now = record_when(  # loaders prefetch beyond the epoch
            bind, lambda now: sum(job.batches for job in now.jobs) >= 15, "all batches"
        )
    unnamed, three = sorted(now.jobs, key=lambda job: job.weight)
    shown = [(job.name, job.account, job.weight) for job in (unnamed, three)]
    assert shown == [("", account, 0.5), ("three", account, 3.0)]
    assert unnamed.batches >= 10
    assert min(unnamed.worker_s, three.worker_s) > 0
