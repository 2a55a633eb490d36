"""A job's checkpoints: one file, or a folder that keeps the latest and the best.

    DIR/checkpoints/epoch-0012.pt               after 12 epochs
    DIR/checkpoints/epoch-0012-step-000500.pt   500 steps later; the next one replaces it
    DIR/checkpoints/best.pt                     the most accurate one, whatever else is removed

    FILE, FILE.previous                         of --checkpoint FILE

A file is written under a temporary name, synced and renamed: after a kill at any moment it holds
the old checkpoint or the new one. Reading verifies its checksums. It has tensors, numbers and
strings only and is read with ``weights_only``, so nothing in it runs as code.

One job at a time saves: DIR/checkpoints/lock or FILE.lock names it, and is locked while it runs.
"""

import contextlib
import errno
import fcntl
import io
import os
import re
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import torch

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import explain_write_errors, replace_file
from feeder.process.regular_file import check_regular, open_regular_file

CHECKPOINTS: Final = "checkpoints"
"""The folder's name in that of a run."""
CHECKPOINT_VERSION: Final = 3  # increment when the meaning of an entry changes
_NAME: Final = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?\.pt")
_UNFINISHED: Final = ".unfinished"  # of all processes, so that kills leave one file at most
_FOLDER: Final = 0x10  # MS-DOS attribute of a zip entry
_REMEDY: Final = "make room, or name another --checkpoint or --output"


class CheckpointFile:
    """One file, and the one before it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def hold(self, report: Callable[[str], None]) -> Iterator[None]:
        """Let no other job save here until the body ends; ``report`` gets a line if nothing can.

        ConfigError if another job does, or unless the file could be written and resumed.
        """
        try:
            os.stat(os.path.join(self.path.parent, ""))
            if self.path.exists():
                check_regular(self.path.stat(), self.path)
        except OSError as error:
            raise ConfigError(
                f"checkpoint must name a file in an existing folder, got {self.path} "
                f"({error.strerror}): name another file, or leave out --checkpoint"
            ) from None
        with _locked(self.path.with_name(self.path.name + ".lock"), self.path, report):
            yield

    def newest(self) -> Path | None:
        return self.path if self.path.exists() else None

    def save(self, content: Mapping[str, Any], epoch: int, step: int, *, is_best: bool) -> None:
        """Write the file; the present one becomes the previous one."""
        if self.path.exists():
            previous = self.path.with_name(self.path.name + ".previous")
            _link(Path(os.path.realpath(self.path)), previous)  # link(2) follows no link
        save_checkpoint(self.path, content)

    def keep_best(self, path: Path) -> None:
        """Nothing: one file has no best one."""


class CheckpointFolder:
    """A folder with the ``keep`` latest checkpoints after an epoch, and the best."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    @contextlib.contextmanager
    def hold(self, report: Callable[[str], None]) -> Iterator[None]:
        """Make the folder, for this job alone, and remove what a killed one left unfinished."""
        with explain_write_errors(f"to the folder {self.folder}", "name another --output"):
            self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / "lock", self.folder.parent, report):
            for unfinished in self.folder.glob(f"*{_UNFINISHED}"):
                unfinished.unlink(missing_ok=True)
            yield

    def newest(self) -> Path | None:
        return max(list_checkpoints(self.folder), key=position_of, default=None)

    def save(self, content: Mapping[str, Any], epoch: int, step: int, *, is_best: bool) -> None:
        """Write the checkpoint after ``epoch`` epochs and ``step`` steps of the next.

        The oldest ones are removed, and steps of epochs that are complete. Later ones are of a run
        that was left when an earlier checkpoint was resumed: removed, too.
        """
        name = f"epoch-{epoch:04d}-step-{step:06d}.pt" if step else f"epoch-{epoch:04d}.pt"
        path = self.folder / name
        save_checkpoint(path, content)
        if is_best:
            self.keep_best(path)
        names = list_checkpoints(self.folder)
        past = [each for each in names if position_of(each) <= position_of(path)]
        epochs = [each for each in past if not position_of(each)[1]]
        for each in {*names} - {path, *epochs[-self._keep :]}:
            each.unlink(missing_ok=True)

    def keep_best(self, path: Path) -> None:
        """Make a checkpoint of this folder the best one, also after a kill before ``save`` did."""
        if path.parent == self.folder:
            _link(path, self.folder / "best.pt")


Store = CheckpointFile | CheckpointFolder


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``content`` atomically; ResourceError when that fails."""
    data = io.BytesIO()  # in memory first: torch hides a file's own error, and the size is known
    torch.save({"version": CHECKPOINT_VERSION, **content}, data)
    try:
        with replace_file(path, suffix=_UNFINISHED) as file:
            file.write(data.getbuffer())
    except OSError as error:
        reason = error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed, free = data.tell() / 1e6, shutil.disk_usage(path.parent).free / 1e6
            reason = (
                f"no space left on its disk: it needs {needed:,.1f} MB, {free:,.1f} MB are free"
            )
        raise ResourceError(f"cannot write the checkpoint {path} ({reason}): {_REMEDY}") from error


def load_checkpoint(path: Path, *, instead: str = "name another one") -> dict[str, Any]:
    """Return the saved content, on the CPU.

    Raises ConfigError when it is no checkpoint of this job, with ``instead`` as the remedy, and
    ResourceError when it cannot be read.
    """
    content = read_saved(path, "checkpoint", instead)
    version = content.get("version") if isinstance(content, dict) else None
    if version != CHECKPOINT_VERSION:
        raise ConfigError(
            f"{path} is no checkpoint of version {CHECKPOINT_VERSION} of this job, but of "
            f"{version}: {instead}, or use the version that saved it"
        )
    return dict(content)


def load_for_resume(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content; if it is damaged, the ConfigError offers the one before."""
    checkpoints = list_checkpoints(path.parent)
    earlier = [each for each in checkpoints if position_of(each) < position_of(path)]
    before = earlier[-1] if earlier else path.with_name(path.name + ".previous")
    offer = f"resume from the one before it with --resume {before}"
    return load_checkpoint(path, instead=offer if before.exists() else "name another one")


def read_saved(path: Path, kind: str, instead: str = "name another one") -> Any:
    """Return what torch.save has written, on the CPU; errors name it as a file of this kind.

    Nothing in it runs as code. torch writes checksums but checks none, so they are checked here;
    files of before torch 1.6 have none. Raises as ``load_checkpoint``.
    """
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise ResourceError(
            f"cannot read the {kind} {path} ({error.strerror}): make it readable, or name another "
            "one"
        ) from error
    with file, warnings.catch_warnings():  # of odd bytes, beside the error that they cause
        warnings.simplefilter("ignore")
        try:
            if file.read(4) == b"PK\x03\x04":
                with ZipFile(file) as archive:
                    # Zip's own headers have no checksum, and with this bit torch reads the bytes of
                    # another record.
                    entries = archive.infolist()
                    folders = [each.filename for each in entries if each.external_attr & _FOLDER]
                    if damaged := archive.testzip() or next(iter(folders), None):
                        raise BadZipFile(f"{damaged} is damaged")
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 -- damaged bytes raise errors of a dozen kinds
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{path} is no {kind}, or damaged ({reason}): {instead}") from None


def position_of(path: Path) -> tuple[int, int]:
    """Return epochs done and steps of the next one by a checkpoint's name, (-1, 0) for others."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder in order, but for the best; none where there is none."""
    paths = (path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name))
    return sorted(paths, key=position_of)


@contextlib.contextmanager
def _locked(path: Path, place: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Lock ``path`` until the body ends or the process dies; ConfigError if another job has it.

    The file stays: to remove it would let two jobs lock two files of one name. Over NFS the lock
    holds between hosts, but for mounts with ``nolock`` or ``local_lock``.
    """
    with explain_write_errors(str(path), "make it writable, or name another --output"):
        file = path.open("a+", encoding="utf-8", errors="replace")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = " ".join(file.read(200).split()) or "another process"
            raise ConfigError(
                f"another job saves to {place}: {holder}. End that one, or name another folder or "
                "file for this one"
            ) from None
        except OSError as error:  # ENOLCK, ENOTSUP: a file system without locks
            report(f"cannot lock {path} ({error.strerror}): see that no other job saves to {place}")
        with explain_write_errors(str(path), "make room, or name another --output"):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, which may exist; ResourceError when that fails."""
    unfinished = name.with_name(name.name + _UNFINISHED)
    with explain_write_errors(f"the checkpoint {name}", _REMEDY):
        unfinished.unlink(missing_ok=True)
        try:
            os.link(path, unfinished)
        except OSError:  # a file system without links
            shutil.copyfile(path, unfinished)
        unfinished.replace(name)
