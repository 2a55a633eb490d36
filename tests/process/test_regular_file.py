"""Pipes, sockets, devices and folders in place of files: named in an error, without blocking.

And files with secrets: which owners, modes and groups are accepted; ACLs and other modes are tested
in tests/security/test_keys.py.
"""

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import ConfigError, FeederError
from feeder.process.regular_file import IrregularFileError, open_regular, read_private
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


@pytest.mark.parametrize("name", ["quarantine.jsonl", "shard-00001.fds"])
def test_verify_names_a_pipe_in_place_of_a_file_of_a_dataset(dataset: Path, name: str) -> None:
    replace_by_pipe(dataset / name)
    done = call_feeder("verify", dataset)
    assert done.returncode == 3
    assert re.search(rf"{name}:? .*cannot be .*named pipe", done.stdout + done.stderr)


def test_serve_names_a_pipe_in_place_of_a_manifest_or_a_configuration(
    dataset: Path, tmp_path: Path
) -> None:
    config = replace_by_pipe(tmp_path / "feeder.toml")
    line = error_line(run_feeder("serve", "--config", config))
    assert f"the configuration {config} cannot be read: {PIPE}" in line
    manifest = replace_by_pipe(dataset / "manifest.json")
    line = error_line(run_feeder("serve", "--data", f"d={dataset}"))
    assert f"{manifest} cannot be read: {PIPE}" in line


def test_a_pipe_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("trainer_client.reference.checkpoints")
    path = replace_by_pipe(tmp_path / "checkpoint.pt")
    with pytest.raises(FeederError, match=r"cannot read the checkpoint .*named pipe"):
        checkpoint.load_checkpoint(path)


USER, GROUP, FS_GROUP = 10_001, 10_002, 10_003

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A secret as Kubernetes mounts it with fsGroup: root's, 0440; this process is not root's."""
    path = tmp_path / "token"
    path.write_bytes(b"secret")
    path.chmod(0o440)
    os.chown(path, 0, FS_GROUP)
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    monkeypatch.setattr(os, "getegid", lambda: GROUP)
    monkeypatch.setattr(os, "getgroups", lambda: [FS_GROUP])
    return path


@only_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "refusal"),
    [
        (0, FS_GROUP, 0o440, None),  # chosen on purpose; 0640 and 0644 are what a umask leaves
        (0, GROUP, 0o440, None),
        (0, GROUP + 100, 0o440, "open to others .mode 0440."),
        (0, FS_GROUP, 0o640, "open to others .mode 0640.: chmod 440 {0} and chgrp 10002 {0}"),
        (USER, FS_GROUP, 0o440, "open to others .mode 0440.: chmod 600"),
    ],
)
def test_root_s_file_is_read_if_its_mode_is_0440_and_its_group_is_of_this_process(
    secret: Path, owner: int, group: int, mode: int, refusal: str | None
) -> None:
    os.chown(secret, owner, group)
    secret.chmod(mode)
    if refusal is None:
        assert read_private(secret, 100, "the token") == b"secret"
        return
    with pytest.raises(ConfigError, match=refusal.format(secret)):
        read_private(secret, 100, "the token")
