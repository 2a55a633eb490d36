"""Files with secrets: which owners, modes and groups are accepted.

ACLs and other modes are tested in tests/security/test_keys.py.
"""

import os
from pathlib import Path

import pytest

from feeder.errors import ConfigError
from feeder.process.regular_file import read_private

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
def test_root_s_file_for_a_group_of_this_process_is_read(secret: Path) -> None:
    assert read_private(secret, 100, "the token") == b"secret"
    os.chown(secret, 0, GROUP)
    assert read_private(secret, 100, "the token") == b"secret"


@only_root
def test_root_s_file_for_another_group_is_refused(secret: Path) -> None:
    os.chown(secret, 0, GROUP + 100)
    with pytest.raises(ConfigError, match=r"open to others .mode 0440."):
        read_private(secret, 100, "the token")


@only_root
@pytest.mark.parametrize("mode", [0o444, 0o460, 0o640, 0o450])
def test_other_modes_of_root_s_file_are_refused(secret: Path, mode: int) -> None:
    """0440 is chosen on purpose; 0640 and 0644 are what a umask leaves."""
    secret.chmod(mode)
    remedy = f"chmod 440 {secret} and chgrp {GROUP} {secret}"
    with pytest.raises(ConfigError, match=f"open to others .mode {mode:04o}.: {remedy}"):
        read_private(secret, 100, "the token")


@only_root
def test_an_own_file_for_a_group_is_refused(secret: Path) -> None:
    os.chown(secret, USER, FS_GROUP)
    with pytest.raises(ConfigError, match=r"open to others .mode 0440.: chmod 600"):
        read_private(secret, 100, "the token")
