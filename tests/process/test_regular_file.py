"""Pipes, sockets, devices and folders in place of files: named in an error, without blocking."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import FeederError
from feeder.host.topology import read_topology
from feeder.pack.work_folder import WorkFolder
from feeder.process.regular_file import IrregularFileError, open_regular, read_regular
from tests.support.sources import call_feeder, error_line, run_feeder

PIPE = "it is a named pipe (FIFO), not a regular file"


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "dataset"))


def replace_by_pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def replace_by_socket(path: Path) -> Path:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


def link_to_device(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (replace_by_pipe, PIPE),
        (replace_by_socket, "it is a socket, not a regular file"),
        (link_to_device, "it is a character device, not a regular file"),
        (lambda path: path.mkdir() or path, "Is a directory"),
    ],
)
def test_irregular_file_is_named(tmp_path: Path, make: Callable[[Path], Path], found: str) -> None:
    with pytest.raises(IrregularFileError) as caught:
        open_regular(make(tmp_path / "x"))
    assert caught.value.strerror == found


def test_a_regular_file_is_read_up_to_the_limit_and_blocking(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 100)
    assert read_regular(path, 1 << 20) == path.read_bytes()
    assert read_regular(path, 1000) == path.read_bytes()[:1000]
    assert read_regular("/proc/self/status", 1 << 20).startswith(b"Name:")
    descriptor = open_regular(path)
    assert os.get_blocking(descriptor)
    os.close(descriptor)


def test_missing_file_raises_the_usual_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        open_regular(tmp_path / "file" / "x")


@pytest.mark.parametrize("name", ["manifest.json", "shard-00001.fds"])
@pytest.mark.parametrize("replace", [replace_by_pipe, replace_by_socket])
def test_verify_and_unpack_name_an_irregular_file(
    dataset: Path, tmp_path: Path, name: str, replace: Callable[[Path], Path]
) -> None:
    path = replace(dataset / name)
    for arguments in (("verify", dataset), ("unpack", dataset, tmp_path / "out")):
        done = call_feeder(*arguments)
        assert done.returncode == 3, done
        assert f"{path.name} cannot be" in done.stdout + done.stderr
        assert "not a regular file" in done.stdout + done.stderr


def test_verify_names_a_pipe_in_place_of_the_quarantine_list(dataset: Path) -> None:
    replace_by_pipe(dataset / "quarantine.jsonl")
    done = call_feeder("verify", dataset)
    assert done.returncode == 3
    assert f"quarantine.jsonl: it cannot be read ({PIPE})" in done.stdout + done.stderr


def test_serve_names_a_pipe_in_place_of_a_manifest_or_a_configuration(
    dataset: Path, tmp_path: Path
) -> None:
    config = replace_by_pipe(tmp_path / "feeder.toml")
    line = error_line(run_feeder("serve", "--config", config))
    assert f"the configuration {config} cannot be read: {PIPE}" in line
    manifest = replace_by_pipe(dataset / "manifest.json")
    line = error_line(run_feeder("serve", "--data", f"d={dataset}"))
    assert f"{manifest} cannot be read: {PIPE}" in line


def test_a_pipe_in_a_work_folder_is_named(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path)
    work.path.mkdir()
    path = replace_by_pipe(work.result_path(0))
    with pytest.raises(OSError, match="named pipe") as caught:
        work.read_result(0)
    assert caught.value.filename == str(path)


def test_pipe_in_sysfs_does_not_block(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node"
    folder.mkdir(parents=True)
    replace_by_pipe(folder / "online")
    assert read_topology(tmp_path)


def test_a_pipe_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("trainer_client.reference.checkpoints.checkpoint")
    path = replace_by_pipe(tmp_path / "checkpoint.pt")
    with pytest.raises(FeederError, match=r"cannot read the checkpoint .*named pipe"):
        checkpoint.load_checkpoint(path)
