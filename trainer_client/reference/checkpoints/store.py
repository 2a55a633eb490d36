"""Where a job's checkpoints are: one file, or a folder that keeps the latest and the best.

    DIR/checkpoints/epoch-0012.pt               after 12 epochs
    DIR/checkpoints/epoch-0012-step-000500.pt   500 steps later; the next one replaces it
    DIR/checkpoints/best.pt                     the most accurate one, whatever else is removed

    FILE, FILE.previous                         of --checkpoint FILE

Every file appears complete or not at all, so a kill at any moment leaves a checkpoint to resume.
One job at a time saves: DIR/checkpoints/lock or FILE.lock names it, and is locked while it runs.
"""

import contextlib
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import explain_write_errors
from feeder.process.regular_file import check_regular
from trainer_client.reference.checkpoints.checkpoint import (
    UNFINISHED,
    load_checkpoint,
    save_checkpoint,
)

CHECKPOINTS: Final = "checkpoints"
"""The folder's name in that of a run."""
BEST: Final = "best.pt"
_PREVIOUS: Final = ".previous"
_NAME: Final = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?\.pt")


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
            is_possible = self.path.parent.is_dir() and not self.path.is_dir()
        except OSError:  # no permission, or the name is too long
            is_possible = False
        if not is_possible:
            raise ConfigError(f"checkpoint must name a file in an existing folder, got {self.path}")
        try:
            check_regular(self.path.stat(), self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(
                f"no checkpoint can be saved to {self.path} ({error.strerror}): name another file, "
                "or leave out --checkpoint"
            ) from None
        with _locked(self.path.with_name(self.path.name + ".lock"), self.path, report):
            yield

    def newest(self) -> Path | None:
        """Return the latest checkpoint."""
        return self.path if self.path.exists() else None

    def save(self, content: Mapping[str, Any], epoch: int, step: int, *, is_best: bool) -> None:
        """Write the file; the present one becomes the previous one."""
        if self.path.exists():
            previous = self.path.with_name(self.path.name + _PREVIOUS)
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot make the folder {self.folder} ({error.strerror}): name another --output"
            ) from error
        with _locked(self.folder / "lock", self.folder.parent, report):
            for unfinished in self.folder.glob(f"*{UNFINISHED}"):
                unfinished.unlink(missing_ok=True)
            yield

    def newest(self) -> Path | None:
        """Return the latest checkpoint."""
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
            _link(path, self.folder / BEST)


Store = CheckpointFile | CheckpointFolder


def load_for_resume(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content; if it is damaged, the ConfigError offers the one before."""
    checkpoints = list_checkpoints(path.parent)
    earlier = [each for each in checkpoints if position_of(each) < position_of(path)]
    before = earlier[-1] if earlier else path.with_name(path.name + _PREVIOUS)
    offer = f"resume from the one before it with --resume {before}"
    return load_checkpoint(path, instead=offer if before.exists() else "name another one")


def position_of(path: Path) -> tuple[int, int]:
    """Return epochs done and steps of the next one by a checkpoint's name, (-1, 0) for others."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder in order, but for the best; none where there is none."""
    try:
        names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(names, key=position_of)
    except OSError:
        return []


@contextlib.contextmanager
def _locked(path: Path, place: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Lock ``path`` until the body ends or the process dies; ConfigError if another job has it.

    The file stays: to remove it would let two jobs lock two files of one name. Over NFS the lock
    holds between hosts, but for mounts with ``nolock`` or ``local_lock``.
    """
    with explain_write_errors(str(path), "make it writable, or name another --output"):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(lock, "r+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = " ".join(file.read(200).split()) or "another process"
            raise ConfigError(
                f"another job saves to {place}: {holder}. End that one, or name another folder or "
                "file for this one"
            ) from None
        except OSError as error:  # ENOLCK, ENOTSUP: a file system without locks
            report(f"cannot lock {path} ({error.strerror}): see that no other job saves to {place}")
        with explain_write_errors(str(path), "make room, or name another --output"):
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, which may exist; ResourceError when that fails."""
    unfinished = name.with_name(name.name + UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)
        try:
            os.link(path, unfinished)
        except OSError:  # a file system without links
            shutil.copyfile(path, unfinished)
        unfinished.replace(name)
    except OSError as error:
        raise ResourceError(
            f"cannot write the checkpoint {name} ({error.strerror}): make room, or use another "
            "--checkpoint or --output"
        ) from error
