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
from typing import Any, Final, Protocol

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import explain_write_errors
from feeder.process.regular_file import check_regular
from trainer_client.reference.checkpoints.checkpoint import (
    UNFINISHED,
    load_checkpoint,
    save_checkpoint,
)
from trainer_client.reference.checkpoints.progress import Progress

CHECKPOINTS: Final = "checkpoints"
"""The folder's name in that of a run."""
BEST: Final = "best.pt"
_NAME: Final = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?\.pt")


class Store(Protocol):
    """Where checkpoints are saved to and resumed from."""

    def hold(self, report: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Let no other job save here until the body ends; ``report`` gets a line if nothing can.

        Raises ConfigError if another job does, and that or ResourceError if nothing could be saved.
        """
        ...

    def newest(self) -> Path | None:
        """Return the latest checkpoint."""
        ...

    def load(self, path: Path) -> dict[str, Any]:
        """Return a checkpoint's content; if it is damaged, the ConfigError offers another one."""
        ...

    def mend(self, path: Path, progress: Progress) -> None:
        """Complete what a kill has interrupted after ``path`` was written, which is resumed."""
        ...

    def save(self, content: Mapping[str, Any], progress: Progress) -> Path:
        """Write a checkpoint and remove those that it replaces."""
        ...


class CheckpointFile:
    """One file, and the one before it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def hold(self, report: Callable[[str], None]) -> Iterator[None]:
        """Let no other job save here; ConfigError unless the file could be written and resumed."""
        self._check()
        with _locked(self.path.with_name(self.path.name + ".lock"), self.path, report):
            yield

    def _check(self) -> None:
        if not _can_be_file(self.path):
            raise ConfigError(f"checkpoint must name a file in an existing folder, got {self.path}")
        try:
            check_regular(self.path.stat(), self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(
                f"no checkpoint can be saved to {self.path} ({error.strerror}): name another file, "
                "or leave out --checkpoint"
            ) from None

    def newest(self) -> Path | None:
        """Return the file, if it exists."""
        return self.path if self.path.exists() else None

    def load(self, path: Path) -> dict[str, Any]:
        """Return the content; if it is damaged, the error offers the one before."""
        return load_checkpoint(path, instead=_offer(self._previous()))

    def mend(self, path: Path, progress: Progress) -> None:
        """Nothing: the file before is written first."""

    def save(self, content: Mapping[str, Any], progress: Progress) -> Path:
        """Write the file; the present one becomes the previous one."""
        if self.path.exists():
            _link(Path(os.path.realpath(self.path)), self._previous())  # link(2) follows no link
        save_checkpoint(self.path, content)
        return self.path

    def _previous(self) -> Path:
        return self.path.with_name(self.path.name + ".previous")


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

    def load(self, path: Path) -> dict[str, Any]:
        """Return the content; if it is damaged, the error offers the one before."""
        names = sorted(list_checkpoints(self.folder), key=position_of)
        earlier = [each for each in names if each != path and position_of(each) < position_of(path)]
        return load_checkpoint(path, instead=_offer(earlier[-1] if earlier else None))

    def save(self, content: Mapping[str, Any], progress: Progress) -> Path:
        """Write a checkpoint; remove the oldest ones, and steps of epochs that are complete.

        Later ones are of a run that was left when an earlier checkpoint was resumed: removed, too.
        """
        path = self.folder / name_at(progress.epoch, progress.step)
        save_checkpoint(path, content)
        self.mend(path, progress)
        names = sorted(list_checkpoints(self.folder), key=position_of)
        past = [each for each in names if position_of(each) <= position_of(path)]
        epochs = [each for each in past if not position_of(each)[1]]
        for each in {*names} - {path, *epochs[-self._keep :]}:
            each.unlink(missing_ok=True)
        return path

    def mend(self, path: Path, progress: Progress) -> None:
        """Make the checkpoint the best one, if it is after an epoch and the most accurate."""
        if path.parent == self.folder and not progress.step and _is_best(progress):
            _link(path, self.folder / BEST)


def name_at(epoch: int, step: int) -> str:
    """Return the name of the checkpoint after ``epoch`` epochs and ``step`` steps of the next."""
    return f"epoch-{epoch:04d}-step-{step:06d}.pt" if step else f"epoch-{epoch:04d}.pt"


def position_of(path: Path) -> tuple[int, int]:
    """Return epochs done and steps of the next one by a checkpoint's name, (-1, 0) for others."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, but for the best; none where there is no folder."""
    try:
        return [each for each in folder.iterdir() if _NAME.fullmatch(each.name)]
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


def _is_best(progress: Progress) -> bool:
    scores = [each.best_top1 for each in progress.history]
    latest = scores[-1] if scores else None
    return latest is not None and all(each is None or latest > each for each in scores[:-1])


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


def _offer(path: Path | None) -> str:
    if path is None or not path.exists():
        return "name another one"
    return f"resume from the one before it with --resume {path}"


def _can_be_file(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # no permission, or the name is too long
        return False
