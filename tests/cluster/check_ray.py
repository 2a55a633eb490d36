"""``feeder cluster`` on real Ray, with four simulated hosts (make test-cluster)."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.daemon import free_port
from feeder.errors import FeederError
from feeder.wire.messages import BatchKey
from tests.cluster.conftest import SAMPLES, configure
from tests.cluster.simulated import SimulatedCluster, SimulatedHost
from tests.support.daemon import Daemon, is_alive, wait_until
from tests.support.key_pairs import KeyPair
from trainer_client import FeederLoader

BATCH, EPOCHS = 8, 10
BATCHES = SAMPLES // BATCH
KILLED_MAX_S, STOPPED_MAX_S = 4.0, 6.0


def read_epochs(
    endpoint: object,
    epochs: int,
    on_batch: Callable[[int], None] = lambda _: None,
    **options: object,
) -> dict[BatchKey, str]:
    """A hash of each batch's pixels and labels; each must come once."""
    found: dict[BatchKey, str] = {}
    with FeederLoader(
        endpoint,  # type: ignore[arg-type]
        dataset="d",
        batch_size=BATCH,
        image_size=32,
        seed=3,
        timeout_s=60,
        **options,  # type: ignore[arg-type]
    ) as loader:
        for epoch in range(epochs):
            for index, (images, labels) in enumerate(loader):
                content = images.numpy().tobytes() + labels.numpy().tobytes()
                assert (epoch, index) not in found
                found[epoch, index] = hashlib.blake2b(content, digest_size=16).hexdigest()
                on_batch(len(found))
    assert len(found) == epochs * BATCHES
    return found


def expect_batches(dataset: Path, epochs: int) -> dict[BatchKey, str]:
    with Daemon("--data", f"d={dataset}", "--bind", "tcp://127.0.0.1:0", "--workers", "1") as one:
        return read_epochs(one.endpoint, epochs)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    port = free_port()
    server = psutil.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with socket.socket() as probe:
            wait_until(lambda: probe.connect_ex(("127.0.0.1", port)) == 0, "Redis listens")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def listed_in(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [line.split()[1] for line in lines]


def seconds_to_replace(path: Path, host: SimulatedHost, lose: Callable[[], None]) -> float:
    """Lose a host; return the seconds until the list is complete without it."""
    wanted = len(listed_in(path))
    began_s = time.monotonic()
    lose()

    def is_replaced() -> bool:
        now = listed_in(path)
        return len(now) == wanted and not any(host.address + ":" in each for each in now)

    wait_until(is_replaced, f"{host.address} is replaced in the list")
    return time.monotonic() - began_s


def test_ten_epochs_through_growth_a_kill_and_shrinking_equal_a_single_feeders(
    cluster: SimulatedCluster, config: Path, dataset: Path, tmp_path: Path
) -> None:
    expected = expect_batches(dataset, EPOCHS)
    cluster.add(1, 2, 3, 4)
    cluster.up(config, "--feeders", "2", "--endpoints", tmp_path / "list")
    total = EPOCHS * BATCHES
    steps = iter(
        [
            (total // 6, lambda: cluster.command("scale", "4")),
            (total // 3, lambda: cluster.host_of(cluster.status()["slots"][0]).kill()),
            (total // 2, lambda: wait_until(lambda: len(listed_in(tmp_path / "list")) == 3, "3")),
            (2 * total // 3, lambda: cluster.command("scale", "2")),
        ]
    )
    due = [next(steps)]

    def on_batch(count: int) -> None:
        if due and count >= due[0][0]:
            due.pop()[1]()
            due.extend([step] if (step := next(steps, None)) else [])

    lookup = f"feeder://{cluster.head_address}:{cluster.lookup_port}"
    assert read_epochs(lookup, EPOCHS, on_batch) == expected
    assert not due
    assert len(cluster.status()["slots"]) == 2
    done = cluster.command("down")
    assert done.returncode == 0, done.stderr
    assert not cluster.daemons()


def test_a_killed_and_a_stopped_host_are_replaced_in_seconds(
    cluster: SimulatedCluster, config: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "list"
    cluster.add(1, 2, 3, 4)
    cluster.up(config, "--feeders", "2", "--endpoints", listed)
    killed = cluster.host_of(cluster.status()["slots"][0])
    killed_s = seconds_to_replace(listed, killed, killed.kill)
    stopped = cluster.host_of(cluster.status()["slots"][1])
    try:
        stopped_s = seconds_to_replace(listed, stopped, stopped.stop)
    finally:
        stopped.resume()
    daemons = stopped.daemons()
    wait_until(lambda: not any(map(is_alive, daemons)), "what was declared dead has ended")
    names = [line.split()[0] for line in listed.read_text().splitlines()[1:]]
    assert names == ["feeder-0", "feeder-1"]
    assert killed_s < KILLED_MAX_S, killed_s
    assert stopped_s < STOPPED_MAX_S, stopped_s


@pytest.mark.timeout(900)
def test_cpu_overload_retires_nothing(
    cluster: SimulatedCluster, config: Path, tmp_path: Path
) -> None:
    """OVERLOAD_S=600 for the ten minutes of the requirement."""
    listed = tmp_path / "list"
    cluster.add(1, 2, 3)
    cluster.up(config, "--feeders", "2", "--endpoints", listed)
    before = listed.read_text()
    daemons = cluster.daemons()
    overload_s = float(os.environ.get("OVERLOAD_S", "45"))
    hogs = [
        psutil.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        give_up_s = time.monotonic() + overload_s
        never = threading.Event()
        while time.monotonic() < give_up_s:
            assert listed.read_text() == before
            never.wait(0.2)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert all(map(is_alive, daemons))
    assert cluster.status()["ready"] == 2


@pytest.mark.timeout(900)
def test_a_dead_head_ends_no_feeder_and_a_restarted_one_adopts_them(
    tmp_path: Path, config: Path
) -> None:
    """HEAD_DEAD_S=300 for the five minutes of the requirement; Ray's own limit is a minute."""
    dead_s = float(os.environ.get("HEAD_DEAD_S", "75"))
    with (
        redis_server(tmp_path) as redis,
        SimulatedCluster(tmp_path, head_environ={"RAY_REDIS_ADDRESS": redis}) as cluster,
    ):
        cluster.add(1, 2)
        cluster.up(config)
        daemons = cluster.daemons()
        lookup = f"feeder://{cluster.head_address}:{cluster.lookup_port}"
        died_s = 0.0
        is_back = False

        def on_batch(count: int) -> None:
            nonlocal died_s, is_back
            if count == 3:
                cluster.head.kill()
                died_s = time.monotonic()
                done = cluster.command("status", "--timeout", "10")
                assert done.returncode == 5
                assert done.stderr.count("\n") == 1
            threading.Event().wait(dead_s / (2 * BATCHES) if count < 2 * BATCHES else 0.0)
            if count == 2 * BATCHES + 3:
                assert time.monotonic() - died_s > 0.9 * dead_s
                assert all(map(is_alive, daemons))
                cluster.restart_head()
                cluster.wait_status(lambda status: status["ready"] == 2, "both are adopted")
                is_back = True

        read_epochs(lookup, 3, on_batch)
        assert is_back
        assert all(map(is_alive, daemons))
        done = cluster.command("scale", "1")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: sum(map(is_alive, daemons)) == 1, "one was ended by the new controller")


def test_a_controller_that_dies_comes_back_and_replaces_nothing(
    cluster: SimulatedCluster, config: Path, tmp_path: Path
) -> None:
    cluster.add(1, 2)
    cluster.up(config, "--feeders", "1", "--endpoints", tmp_path / "list")
    assert cluster.command("scale", "2").returncode == 0
    before = (tmp_path / "list").read_text()
    daemons = cluster.daemons()
    (controller,) = [
        each for each in cluster.head.processes() if "ray::Controller" in " ".join(each.cmdline())
    ]
    controller.send_signal(signal.SIGKILL)
    status = cluster.wait_status(lambda status: status["ready"] == 2, "the feeders are adopted")
    assert status["wanted"] == 2  # as scaled, not as at first
    assert all(map(is_alive, daemons))
    assert (tmp_path / "list").read_text() == before


def test_a_dataset_that_one_host_lacks_is_named_with_the_host(
    cluster: SimulatedCluster, config: Path, tmp_path: Path, dataset: Path
) -> None:
    (tmp_path / "empty").mkdir()
    cluster.add(1)
    cluster.add(2, instead={dataset: tmp_path / "empty"})
    done = cluster.command("up", "--config", config, "--lookup", str(cluster.lookup_port))
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert f"1 of 2 feeders serve: {cluster.hosts[2].address} cannot serve" in line
    assert str(dataset) in line
    status = cluster.status()
    assert status["ready"] == 1
    assert [each["address"] for each in status["problems"]] == [cluster.hosts[2].address]
    cluster.hosts[2].kill()
    cluster.add(2)  # put right
    cluster.wait_status(lambda status: status["ready"] == 2, "both serve")


def test_with_keys_jobs_look_up_and_read_and_others_do_not(
    cluster: SimulatedCluster, tmp_path: Path, dataset: Path
) -> None:
    feeder, client = (KeyPair.make(tmp_path, name) for name in ("feeder", "client"))
    keys = f'secret_key = "{feeder.secret}"\nclient_keys = "{client.public}"\n'
    cluster.add(1)
    cluster.up(configure(tmp_path, dataset, keys))
    lookup = f"feeder://{cluster.head_address}:{cluster.lookup_port}"
    read_epochs(lookup, 1, server_key=feeder.public, client_key=client.secret)
    stranger = KeyPair.make(tmp_path, "stranger")
    for key in (None, stranger.secret):
        with pytest.raises(FeederError, match=r"the controller .* keys"):
            FeederLoader(
                lookup,
                dataset="d",
                batch_size=BATCH,
                timeout_s=8,
                server_key=key and feeder.public,
                client_key=key,
            )


def test_bad_requests_are_lines(cluster: SimulatedCluster, config: Path, tmp_path: Path) -> None:
    def check(words: list[str], *arguments: str | Path) -> None:
        done = cluster.command(*arguments)
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1, done.stderr
        assert all(word in done.stderr for word in words), done.stderr

    lookup = ("--lookup", str(cluster.lookup_port))
    up = ("up", "--config", config, *lookup)
    check(["no host", "'feeder'", "--resources"], *up)
    check(["no feeders run", "cluster up"], "status")
    cluster.add(1, 2)
    with socket.socket() as holder:
        holder.bind((cluster.head_address, cluster.lookup_port))
        holder.listen()
        check(["look-up cannot bind", str(cluster.lookup_port), "--lookup"], *up)
    check(["no host", "'other'"], *up, "--resource", "other")
    done = cluster.command(*up, "--feeders", "3", "--timeout", "90")
    assert done.returncode == 0, done.stderr
    assert "3 feeders are wanted and 2 hosts offer" in done.stdout
    check(["run in this Ray cluster already", "scale"], *up)
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace("64 MiB", "65 MiB"))
    check(["another configuration"], "status", "--config", other)
    assert cluster.command("status", "--config", config).returncode == 0
    cluster.head.stop()
    began_s = time.monotonic()
    check(["no answer within 8 s"], "status", "--timeout", "8")
    assert time.monotonic() - began_s < 15
    cluster.head.resume()
    assert json.loads(cluster.command("status", "--json").stdout)["ready"] == 2
