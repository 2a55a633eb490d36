"""``feeder serve`` on sources that are not packed: real daemons, kills, signals and full disks."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feeder.client.stats import request_report
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, ResourceError
from feeder.pack_cache.entry import CacheEntry
from feeder.pack_cache.shared_progress import SharedProgress
from tests.daemon.test_metrics_daemon import get
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    small_recipe,
    wait_until,
)
from tests.support.hanging_fs import small_disk
from tests.support.sources import call_feeder, encoded, error_line, image, make_source, run_feeder
from trainer_client import NumpyLoader

IMAGES = 67
OPENED_FIRST = 24
_HOLD = f"""
import os, sys, time
opened = 0
def wait(event, arguments):
    global opened
    if event == "open" and str(arguments[0]).rstrip("'").endswith(".jpg"):  # also of bytes
        opened += 1
        while opened > {OPENED_FIRST} and os.path.exists(os.environ["HOLD"]):
            time.sleep(0.01)
if "feeder.pack.task_pool" in sys.orig_argv:
    sys.addaudithook(wait)
"""
"""A sitecustomize.py: while the file HOLD exists, no process opens more images than the first."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "images", IMAGES)


@pytest.fixture
def held(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which packing stops midway, until HOLD is removed."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HOLD)
    hold = tmp_path / "hold"
    hold.touch()
    return {"PYTHONPATH": str(folder), "HOLD": str(hold)}


def options(source: Path | str, folder: Path, name: str = "s") -> list[str | Path]:
    return [
        *("--data", f"d={source}", "--cache-dir", folder / "cache"),
        *("--bind", f"ipc://{folder}/{name}", "--workers", "1"),
    ]


def entry(source: Path, folder: Path) -> CacheEntry:
    return CacheEntry(folder / "cache", str(source))


def wait_for_parts(source: Path, folder: Path) -> None:
    found = entry(source, folder).folder
    wait_until(lambda: any(found.glob("*/.packing/part-*.json")), "a finished part")


def verdict(folder: Path, name: str) -> str:
    return request_report(f"ipc://{folder}/{name}", DEADLINE_S).verdict.text


def count_lines(daemon: Daemon, text: str) -> int:
    return sum(text in line for line in daemon.lines)


def test_a_source_is_packed_then_served_and_systemd_waits_for_it(
    source: Path, tmp_path: Path
) -> None:
    bind = f"ipc://{tmp_path}/s"
    arguments = ("--data", f"d={source}", "--bind", bind, "--workers", "1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_S)
        environ = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "30000000",
            "CACHE_DIRECTORY": f"{tmp_path}/systemd:/nowhere",
        }
        with Daemon(*arguments, environ=environ) as daemon, RawClient(daemon.endpoint) as client:
            messages = [systemd.recv(4096).decode()]
            while not messages[-1].startswith("READY=1"):
                messages.append(systemd.recv(4096).decode())
            extensions = [each for each in messages if each.startswith("EXTEND_TIMEOUT_USEC=1500")]
            assert {*messages[:-1]} <= {*extensions, "WATCHDOG=1"}
            assert len(extensions) >= 2
            assert "\nSTATUS=packing d, looking at its files: 67 so far" in extensions[-1]
            recipe = small_recipe("val", batch_size=IMAGES)
            client.hello(recipe)
            client.want((0, 0))
            record = CacheEntry(tmp_path / "systemd", str(source)).read_record()
            assert record is not None
            folder = CacheEntry(tmp_path / "systemd", str(source)).folder / record.folder
            with Dataset.open(folder) as dataset:
                check_batch(dataset, recipe, (0, 0), client.take((0, 0)))
            daemon.wait_line(rf"packed {IMAGES} images of 3 classes into {folder}")


def test_the_next_start_packs_nothing_and_a_changed_source_needs_repack(
    source: Path, tmp_path: Path
) -> None:
    with Daemon(*options(source, tmp_path)) as daemon:
        assert count_lines(daemon, f"feeder: packing {source} into ") == 1
    cache = tmp_path / "cache"
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    with Daemon(*options(source, tmp_path)) as daemon:
        assert count_lines(daemon, f"feeder: {source} is packed in {cache}") == 1
        assert count_lines(daemon, "packing") == 0
        assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
        (source / "class1" / "new.jpg").write_bytes(encoded(image(40, 30, seed=1)))
        refused = run_feeder("serve", *options(source, tmp_path, "other"))
        assert refused.returncode == 3
        line = error_line(refused)
        assert f"{source} has changed since it was packed (1 file more in {source}, " in line
        assert f"the last change was to {source}/class1/new.jpg)" in line
        assert "--repack packs it again" in line
        with Daemon(*options(source, tmp_path, "other"), "--repack") as other:
            assert f"data d: {IMAGES + 1} samples" in other.ready
        assert daemon.is_running, "the daemon that serves the dataset before is not disturbed"


def test_daemons_wait_for_one_packing_and_a_killed_one_is_resumed(
    source: Path, tmp_path: Path, held: Mapping[str, str]
) -> None:
    found = entry(source, tmp_path)
    with Daemon(*options(source, tmp_path, "a"), environ=held, is_ready=False) as first:
        wait_for_parts(source, tmp_path)
        pid = first.process.pid
        with (
            Daemon(*options(source, tmp_path, "b"), is_ready=False) as second,
            Daemon(*options(source, tmp_path, "c"), is_ready=False) as third,
        ):
            for each in (second, third):
                each.wait_line(f"waiting for the packing of {source} by process {pid}")
            waiting = f"packing d, waiting for process {pid}: "
            wait_until(lambda: verdict(tmp_path, "b").startswith(waiting), "its progress is shown")
            first.kill()
            for each in (second, third):
                each.wait_line("^feeder: ready, ")
                assert each.find_line(f"data d: {IMAGES} samples", 0)
            both = [*second.lines, *third.lines]
            assert sum(line.startswith(f"feeder: packing {source}") for line in both) == 1
            assert sum("files are packed already" in line for line in both) == 1
            assert sum(f"{source} is packed in {found.folder}" in line for line in both) == 1


@pytest.mark.parametrize("is_waiting", [False, True], ids=["packing", "waiting"])
def test_a_stop_signal_ends_the_start_and_the_next_one_resumes(
    source: Path, tmp_path: Path, held: Mapping[str, str], is_waiting: bool
) -> None:
    with contextlib.ExitStack() as stack:
        if is_waiting:
            lock = entry(source, tmp_path).locked(SharedProgress(io.StringIO()))
            stack.enter_context(lock)
        daemon = stack.enter_context(
            Daemon(*options(source, tmp_path), environ=held, is_ready=False)
        )
        if is_waiting:
            daemon.wait_line(f"waiting for the packing of {source} by process {os.getpid()}")
        else:
            wait_for_parts(source, tmp_path)
        status, _ = daemon.stop(signal.SIGTERM)
        assert status == 128 + signal.SIGTERM
        daemon.wait_line("feeder: stopped by SIGTERM while packing: finished shards are kept")
    if not is_waiting:
        with Daemon(*options(source, tmp_path)) as daemon:
            daemon.wait_line("files are packed already")


def test_a_full_disk_is_one_line_and_the_next_start_resumes(tmp_path: Path) -> None:
    source = make_source(tmp_path / "images", 40, side=400)
    needed = sum(path.stat().st_size for path in source.rglob("*.jpg"))
    with small_disk(tmp_path / "cache", f"size={needed // 2}") as disk:
        full = run_feeder("serve", *options(source, tmp_path))
        assert full.returncode == 4, full.stderr
        assert "no space left on its disk; make room, then" in error_line(full)
        subprocess.run(["mount", "-o", f"remount,size={4 * needed}", str(disk)], check=True)
        with Daemon(*options(source, tmp_path)) as daemon:
            assert "data d: 40 samples" in daemon.ready


def test_a_home_that_is_missing_or_read_only_is_one_line(source: Path, tmp_path: Path) -> None:
    serve = ("serve", "--data", f"d={source}", "--bind", f"ipc://{tmp_path}/s")
    without = ("env", "-u", "HOME", "-u", "XDG_CACHE_HOME", "-u", "CACHE_DIRECTORY")
    missing = run_feeder(*serve, prefix=without)
    assert missing.returncode == 2
    assert "(HOME is not set): give one with --cache-dir" in error_line(missing)
    with small_disk(tmp_path / "home", "ro") as home:
        refused = run_feeder(*serve, prefix=(*without, f"HOME={home}"))
        assert refused.returncode == 4
        line = error_line(refused)
        assert f"keeping packed sources in {home}/.cache/feeder failed: not writable" in line
        assert "or give another folder with --cache-dir" in line


def test_what_is_neither_dataset_nor_source_is_one_line(tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    (unfinished / ".packing").mkdir(parents=True)
    done = run_feeder("serve", *options(unfinished, tmp_path))
    assert done.returncode == 3
    assert "is unfinished: run the same feeder pack or repack command again" in error_line(done)
    done = run_feeder("serve", *options(tmp_path / "absent", tmp_path))
    assert done.returncode == 3
    assert "there is no such folder (feeder pack)" in error_line(done)
    done = run_feeder("serve", *options(tmp_path / "absent", tmp_path), "--repack")
    assert done.returncode == 2
    assert "--repack packs sources again, and only packed datasets are" in error_line(done)
    assert not (tmp_path / "cache").exists()


def test_show_packs_nothing(source: Path, tmp_path: Path) -> None:
    done = call_feeder("serve", *options(source, tmp_path), "--show")
    assert done.returncode == 0
    assert f'd = "{source}"' in done.stdout
    assert f'dir = "{tmp_path}/cache"' in done.stdout
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_metrics_that_cannot_be_served_are_found_before_anything_is_packed(
    source: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        in_use = run_feeder("serve", *options(source, tmp_path), "--metrics", address)
    assert in_use.returncode == ResourceError.exit_status
    assert f"the metrics cannot listen on {address}: Address already in use" in error_line(in_use)
    exposed = run_feeder("serve", *options(source, tmp_path), "--metrics", "*:9464")
    assert exposed.returncode == ConfigError.exit_status
    assert "would be open to the network: set metrics_token" in error_line(exposed)
    assert not (tmp_path / "cache").exists()


def first_batch(endpoint: str) -> list[int]:
    """Return the samples of the first batch, of the whole dataset."""
    with NumpyLoader(
        endpoint,
        dataset="d",
        split="val",
        batch_size=IMAGES,
        image_size=32,
        rank=0,
        world_size=1,
        timeout_s=DEADLINE_S,
    ) as loader:
        return [int(number) for number in next(iter(loader)).sample_ids]


def test_all_are_answered_while_a_source_is_packed_and_a_loader_waits(
    source: Path,
    tmp_path: Path,
    held: Mapping[str, str],
    port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = f"127.0.0.1:{port}"
    with Daemon(
        *(*options(source, tmp_path), "--metrics", address), environ=held, is_ready=False
    ) as daemon:
        wait_for_parts(source, tmp_path)
        assert get(address, "/healthz") == (200, "ok\n")
        status, text = get(address, "/readyz")
        assert (status, text[:11]) == (503, "packing d, ")
        status, text = get(address, "/metrics")
        assert (status, text.splitlines()[2:]) == (200, ["feeder_packing 1.0"])
        shown = run_feeder("status", f"ipc://{tmp_path}/s", "--json")
        assert json.loads(shown.stdout)["verdict"]["text"].startswith("packing d, ")
        assert run_feeder("status", f"ipc://{tmp_path}/s").stdout.startswith("packing d, ")
        named = run_feeder("names", f"ipc://{tmp_path}/s", "0", "--dataset", "d")
        assert f"ipc://{tmp_path}/s: packing d, " in error_line(named)
        with ThreadPoolExecutor(1) as pool:
            ids = pool.submit(first_batch, f"ipc://{tmp_path}/s")
            wait_until(lambda: "is packing d, " in caplog.text, "a loader waits")
            Path(held["HOLD"]).unlink()
            assert len(ids.result(DEADLINE_S)) == IMAGES
        daemon.wait_line("^feeder: ready, ")
        wait_until(lambda: get(address, "/readyz") == (200, "ready\n"), "it serves")
        assert "\nfeeder_packing 0.0\n" in get(address, "/metrics")[1]


def test_a_validation_source_is_packed_with_its_training_sets_classes(tmp_path: Path) -> None:
    roots = {name: make_source(tmp_path / name, 9) for name in ("train", "val")}
    (roots["val"] / "class0").rename(tmp_path / "away")

    def serve(name: str, *more: str, **locations: Path) -> list[str]:
        data = [f"--data={each}={path}" for each, path in locations.items()]
        cache = ("--cache-dir", str(tmp_path / "cache"), "--workers", "1")
        return [*data, *cache, "--bind", f"ipc://{tmp_path}/{name}", *more]

    with Daemon(*serve("a", train=roots["train"], val=roots["val"])) as daemon:
        daemon.wait_line(rf"packing {roots['val']} into .* with the classes of .*/train-")
        daemon.wait_line("packed 6 images of 3 classes into .*/val-")
        assert count_lines(daemon, "warning") == 0
    (tmp_path / "away").rename(roots["val"] / "dog")
    failed = run_feeder("serve", *serve("a", "--repack", **roots))
    assert failed.returncode == ConfigError.exit_status
    line = error_line(failed)
    assert "val takes the classes of train, as --classes-of does: class folder" in line
    assert f"{roots['val']}/dog is not among the 3 classes" in line
    assert "; or serve it under a name that is no validation set's" in line
    packed = tmp_path / "packed"
    assert run_feeder("pack", roots["val"], packed).returncode == 0
    with Daemon(*serve("a", train=roots["train"], val=packed)) as daemon:
        assert (
            count_lines(
                daemon,
                "feeder: warning: val has other classes than train, so the same label means "
                "another class: class 0 is class1 and class0; pack it with feeder pack "
                "--classes-of ",
            )
            == 1
        )
