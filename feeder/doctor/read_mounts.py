"""Finds the file system that a path is on, without touching it if it is on a network.

Paths are those that the process sees, which may be in a container.

Invariant: only the mount table and symbolic links on local file systems are read, because any other
call on a path below a dead network mount may never return.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from feeder.doctor.findings.facts import DatasetPlace
from feeder.doctor.findings.file_systems import may_hang
from feeder.doctor.kernel_files import KernelFiles
from feeder.errors import ConfigError
from feeder.host.kernel_files import Mount, parse_mounts

_LINKS_MAX = 40  # as the kernel follows


def read_places(files: KernelFiles, datasets: Sequence[Path]) -> tuple[DatasetPlace, ...]:
    """The place of each dataset; none if its mount is not known."""
    return tuple(
        DatasetPlace(
            path=str(dataset), mount=str(mount.point), kind=mount.kind, source=mount.source
        )
        for dataset, _, mount in _locate(files, datasets)
    )


def check_datasets(files: KernelFiles, datasets: Sequence[Path]) -> None:
    """Raise ConfigError for a dataset that the process cannot see, unless looking for it may hang.

    A path is looked up below the process's root without its links, because the kernel would follow
    an absolute link from this process's root.
    """
    for dataset, resolved, mount in _locate(files, datasets):
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


def _locate(
    files: KernelFiles, datasets: Sequence[Path]
) -> Iterator[tuple[Path, PurePosixPath, Mount]]:
    """Yield each dataset with its path without links and its mount, if that is known."""
    mounts = tuple(parse_mounts(files.own("mountinfo")))
    for dataset in datasets:
        resolved = resolve(files.process_root, PurePosixPath(dataset.absolute()), mounts)
        mount = find_mount(resolved, mounts)
        if mount is not None:
            yield dataset, resolved, mount


def find_mount(path: PurePosixPath, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that shows ``path``: the deepest, and of those the last mounted."""
    found: Mount | None = None
    for mount in mounts:
        depth = len(found.point.parts) if found else 0
        if path.is_relative_to(mount.point) and len(mount.point.parts) >= depth:
            found = mount
    return found


def resolve(root: Path, path: PurePosixPath, mounts: Sequence[Mount]) -> PurePosixPath:
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
        mount = find_mount(done, mounts)
        if mount is not None and may_hang(mount.kind):
            return done.joinpath(*reversed(pending))
        try:
            target = PurePosixPath(os.readlink(root / done.relative_to("/")))
        except (OSError, ValueError):  # not a link, absent, or a name with a zero byte
            continue
        links += 1
        if links > _LINKS_MAX:
            return done.joinpath(*reversed(pending))
        done = PurePosixPath("/") if target.is_absolute() else done.parent
        pending += reversed([part for part in target.parts if part != "/"])
    return done
