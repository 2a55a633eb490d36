"""The real daemon from outside: bytes, answers, counters, error lines."""

import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from bench.fetcher import BatchFetcher
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.wire.messages import (
    MAGIC,
    MAX_HEADER_BYTES,
    PROTOCOL_VERSION,
    Refused,
    Request,
    Welcome,
)
from tests.support.daemon import (
    SAMPLES,
    Daemon,
    RawClient,
    check_batch,
    listening_port,
    needs_ipv6,
    run_status,
    serve,
    small_recipe,
    wait_until,
)
from tests.support.sources import call_feeder, error_line, run_feeder


@pytest.fixture(scope="module")
def daemon(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path = tmp_path_factory.mktemp("socket") / "s"
    options = ("--bind", f"ipc://{path}", "--chunk-images", "4", "--slots-bytes", str(4 << 20))
    with serve(packed, *options) as running:
        yield running


def test_the_start_report_names_endpoints_datasets_and_libraries(daemon: Daemon) -> None:
    tcp, ipc = daemon.endpoints
    assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d+", tcp)
    assert ipc.startswith("ipc:///")
    assert f"\nfeeder: data d: {SAMPLES} samples, 5 shards, 3 classes, " in daemon.ready
    last = daemon.ready.splitlines()[-1]
    assert last == f"feeder: ready, 2 workers serve d at {daemon.endpoint} and 1 more"
    assert "\nfeeder: usable CPUs: " in daemon.ready
    assert "libjpeg-turbo" in daemon.ready
    assert any("CPU mask" in line for line in daemon.lines), "the placement table"


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_every_batch_of_an_epoch_has_the_right_bytes(
    daemon: Daemon, dataset: Dataset, transport: str
) -> None:
    endpoint = next(text for text in daemon.endpoints if text.startswith(transport))
    recipe = small_recipe(batch_size=10)
    with RawClient(endpoint) as client:
        welcome = client.hello(recipe, window=5)
        assert isinstance(welcome, Welcome)
        assert (welcome.batches, welcome.window, welcome.chunk_images) == (5, 5, 4)
        assert welcome.content == dataset.content
        assert welcome.classes == dataset.classes
        client.want(*((2, i) for i in range(5)))
        for i in range(5):
            check_batch(dataset, recipe, (2, i), client.take((2, i)))
        client.bye()


def test_refusals_reach_the_client(daemon: Daemon) -> None:
    with RawClient(daemon.endpoint) as client:
        assert client.hello(small_recipe(), dataset="other").code == "unknown-dataset"
        too_large = client.hello(small_recipe(batch_size=SAMPLES + 1))
        assert too_large.code == "bad-recipe"
        assert f"{SAMPLES} samples" in too_large.message
        assert client.hello(small_recipe(batch_size=40, image_size=224)).code == "memory"
        client.send(Request(session=12345, want=((0, 0),)))
        answer = client.receive()
        assert isinstance(answer, Refused)
        assert (answer.code, answer.session) == ("unknown-session", 12345)


def test_a_recipe_out_of_range_is_refused_with_its_field(daemon: Daemon) -> None:
    fields = {**msgspec.to_builtins(small_recipe()), "batch_size": -3}
    hello = {"type": "Hello", "dataset": "d", "recipe": fields, "seed": 0, "window": 2}
    hello["client"] = "c"
    with RawClient(daemon.endpoint) as client:
        client.socket.send(MAGIC + bytes([PROTOCOL_VERSION]) + msgspec.msgpack.encode(hello))
        answer = client.receive()
        assert isinstance(answer, Refused)
        assert answer.code == "bad-recipe"
        assert "batch_size" in answer.message


def test_garbage_is_dropped_and_counted_and_the_daemon_lives(
    daemon: Daemon, dataset: Dataset
) -> None:
    before = run_status(daemon.endpoint)
    prefix = MAGIC + bytes([PROTOCOL_VERSION])
    with RawClient(daemon.endpoint) as client:
        for frame in (b"", MAGIC, prefix, prefix + b"garbage", b"x" * MAX_HEADER_BYTES):
            client.socket.send(frame)
        client.socket.send_multipart([b"one", b"two", b"three"])
        client.hello(small_recipe())
        client.want((0, 0))
        check_batch(dataset, small_recipe(), (0, 0), client.take((0, 0)))
        client.bye()
    after = daemon.counters()
    assert after["frames_dropped.malformed"] - before.get("frames_dropped.malformed", 0) == 5
    several = "frames_dropped.several-frames"
    assert after[several] - before.get(several, 0) == 1


def test_sessions_leak_no_descriptors_and_no_memory(daemon: Daemon, packed: Path) -> None:
    processes = [daemon.node, *daemon.workers()]

    def session() -> None:
        with RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            client.want((0, 0))
            client.take((0, 0))
            client.bye()

    def is_quiet() -> bool:
        counters = daemon.counters()
        return not counters["sessions"] and not counters["slots_committed_bytes"]

    def descriptors() -> list[int]:
        return [_fds_without_dataset(process, packed) for process in processes]

    session()
    wait_until(is_quiet, "the session has ended")
    wait_until(lambda: _connections(daemon) <= 1, "the connections have ended")
    before = descriptors()
    for _ in range(8):
        session()
    wait_until(is_quiet, "all sessions have ended")
    wait_until(lambda: all(np.less_equal(descriptors(), before)), "descriptors are closed")


def _fds_without_dataset(process: psutil.Process, packed: Path) -> int:
    """Return how many descriptors a process has open, without the dataset's files.

    A worker opens these on first use and keeps them, each once, which is checked.
    """
    opened = [file.path for file in process.open_files() if packed in Path(file.path).parents]
    assert len(opened) == len(set(opened))
    return int(process.num_fds()) - len(opened)


def test_an_idle_daemon_sleeps(daemon: Daemon) -> None:
    processes = [psutil.Process(daemon.process.pid), daemon.node, *daemon.workers()]

    def switches() -> list[int]:
        return [process.num_ctx_switches().voluntary for process in processes]

    def stay_asleep() -> bool:
        before = switches()
        threading.Event().wait(2.0)
        return bool(np.subtract(switches(), before).max() <= 4)

    wait_until(stay_asleep, "two seconds with at most four wake-ups of each process")


@needs_ipv6
def test_status_and_batches_work_over_ipv6(packed: Path, dataset: Dataset) -> None:
    with serve(packed, bind="tcp://[::1]:0", workers=1) as daemon:
        assert daemon.endpoint.startswith("tcp://[::1]:")
        assert call_feeder("status", daemon.endpoint).returncode == 0
        with BatchFetcher(daemon.endpoint, dataset="d", recipe=small_recipe()) as fetcher:
            batch = next(fetcher.fetch(1))
            check_batch(dataset, small_recipe(), (0, 1), batch, seed=0)


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("--data", "d=/none"), 3, "/none"),
        (("--data", "d={packed}", "--bind", "tcp://127.0.0.1:{port}"), 4, "{port} is in use"),
        (("--data", "d={packed}", "--bind", "{ipc}"), 4, "{ipc} is in use"),
    ],
)
def test_what_cannot_be_served_is_a_one_line_error(
    daemon: Daemon, packed: Path, arguments: tuple[str, ...], status: int, problem: str
) -> None:
    with listening_port() as port:
        places = {"packed": packed, "port": port, "ipc": daemon.endpoints[1]}
        done = run_feeder("serve", *(word.format(**places) for word in arguments))
    assert done.returncode == status
    assert problem.format(**places) in error_line(done)
    assert daemon.counters()["node"], "the running one is not disturbed"


def test_a_closed_terminal_ends_the_daemon_except_under_nohup(packed: Path) -> None:
    with serve(packed, workers=1, prefix=("env", "--default-signal=HUP")) as daemon:
        assert daemon.stop(signal.SIGHUP)[0] == 0
        daemon.wait_line("draining")
    with serve(packed, workers=1, prefix=("env", "--ignore-signal=HUP")) as daemon:
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        assert int(ignored.split()[1], 16) & 1 << signal.SIGHUP - 1


def test_class_names_that_do_not_fit_into_a_welcome_are_a_one_line_error(
    packed: Path, tmp_path: Path
) -> None:
    classes = ("c" * 4000,) * 4000
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    manifest = msgspec.structs.replace(load_manifest(packed), classes=classes).sealed()
    (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    done = run_feeder("serve", "--data", f"d={folder}", "--bind", "tcp://127.0.0.1:0")
    assert done.returncode == 3
    assert f"{folder} cannot be served: {len(classes):,} class names" in error_line(done)


def _connections(daemon: Daemon) -> int:
    counters = daemon.counters()
    return int(counters["connections_opened"] - counters["connections_closed"])
