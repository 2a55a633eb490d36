"""The metrics and the report of a real daemon."""

import contextlib
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.client.stats import request_report
from feeder.metrics.report import HostReport
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


def test_images_that_a_client_takes_show_up_in_the_metrics(daemon: Daemon) -> None:
    address = address_of(daemon)
    wait_until(lambda: get(address, "/readyz") == (200, "ready\n"), "it is ready")
    wait_until(lambda: metric(address, 'feeder_images_total{node="0"}') == 0, "a heartbeat came")
    with RawClient(daemon.endpoint) as client:
        client.hello(small_recipe(batch_size=SAMPLES))
        client.want((0, 0))
        client.take((0, 0))
        wait_until(
            lambda: metric(address, 'feeder_images_total{node="0"}') == SAMPLES,
            "images are counted",
        )
        assert metric(address, 'feeder_sessions{node="0"}') == 1
    assert metric(address, 'feeder_node_state{node="0",state="ready"}') == 1
    assert metric(address, "feeder_host_cpus") >= 1


def test_clients_get_the_supervisor_s_report(daemon: Daemon) -> None:
    def report() -> HostReport:
        return request_report(daemon.endpoint, DEADLINE_S)

    wait_until(lambda: report().nodes[0].now is not None, "a heartbeat came")
    found = report()
    assert found.pid == daemon.process.pid
    assert found.nodes[0].now is not None
    assert found.nodes[0].now.pid == daemon.node.pid
    assert [(each.name, each.samples) for each in found.datasets] == [("d", SAMPLES)]
    wait_until(lambda: report().clock_s > found.clock_s, "there is a new one every second")


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
