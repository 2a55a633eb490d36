"""A real Prometheus scrapes a real daemon while a client trains; promtool checks our files."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import DEADLINE_S, Daemon, wait_until
from tests.support.sources import REPOSITORY
from tests.support.synthetic_sets import pack_synthetic
from trainer_client import NumpyLoader

MONITORING = REPOSITORY / "docs/monitoring"
IMAGES = 512
BATCH_SIZE = 64
SCRAPE_MAX_S = 0.5
"""Generous: the target of 50 ms is measured by `feeder-bench eyes` on an idle machine."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("served")
    packed = pack_synthetic(folder, images=IMAGES)
    token = folder / "token"
    token.write_text("a-token-of-this-test\n")
    token.chmod(0o600)
    with Daemon(
        *("--data", f"d={packed}", "--bind", f"ipc://{folder}/s"),
        *("--metrics", "127.0.0.1:0", "--metrics-token", str(token)),
    ) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def metrics_address(daemon: Daemon) -> str:
    line = daemon.wait_line(r"^feeder: metrics: ")
    match = re.search(r"http://([^/]+)/metrics", line)
    assert match is not None
    return match[1]


@pytest.fixture(scope="module")
def prometheus(metrics_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus with the scrape job of docs/monitoring, once a second."""
    folder = tmp_path_factory.mktemp("prometheus")
    token = folder / "token"
    token.write_text("a-token-of-this-test")
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n"
        f"rule_files: [{MONITORING}/alerts.yml]\n"
        f"scrape_configs:\n"
        f"  - job_name: feeder\n"
        f"    authorization: {{credentials_file: {token}}}\n"
        f"    static_configs: [{{targets: ['{metrics_address}']}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    process = subprocess.Popen(["prometheus", *options], stderr=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def training(daemon: Daemon) -> Iterator[None]:
    """A client that takes batches all the time."""
    ended = threading.Event()

    def train() -> None:
        with NumpyLoader(daemon.endpoint, dataset="d", batch_size=BATCH_SIZE) as loader:
            while not ended.is_set():
                for _ in loader:
                    if ended.is_set():
                        break

    thread = threading.Thread(target=train)
    thread.start()
    yield
    ended.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def query(prometheus: str, text: str) -> list[dict[str, Any]]:
    url = f"http://{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            found = json.load(response)
    except OSError:
        return []
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def number(prometheus: str, text: str) -> float:
    series = query(prometheus, text)
    return float(series[0]["value"][1]) if series else -1.0


@pytest.mark.usefixtures("training")
def test_a_real_prometheus_sees_images_grow_and_the_verdict(prometheus: str) -> None:
    wait_until(lambda: number(prometheus, "up") == 1, "the daemon is scraped")
    wait_until(
        lambda: number(prometheus, "sum(rate(feeder_images_total[10s]))") > 0,
        "images are delivered",
    )
    wait_until(
        lambda: number(prometheus, "count_over_time(up[1m])") >= 15, "there were fifteen scrapes"
    )
    assert number(prometheus, "min_over_time(up[1m])") == 1, "no scrape has failed"
    # The first seconds may be "starting"; one kind holds at a time.
    assert number(prometheus, "sum(feeder_verdict)") == 1
    kinds = query(prometheus, "feeder_verdict == 1")
    assert kinds[0]["metric"]["kind"] not in ("starting", "node-down", "draining")
    slowest_s = number(prometheus, "max_over_time(scrape_duration_seconds[1m])")
    samples = number(prometheus, "scrape_samples_scraped")
    mean_s = number(prometheus, "avg_over_time(scrape_duration_seconds[1m])")
    sys.stderr.write(
        f"\nscrapes: mean {1000 * mean_s:.1f} ms, slowest {1000 * slowest_s:.1f} ms, "
        f"{samples:.0f} samples\n"
    )
    assert slowest_s < SCRAPE_MAX_S


def dashboard_queries() -> list[str]:
    dashboard = json.loads((MONITORING / "feeder.json").read_text())
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    return [text.replace("$__rate_interval", "30s").replace("$host", ".*") for text in queries]


@pytest.mark.usefixtures("training")
def test_prometheus_answers_every_query_of_the_dashboard(prometheus: str) -> None:
    wait_until(lambda: number(prometheus, "up") == 1, "the daemon is scraped")
    may_be_empty = re.compile(r"cache_|store_|fetch|== 0|> 0$")  # no cache here, store or trouble
    wait_until(
        lambda: all(
            query(prometheus, q) for q in dashboard_queries() if not may_be_empty.search(q)
        ),
        "there is data for every panel",
    )
    for text in dashboard_queries():
        query(prometheus, text)


def test_promtool_accepts_the_text_of_a_real_daemon(daemon: Daemon, metrics_address: str) -> None:
    request = urllib.request.Request(
        f"http://{metrics_address}/metrics",
        headers={"Authorization": "Bearer a-token-of-this-test"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        text = response.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b""), done


@pytest.mark.parametrize("command", ["check rules alerts.yml", "test rules alerts_test.yml"])
def test_promtool_accepts_the_alerts(command: str) -> None:
    done = subprocess.run(
        ["promtool", *command.split()], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_is_wrong_is_found(tmp_path: Path) -> None:
    for name in ("alerts.yml", "alerts_test.yml"):
        text = (MONITORING / name).read_text().replace("feeder_wait_ratio > 0.2", "feeder_wait > 2")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
