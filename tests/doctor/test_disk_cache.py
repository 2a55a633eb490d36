"""The folder of the disk cache, measured on this machine."""

import errno
import os
from pathlib import Path

import pytest

from feeder.disk_cache.folder import FOLDER_NAME
from feeder.doctor import disk_cache
from feeder.doctor.disk_cache import PIECES, check_disk_cache, read_disk_cache
from feeder.doctor.facts import Allowed, DiskCachePlace, Machine, NetworkCard
from feeder.doctor.kernel_files import KernelFiles


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_MEASURE_S", 0.01)


def look(folder: Path, files: KernelFiles | None = None) -> DiskCachePlace:
    place = read_disk_cache(files or KernelFiles(Path("/")), folder, 7, is_here=True)
    assert place is not None
    return place


def test_the_folder_is_the_one_that_the_cache_makes() -> None:
    assert PIECES == FOLDER_NAME


def test_room_and_speed_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "not/yet/there"
    place = look(folder)
    assert (place.path, place.problem, place.budget_bytes) == (str(folder), "", 7)
    assert place.free_bytes
    assert place.write_bytes_a_s
    assert place.read_bytes_a_s
    assert not [*tmp_path.iterdir()]


def test_what_the_datasets_take_and_would_take_is_read_from_their_sparse_shards(
    tmp_path: Path,
) -> None:
    for name in ("in-abc", "val-def"):
        shard = tmp_path / PIECES / name / "shard-00000.fds"
        shard.parent.mkdir(parents=True)
        shard.write_bytes(bytes(8192))
        os.truncate(shard, 1 << 30)
    place = look(tmp_path)
    assert place.full_bytes == 2 << 30
    assert 0 < place.used_bytes < 1 << 20


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (errno.EACCES, "Permission denied"),
        (errno.EROFS, "Read-only file system"),
        (errno.EOPNOTSUPP, ""),  # it has no files without a name: not measured
    ],
)
def test_a_folder_that_cannot_be_written_has_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, problem: str
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    place = look(tmp_path)
    assert (place.problem, place.write_bytes_a_s) == (problem, None)


def test_a_file_system_without_holes_or_locks_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_OFD_SETLK", 9999)  # an unknown command is refused, too
    assert "OFD locks" in look(tmp_path).problem
    monkeypatch.setattr(disk_cache, "_PUNCH_HOLE", 0x8000)
    assert "no holes" in look(tmp_path).problem


def test_a_file_system_that_may_not_answer_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("20 1 0:9 / / rw - nfs4 filer:/x rw\n")
    place = look(Path("/cache"), KernelFiles(tmp_path))
    assert (place.kind, place.free_bytes, place.write_bytes_a_s) == ("nfs4", None, None)


@pytest.mark.parametrize(
    ("speed_mbit", "finding"),
    [
        (1000, "reads 50; the network carries up to 125 MB/s"),
        (None, "reads 50; 2 cores read up to 360 MB/s"),
        (500, ""),  # 62.5 MB/s need no faster disk
    ],
)
def test_a_disk_is_slow_if_it_holds_up_the_cores_or_what_the_network_brings(
    speed_mbit: int | None, finding: str
) -> None:
    place = DiskCachePlace(
        path="/c", mount="/", kind="xfs", source="d", write_bytes_a_s=8e8, read_bytes_a_s=5e7
    )
    card = NetworkCard(name="eth0", is_up=True, speed_mbit=speed_mbit, node=None)
    machine = Machine(allowed=Allowed(count=2), cards=(card,), disk_cache=place)
    assert "".join(each.what for each in check_disk_cache(machine)).endswith(finding)
    assert bool([*check_disk_cache(machine)]) == bool(finding)
