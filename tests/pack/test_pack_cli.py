"""feeder pack, verify and unpack as commands: output, one-line errors, exit statuses, signals."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME
from tests.support.daemon import wait_until
from tests.support.sources import (
    REPOSITORY,
    call_feeder,
    encoded,
    error_line,
    feeder_command,
    file_tree,
    image,
    make_source,
    pack,
    run_feeder,
    run_inline,
)

_DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"), 11)


@pytest.fixture(scope="module")
def large_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images that each take a while to pack."""
    root = tmp_path_factory.mktemp("large")
    data = encoded(image(1000, 700), quality=90)
    for number in range(40):
        path = root / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return root


_SLOW_DISK = """
import sys, time
def wait(event, arguments):
    if event == "open" and str(arguments[0]).rstrip("'").endswith(".jpg"):
        time.sleep(0.5)
if "feeder.pack.task_pool" in sys.orig_argv:
    sys.addaudithook(wait)
"""
"""A sitecustomize.py that delays each opening of an image by half a second."""


def _start_packing(source: Path, destination: Path, parts: int) -> "subprocess.Popen[str]":
    """Start a packing that takes 10 s; return when some of its 20 parts are finished."""
    command = feeder_command("pack", source, destination, "--shards", "20", "--jobs", "2")
    slow = destination.with_name("slow")
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(_SLOW_DISK)
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_parts(destination, parts)
    return process


def _wait_for_parts(destination: Path, count: int) -> None:
    work = destination / WORK_FOLDER_NAME
    wait_until(lambda: len(list(work.glob("part-*.json"))) >= count, f"{count} finished parts")


def _is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_pack_verify_and_unpack_print_their_summaries(source: Path, tmp_path: Path) -> None:
    """As processes: the exit status of each, and what its workers let through."""
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "class0" / "broken\n\udcff.jpg").write_bytes(b"no image")
    (copied / "class0" / "drawn.png").write_bytes(encoded(image(), "PNG"))
    (copied / "class1" / ".hidden").touch()
    (copied / "lost").mkdir()
    (copied / "lost" / "cut.jpg").write_bytes(encoded(image())[:400])
    packed = run_feeder("pack", copied, tmp_path / "packed", "--shards", "3", "--max-bad", "20%")
    assert packed.returncode == 0, packed.stderr
    for text in (
        "packed 12 images of 4 classes",
        "odd: PNG (1)",
        "quarantined: 1 not-image, 1 truncated; listed in",
        "warning: every image of class lost was quarantined",
        r"class0/broken\n\udcff.jpg: not-image (starts with 6e 6f 20",
        "left out: 1 hidden",
    ):
        assert text in packed.stdout
    for text in ("packing 14/14 images (100 %)", "MB/s", "2 quarantined"):
        assert text in packed.stderr
    verified = run_feeder("verify", tmp_path / "packed")
    assert verified.returncode == 0, verified.stderr
    assert "is whole: 12 samples in 3 shards, content fingerprint " in verified.stdout
    unpacked = run_feeder("unpack", tmp_path / "packed", tmp_path / "out")
    assert unpacked.returncode == 0, unpacked.stderr
    assert unpacked.stdout.startswith("unpacked 12 images into")
    assert (tmp_path / "out" / "class0" / "drawn.jpg").exists()


def test_bad_sources_exit_3_and_impossible_requests_2(source: Path, tmp_path: Path) -> None:
    """One line, the exit status, no files; the modules' tests check the messages themselves."""
    (tmp_path / "file").touch()
    twins, stray, bare = (make_source(tmp_path / name, 3) for name in ("twins", "stray", "bare"))
    (twins / "class1" / "image001.png").write_bytes(encoded(image(), "PNG"))
    (stray / "x.jpg").write_bytes(encoded(image()))
    (bare / "class9").mkdir()
    missing, file = tmp_path / "missing", tmp_path / "file"
    for status, verb, path, options, message in (
        (3, "pack", missing, [], "missing does not exist"),
        (3, "pack", file, [], "file is a file: give a folder"),
        (3, "pack", stray, [], "x.jpg is a file where a class folder should be"),
        (2, "pack", twins, [], "class1/image001.jpg and class1/image001.png in"),
        (2, "pack", source, ["--shards", "99"], "--shards 99 is more than the 11 files"),
        (2, "pack", source, ["--lanes", "8"], "--lanes is no option of packing any more"),
        (3, "unpack", missing, [], "there is no such folder (feeder pack)"),
    ):
        result = call_feeder(verb, path, tmp_path / "target", *options)
        assert message in error_line(result)
        assert result.returncode == status, message
        assert not (tmp_path / "target").exists()


@contextlib.contextmanager
def _mounted_tmpfs(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_one_line_without_a_dataset_and_packing_resumes(
    large_source: Path, tmp_path: Path
) -> None:
    needed = sum(path.stat().st_size for path in large_source.rglob("*.jpg"))
    disk = tmp_path / "disk"
    with _mounted_tmpfs(disk, f"size={needed // 2}"):
        result = run_feeder("pack", large_source, disk / "packed", "--shards", "10")
        line = error_line(result)
        assert "no space left on its disk; make room, then run the same command again" in line
        assert result.returncode == 4
        assert "warning:" in result.stderr  # the free space was checked at the start
        assert not (disk / "packed" / MANIFEST_NAME).exists()
        assert not list(disk.rglob("*.tmp"))
        line = error_line(call_feeder("verify", disk / "packed"))
        assert "is unfinished: run the same feeder pack or repack command again" in line
        assert list(disk.rglob("part-*.json"))
        remount = ["mount", "-o", f"remount,size={3 * needed}", str(disk)]
        subprocess.run(remount, check=True, timeout=60)
        again = run_feeder("pack", large_source, disk / "packed", "--shards", "10")
        assert again.returncode == 0, again.stderr
        assert "resuming: " in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(large_source: Path, tmp_path: Path, number: signal.Signals) -> None:
    destination = tmp_path / "packed"
    process = _start_packing(large_source, destination, 1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    for worker in children:  # batch systems and systemd signal every process; here workers first
        worker.send_signal(signal.SIGTERM)
    _wait_for_parts(destination, 3)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}: finished shards are kept, run the same" in stderr
    assert "Traceback" not in stderr
    wait_until(lambda: all(_is_gone(child) for child in children), "the workers' end")
    assert not list(destination.rglob("*.tmp"))
    assert not (destination / MANIFEST_NAME).exists()


def test_sigkill_loses_no_finished_part_and_leaves_no_process(
    large_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "packed"
    process = _start_packing(large_source, destination, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=_DEADLINE_S)
    wait_until(lambda: all(_is_gone(child) for child in children), "the workers' end")
    work = destination / WORK_FOLDER_NAME
    finished = [work / f"{path.stem}.fds" for path in work.glob("part-*.json")]
    before = {path.name[5:]: (path.stat().st_ino, path.stat().st_mtime_ns) for path in finished}
    assert 3 <= len(before) < 20
    again = run_feeder("pack", large_source, destination, "--shards", "20")
    assert again.returncode == 0, again.stderr
    assert "files are packed already" in again.stderr
    after = {
        path.name[6:]: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in destination.glob("shard-*.fds")
    }
    assert before.items() <= after.items()
    run_inline(monkeypatch, "pack.run")
    pack(large_source, tmp_path / "undisturbed", shards=20)
    assert file_tree(destination) == file_tree(tmp_path / "undisturbed")
