"""Where a dataset is stored, found without touching network file systems."""

import os
from pathlib import Path

import pytest

from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.mounts import (
    check_datasets,
    describe_detour,
    is_remote,
    may_hang,
    read_places,
)
from feeder.errors import ConfigError

TABLE = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:9 / /mnt rw - tmpfs tmpfs rw
22 21 0:10 / /mnt/nas rw - nfs4 filer:/x rw
23 20 0:11 / /with\\040space rw - fuse.sshfs me@host: rw
24 20 8:2 / /again rw - nfs old:/ rw
25 20 8:3 / /again rw - xfs /dev/sdb rw
26 20 0:12 / /net rw - autofs systemd-1 rw
27 20 0:13 / /home rw - autofs /etc/auto.home rw
28 27 0:14 / /home/ada rw - nfs4 filer:/ada rw
not a mount
"""


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)
    return KernelFiles(tmp_path)


@pytest.mark.parametrize(
    ("path", "mount", "kind"),
    [
        ("/srv/in", "/", "ext4"),
        ("/mnt/nas/deep/er", "/mnt/nas", "nfs4"),
        ("/mnt/nasty", "/mnt", "tmpfs"),
        ("/srv/../mnt/nas/x", "/mnt/nas", "nfs4"),
        ("/with space/x", "/with space", "fuse.sshfs"),
        ("/again/x", "/again", "xfs"),
        ("/home/ada/x", "/home/ada", "nfs4"),
        ("/circle/x", "/", "ext4"),
    ],
)
def test_the_deepest_and_last_mount_counts(
    files: KernelFiles, path: str, mount: str, kind: str
) -> None:
    (files.root / "circle").symlink_to("back")
    (files.root / "back").symlink_to("/circle")
    (place,) = read_places(files, [Path(path)])
    assert (place.path, place.mount, place.kind) == (path, mount, kind)


@pytest.mark.parametrize("target", ["/mnt/nas", "/net"])
def test_links_are_followed_up_to_a_mount_that_may_hang(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (files.root / "srv").mkdir()
    (files.root / "srv/in").symlink_to("../link/in")
    (files.root / "link").symlink_to(f"{target}/sets")
    read: list[str] = []
    readlink = os.readlink

    def watched(path: Path) -> str:
        read.append(str(path))
        return readlink(path)

    monkeypatch.setattr(os, "readlink", watched)
    (place,) = read_places(files, [Path("/srv/in")])
    assert (place.path, place.mount) == ("/srv/in", target)
    assert str(files.root / "link") in read
    assert not [path for path in read if path.startswith(f"{files.root}{target}")], (
        "a dead server would never answer"
    )


def test_datasets_that_the_process_cannot_see_are_refused(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files.root / "srv/in").mkdir(parents=True)
    (files.root / "gone").symlink_to("/nowhere")
    (files.root / "here").symlink_to("/srv/in")
    own = files.root / "proc/71/root"
    (own / "own").mkdir(parents=True)
    (own.parent / "mountinfo").write_text("20 1 8:1 / / rw - ext4 d rw")
    other = KernelFiles(files.root, "71")
    check_datasets(files, [Path(path) for path in ("/srv/in", "/here", "/mnt/nas/x", "/net/x")])
    check_datasets(other, [Path("/own")])

    def check_refused(seen_by: KernelFiles, path: str, message: str) -> None:
        with pytest.raises(ConfigError, match=f"--data {path}: {message}"):
            check_datasets(seen_by, [Path(path)])

    for path in ("/srv/no", "/gone", "/here/no"):
        check_refused(files, path, "it does not exist; name a folder")
    check_refused(other, "/srv", "process 71 sees no such path")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "lstat", refuse)
    check_refused(files, "/srv", r"Permission denied; .*sudo")


FILE_SYSTEMS = {
    "over the network": "nfs nfs4 cifs beegfs_nodev fuse.s3fs fuse.sshfs fuse.cvmfs2",
    "": "ext4 xfs overlay tmpfs zfs autofs",
    "through user space": "fuse fuseblk fuse.mergerfs fuse.gocryptfs",
    "through the host": "9p virtiofs vboxsf",
}


@pytest.mark.parametrize(("detour", "kinds"), FILE_SYSTEMS.items())
def test_kinds_of_file_systems_and_whether_they_may_hang(detour: str, kinds: str) -> None:
    assert {kind: describe_detour(kind, "d") for kind in kinds.split()} == dict.fromkeys(
        kinds.split(), detour
    )
    hanging = [kind for kind in kinds.split() if may_hang(kind)]
    answering = {"fuseblk", "fuse.mergerfs"} | {*FILE_SYSTEMS[""].split()} - {"autofs"}
    assert hanging == [kind for kind in kinds.split() if kind not in answering]


@pytest.mark.parametrize(
    "source", ["mountpoint-s3", "mfs#10.1.0.5:9421", "JuiceFS:sets", "https://dav.example/sets"]
)
def test_file_systems_without_a_name_are_known_by_their_source(source: str) -> None:
    assert is_remote("fuse", source)
