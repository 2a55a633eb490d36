"""Finds the file system that a path is on, without touching it if it is on a network.

Paths are those that the process sees, which may be in a container.

Invariant: only the mount table and symbolic links on local file systems are read, because any other
call on a path below a dead network mount may never return.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from feeder.doctor.facts import DatasetPlace
from feeder.doctor.kernel_files import KernelFiles
from feeder.errors import ConfigError
from feeder.host.kernel_files import Mount, parse_mounts

_LINKS_MAX = 40  # as the kernel follows

_REMOTE_KIND = re.compile(
    "nfs4?|cifs|smb3|smbfs|ceph|lustre|beegfs|beegfs_nodev|gpfs|afs|glusterfs|orangefs|pvfs2|wekafs|"
    "panfs|ncpfs|ocfs2|gfs2|coda|fhgfs|quobyte"
)
_REMOTE_FUSE = re.compile(
    "sshfs|nfs|smbnetfs|davfs2?|curlftpfs|httpfs|httpdirfs|rclone|s3fs|s3ql|goofys|mountpoint-s3|"
    "mount-s3|geesefs|gcsfuse|blobfuse2?|ossfs2?|cosfs|obsfs|juicefs|seaweedfs|glusterfs|ceph|"
    "ceph-fuse|mfs|moosefs|lizardfs|saunafs|cvmfs2?|quobyte|alluxio|alluxio-fuse|fuse_dfs|eosxd|"
    "xrootdfs|oneclient|curvefs"
)
"""Programs, as they name themselves in the kind ("fuse.sshfs") or in the source ("fuse" alone)."""

_HOST_KINDS = {"9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs", "fuse.vmhgfs-fuse"}
"""Folders that a virtual machine's host shares with it; WSL mounts the disks of Windows by 9p."""

_LOCAL_FUSE = {"fuseblk", "fuse.mergerfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"}
"""File systems in user space that are local without doubt, so that they answer."""


def read_places(files: KernelFiles, datasets: Sequence[Path]) -> tuple[DatasetPlace, ...]:
    """The place of each dataset; none if its mount is not known."""
    return tuple(
        DatasetPlace(path=str(path), mount=str(mount.point), kind=mount.kind, source=mount.source)
        for path, _, mount in locate(files, datasets)
    )


def check_datasets(files: KernelFiles, datasets: Sequence[Path]) -> None:
    """Raise ConfigError for a dataset that the process cannot see, unless looking for it may hang.

    A path is looked up below the process's root without its links, because the kernel would follow
    an absolute link from this process's root.
    """
    for dataset, resolved, mount in locate(files, datasets):
        if may_hang(mount.kind):
            continue
        try:
            os.lstat(files.process_root / resolved.relative_to("/"))
        except (FileNotFoundError, NotADirectoryError):
            reason = "it does not exist"
            if files.process != "self":
                reason = f"process {files.process} sees no such path"
            raise ConfigError(f"--data {dataset}: {reason}; name a folder") from None
        except OSError as error:
            raise ConfigError(
                f"--data {dataset}: {error.strerror}; name a folder that you may read, or use sudo"
            ) from None


def locate(
    files: KernelFiles, datasets: Sequence[Path]
) -> Iterator[tuple[Path, PurePosixPath, Mount]]:
    """Yield each dataset with its path without links and its mount, if that is known."""
    # Of several mounts at one point, the last hides the others.
    mounts = {mount.point: mount for mount in parse_mounts(files.own("mountinfo"))}
    for dataset in datasets:
        resolved = _resolve(files.process_root, PurePosixPath(dataset.absolute()), mounts)
        mount = _find_mount(resolved, mounts)
        if mount is not None:
            yield dataset, resolved, mount


def _find_mount(path: PurePosixPath, mounts: Mapping[PurePosixPath, Mount]) -> Mount | None:
    """The deepest mount that shows ``path``."""
    return next((mounts[point] for point in (path, *path.parents) if point in mounts), None)


def _resolve(
    root: Path, path: PurePosixPath, mounts: Mapping[PurePosixPath, Mount]
) -> PurePosixPath:
    """Follow the symbolic links of an absolute path below ``root`` up to a mount that may hang."""
    pending = list(reversed(path.parts[1:]))
    done = PurePosixPath("/")
    links = 0
    while pending:
        name = pending.pop()
        if name == "..":
            done = done.parent
            continue
        done /= name
        mount = _find_mount(done, mounts)
        if links > _LINKS_MAX or (mount is not None and may_hang(mount.kind)):
            return done.joinpath(*reversed(pending))
        try:
            target = PurePosixPath(os.readlink(root / done.relative_to("/")))
        except (OSError, ValueError):  # not a link, absent, or a name with a zero byte
            continue
        links += 1
        done = PurePosixPath("/") if target.is_absolute() else done.parent
        pending += reversed([part for part in target.parts if part != "/"])
    return done


def is_remote(kind: str, source: str) -> bool:
    """Whether a file system's data is on another machine, as far as its kind and source show."""
    if kind != "fuse":
        program = kind.removeprefix("fuse.")
        return bool((_REMOTE_KIND if program == kind else _REMOTE_FUSE).fullmatch(program))
    program = re.split("[#:]", source, maxsplit=1)[0].lower()  # mfs#10.1.0.5:9421, JuiceFS:sets
    return bool(_REMOTE_FUSE.fullmatch(program)) or "://" in source


def describe_detour(kind: str, source: str) -> str:
    """What reads pass besides the kernel, such as "over the network"; "" for nothing."""
    if is_remote(kind, source):
        return "over the network"
    if kind in _HOST_KINDS:
        return "through the host"
    return "through user space" if kind.startswith("fuse") else ""


def may_hang(kind: str) -> bool:
    """Whether accessing a path on such a file system may block, perhaps for ever.

    An automounter mounts what is accessed, which may be on a server that does not answer. So may
    be what a program in user space shows.
    """
    if kind in _HOST_KINDS or kind == "autofs" or _REMOTE_KIND.fullmatch(kind):
        return True
    return kind.startswith("fuse") and kind not in _LOCAL_FUSE
