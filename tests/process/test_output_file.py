"""Files that users name: replaced whole, through links, and devices and pipes written into.

No test touches a real device by its name in /dev: nodes are made in ``tmp_path``.
"""

import contextlib
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bench.report import Report
from feeder.cli.contact_sheet import draw_contact_sheet
from feeder.errors import FeederError, ResourceError
from feeder.process.output_file import replace_file, write_output
from feeder.process.regular_file import IrregularFileError
from feeder.survey.page import write_survey
from tests.support.sources import call_feeder, error_line
from trainer_client.reference.checkpoints import save_checkpoint
from trainer_client.reference.command import write_json
from trainer_client.reference.tracking.files import merge_row
from trainer_client.reference.tracking.files import replace_file as replace_in_run

DATA = b"x" * 100_000


def draw(path: Path) -> None:
    draw_contact_sheet(np.zeros((1, 8, 8, 3), np.uint8), ["a"], path)


def add_row(path: Path) -> None:
    merge_row(path, "steps", {"steps": 1})


def replace(path: Path) -> None:
    with replace_file(path) as file:
        file.write(DATA)


def write_page(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.survey.page.render_survey", lambda *_: "<!doctype html>")
        write_survey(*cast("tuple[Any, Any, Any]", (None,) * 3), path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "write_output": lambda path: write_output(path, DATA),
    "preview --out": draw,
    "survey --out": write_page,
    "bench --json": Report(bench="x", machine={}, results=[]).write_json,
    "train --json": lambda path: write_json({}, path),
    "a run's files": lambda path: replace_in_run(path, DATA),
}
REGULAR_ONLY: dict[str, Callable[[Path], object]] = {
    "replace_file": replace,
    "train --checkpoint": lambda path: save_checkpoint(path, {"step": 1}),
    "evaluate --csv": add_row,
}

write = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
write_any = pytest.mark.parametrize("write", (WRITERS | REGULAR_ONLY).values())
write_regular = pytest.mark.parametrize("write", REGULAR_ONLY.values(), ids=REGULAR_ONLY)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A node like /dev/null, which a wrong writer may destroy."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")  # a mount with nodev has nodes that cannot be opened
    except PermissionError:
        pytest.skip("making and opening device nodes takes root, and a mount without nodev")
    return path


@write
def test_a_device_is_written_into_and_stays(device: Path, write: Callable[[Path], object]) -> None:
    before = device.stat()
    write(device)
    link = device.with_name("link")
    link.symlink_to(device)
    write(link)
    after = device.stat()
    assert (before.st_ino, before.st_mode, before.st_rdev) == (
        *(after.st_ino, after.st_mode, after.st_rdev),
    )
    assert link.is_symlink()
    assert {each.name for each in device.parent.iterdir()} == {"null", "link"}


@write
def test_a_pipe_gets_what_a_file_gets(tmp_path: Path, write: Callable[[Path], object]) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        keeper = os.open(pipe, os.O_WRONLY)  # returns once there is a reader
        write(pipe)
        os.close(keeper)
        content = reader.communicate()[0]
    write(file)
    assert content == file.read_bytes()
    assert pipe.is_fifo()


def test_a_pipe_that_nobody_reads_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ResourceError, match=r"pipe \(no process reads this named pipe \(FIFO\)\)"):
        draw(tmp_path / "pipe")


@write_regular
def test_what_must_be_read_again_goes_into_no_pipe_or_device(
    tmp_path: Path, device: Path, write: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((device, stat.S_ISCHR), (tmp_path / "pipe", stat.S_ISFIFO)):
        with pytest.raises((IrregularFileError, FeederError), match="not a regular file") as error:
            write(path)
        assert "\n" not in str(error.value)
        assert kind(path.stat().st_mode)


@write_any
def test_links_are_followed_also_to_files_that_are_not_there(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_bytes(b"")
    (tmp_path / "second").symlink_to("folder/old")
    for name, target in (("first", "second"), ("dangling", "folder/new")):
        (tmp_path / name).symlink_to(target)
        write(tmp_path / name)
        assert (tmp_path / name).readlink() == Path(target)
    assert (tmp_path / "second").is_symlink()
    assert (folder / "old").stat().st_size
    assert (folder / "new").stat().st_size
    assert {each.name for each in folder.iterdir()} == {"old", "new"}


@write_any
def test_folders_sockets_and_missing_folders_are_errors_of_one_line(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    with contextlib.suppress(PermissionError):  # it takes root
        os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 4095))
    irregular = "disk" if (tmp_path / "disk").exists() else "socket"
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (
        ("folder", "Is a directory"),
        ("socket", "a socket, not a regular file"),
        (irregular, "not a regular file"),
        ("none/file", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
    ):
        with pytest.raises((OSError, FeederError), match=reason) as error:
            write(tmp_path / name)
        assert ".tmp" not in str(error.value)
        assert ".unfinished" not in str(error.value)
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {"folder", "socket", "loop", irregular}
    assert not [*folder.iterdir()]


@write_any
def test_a_full_disk_keeps_the_old_file(tmp_path: Path, write: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises((OSError, FeederError), match=r"File too large|file"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_keeps_its_permissions_and_owner_and_a_secret_has_its_own_from_the_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 4711, 4712)
    owner = (path.stat().st_uid, path.stat().st_gid)
    write_output(path, b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid) == owner
    assert stat.S_IMODE(status.st_mode) == 0o640
    with replace_file(path, mode=0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()


def test_standard_output_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    script = (
        "import os; from pathlib import Path; from feeder.process.output_file import write_output\n"
        "os.write(1, b'before ')\n"
        "write_output(Path('/dev/stdout'), b'1 ')\n"
        "write_output(Path('/proc/self/fd/1'), b'2 ')\n"
        "os.write(1, b'after')"
    )
    with path.open("wb") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert path.read_bytes() == b"before 1 2 after"
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert piped.stdout == b"before 1 2 after"


def test_keygen_refuses_devices_and_follows_links(device: Path, tmp_path: Path) -> None:
    line = error_line(call_feeder("keygen", device, "--force", "--name", "n"))
    assert "cannot be written: it is a character device, not a regular file" in line
    assert device.is_char_device()
    assert not (tmp_path / "null.pub").exists()
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "target").chmod(0o644)
    (tmp_path / "key").symlink_to("target")
    assert call_feeder("keygen", tmp_path / "key", "--force").returncode == 0
    assert (tmp_path / "key").is_symlink()
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o600
