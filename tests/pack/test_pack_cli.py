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
    encoded,
    error_line,
    feeder_command,
    file_tree,
    image,
    make_source,
    run_feeder,
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


def _start_packing(source: Path, destination: Path) -> "subprocess.Popen[str]":
    """Start a packing of many parts that takes 10 s, so that the test can interrupt it."""
    command = feeder_command("pack", source, destination, "--shards", "20", "--jobs", "2")
    slow = destination.with_name("slow")
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(_SLOW_DISK)
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_parts(destination: Path, count: int) -> None:
    work = destination / WORK_FOLDER_NAME
    wait_until(lambda: len(list(work.glob("part-*.json"))) >= count, f"{count} finished parts")


def _is_gone(process: psutil.Process) -> bool:
    """Return whether the process has ended, reaped or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_pack_verify_and_unpack_print_their_summaries(source: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "class0" / "broken\n\udcff.jpg").write_bytes(b"no image")
    (copied / "class0" / "drawn.png").write_bytes(encoded(image(), "PNG"))
    (copied / "class1" / ".hidden").touch()
    (copied / "lost").mkdir()
    (copied / "lost" / "cut.jpg").write_bytes(encoded(image())[:400])
    packed = run_feeder("pack", copied, tmp_path / "packed", "--shards", "3", "--max-bad", "20%")
    assert packed.returncode == 0, packed.stderr
    assert "packed 12 images of 4 classes" in packed.stdout
    assert "odd: PNG (1)" in packed.stdout
    assert "quarantined: 1 not-image, 1 truncated; listed in" in packed.stdout
    assert "warning: every image of class lost was quarantined" in packed.stdout
    assert r"class0/broken\n\udcff.jpg: not-image (starts with 6e 6f 20" in packed.stdout
    assert "left out: 1 hidden" in packed.stdout
    assert "packing 14/14 images (100 %)" in packed.stderr
    assert "MB/s" in packed.stderr
    assert "2 quarantined" in packed.stderr
    verified = run_feeder("verify", tmp_path / "packed")
    assert verified.returncode == 0, verified.stderr
    assert "is whole: 12 samples in 3 shards, content fingerprint " in verified.stdout
    unpacked = run_feeder("unpack", tmp_path / "packed", tmp_path / "out")
    assert unpacked.returncode == 0, unpacked.stderr
    assert unpacked.stdout.startswith("unpacked 12 images into")
    assert (tmp_path / "out" / "class0" / "drawn.jpg").exists()


@pytest.mark.parametrize("verb", ["pack", "unpack"])
def test_bad_sources_exit_3_and_impossible_requests_2(
    verb: str, source: Path, tmp_path: Path
) -> None:
    """One line, the exit status, no files; the modules' tests check the messages themselves."""
    cases: list[tuple[int, list[str | Path], str]]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    if verb == "pack":
        twins = make_source(tmp_path / "twins", 3)
        (twins / "class1" / "image001.png").write_bytes(encoded(image(), "PNG"))
        stray = make_source(tmp_path / "stray", 3)
        (stray / "x.jpg").write_bytes(encoded(image()))
        bare = make_source(tmp_path / "bare", 3)
        (bare / "class9").mkdir()
        cases = [
            (3, [tmp_path / "missing"], "missing does not exist"),
            (3, [tmp_path / "empty"], "empty holds no class folders"),
            (3, [tmp_path / "file"], "file is a file: give a folder"),
            (3, [stray], "x.jpg is a file where a class folder should be"),
            (3, [bare], "class9 holds no images: add some or remove the folder"),
            (2, [twins], "class1/image001.jpg and class1/image001.png in"),
            (2, [source, "--shards", "99"], "--shards 99 is more than the 11 files"),
            (2, [source, "--jobs", "0"], "--jobs 0 is not within 1"),
        ]
    else:
        cases = [
            (3, [tmp_path / "missing"], "there is no such folder (feeder pack)"),
            (3, [tmp_path / "empty"], "is not a dataset"),
            (3, [tmp_path / "file"], "is a file: a dataset is a folder"),
        ]
    for status, arguments, message in cases:
        result = run_feeder(verb, arguments[0], tmp_path / "target", *arguments[1:])
        assert message in error_line(result)
        assert result.returncode == status, message
        assert not (tmp_path / "target").exists()


def test_strict_exits_3_at_a_bad_file(source: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "class0" / "broken.jpg").write_bytes(b"no image")
    result = run_feeder("pack", copied, tmp_path / "packed", "--strict")
    assert result.returncode == 3
    assert "class0/broken.jpg is not-image (starts with" in error_line(result)
    assert not (tmp_path / "packed" / MANIFEST_NAME).exists()


def test_unreadable_file_is_quarantined_with_its_reason(source: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(source, tmp_path / "source")
    unreadable = copied / "class0" / "image000.jpg"
    unreadable.chmod(0)
    prefix: list[str] = []
    if os.geteuid() == 0:  # without these capabilities permissions apply to root too
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv (util-linux) is missing, and root may read everything")
        os.chown(unreadable, 65534, 65534)
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    result = run_feeder("pack", copied, tmp_path / "packed", "--max-bad", "1", prefix=prefix)
    assert result.returncode == 0, result.stderr
    assert "class0/image000.jpg: unreadable (permission denied)" in result.stdout
    assert "quarantined: 1 unreadable" in result.stdout


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
        opened = run_feeder("verify", disk / "packed")
        assert "is unfinished: run the same feeder pack or repack command again" in error_line(
            opened
        )
        finished = len(list(disk.rglob("part-*.json")))
        assert finished >= 1
        subprocess.run(
            ["mount", "-o", f"remount,size={3 * needed}", str(disk)], check=True, timeout=60
        )
        again = run_feeder("pack", large_source, disk / "packed", "--shards", "10")
        assert again.returncode == 0, again.stderr
        assert "resuming: " in again.stderr


def test_unwritable_destination_is_one_line(source: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with _mounted_tmpfs(disk, "ro"):
        result = run_feeder("pack", source, disk / "packed")
    assert "not writable (Read-only file system); make it writable, then" in error_line(result)
    assert result.returncode == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly_and_the_same_command_resumes(
    large_source: Path, tmp_path: Path, number: signal.Signals
) -> None:
    destination = tmp_path / "packed"
    process = _start_packing(large_source, destination)
    _wait_for_parts(destination, 2)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    process.send_signal(number)
    _, stderr = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}: finished shards are kept, run the same" in stderr
    assert "Traceback" not in stderr
    wait_until(lambda: all(_is_gone(child) for child in children), "the workers' end")
    assert not list(destination.rglob("*.tmp"))
    assert not (destination / MANIFEST_NAME).exists()
    again = run_feeder("pack", large_source, destination, "--shards", "20")
    assert again.returncode == 0, again.stderr
    assert "files are packed already" in again.stderr


def test_workers_ignore_sigterm_and_the_parent_ends_them(
    large_source: Path, tmp_path: Path
) -> None:
    """Batch systems and systemd signal every process; here the workers come first."""
    process = _start_packing(large_source, tmp_path / "packed")
    _wait_for_parts(tmp_path / "packed", 1)
    for worker in psutil.Process(process.pid).children(recursive=True):
        worker.send_signal(signal.SIGTERM)
    _wait_for_parts(tmp_path / "packed", 3)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in stderr


def test_sigkill_loses_no_finished_part_and_leaves_no_process(
    large_source: Path, tmp_path: Path
) -> None:
    undisturbed = run_feeder("pack", large_source, tmp_path / "undisturbed", "--shards", "20")
    assert undisturbed.returncode == 0, undisturbed.stderr
    destination = tmp_path / "packed"
    process = _start_packing(large_source, destination)
    _wait_for_parts(destination, 3)
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
    after = {
        path.name[6:]: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in destination.glob("shard-*.fds")
    }
    assert before.items() <= after.items()
    assert file_tree(destination) == file_tree(tmp_path / "undisturbed")


def test_killed_worker_ends_the_run_with_one_line(large_source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "packed"
    process = _start_packing(large_source, destination)
    _wait_for_parts(destination, 1)
    psutil.Process(process.pid).children()[0].kill()
    _, stderr = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 4
    assert "died (SIGKILL): if memory ran out, use fewer --jobs" in stderr


def test_lanes_are_no_option_of_packing_any_more(source: Path, tmp_path: Path) -> None:
    result = run_feeder("pack", source, tmp_path / "packed", "--lanes", "8")
    assert error_line(result).startswith("feeder: error: --lanes is no option of packing any more")
    assert result.returncode == 2
    assert not (tmp_path / "packed").exists()


def test_newer_and_damaged_datasets_exit_3(source: Path, tmp_path: Path) -> None:
    packed = run_feeder("pack", source, tmp_path / "packed", "--shards", "2")
    assert packed.returncode == 0
    manifest = tmp_path / "packed" / MANIFEST_NAME
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"version": 4', b'"version": 5'))
    for verb in (["verify"], ["unpack", tmp_path / "out"]):
        result = run_feeder(verb[0], tmp_path / "packed", *verb[1:])
        assert "is of dataset format version 5, this feeder reads 4" in error_line(result)
        assert result.returncode == 3
    manifest.write_bytes(whole[:-3])
    result = run_feeder("verify", tmp_path / "packed")
    assert "manifest.json is damaged" in error_line(result)
    assert result.returncode == 3
    manifest.write_bytes(whole)
    shard = tmp_path / "packed" / "shard-00001.fds"
    content = bytearray(shard.read_bytes())
    content[200] ^= 4
    shard.write_bytes(content)
    result = run_feeder("verify", tmp_path / "packed")
    assert result.returncode == 3
    assert "damaged: sample 6 (class" in result.stdout
    assert "in shard-00001.fds: its checksum does not match" in result.stdout
    assert "is damaged: 1 problem in 11 samples in 2 shards" in result.stdout
    result = run_feeder("unpack", tmp_path / "packed", tmp_path / "out")
    assert "is damaged (its checksum does not match): run feeder verify" in error_line(result)
    assert result.returncode == 3
