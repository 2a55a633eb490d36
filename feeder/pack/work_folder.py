"""The work folder of a packing, DST/.packing, which makes it resumable at any moment.

    source.json           where the source is; list-00003.*, the items of its container 3
    items                 those to pack, in packing order: of part 0, of part 1, … (see items.py)
    state.json            source and options, or the dataset that is repacked; a run with others is
                          refused
    part-00003.fds        a finished part, as packed
    part-00003.json       its PartResult, written after it: the part is finished
    lock                  held by the running packing, so that there is only one
    *.tmp                 being written; removed at the next start

A file appears under its name only when it is complete and durable, so a kill at any moment loses at
most the parts that were being written.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from feeder.convert.prepare import SourceOptions
from feeder.dataset.format import shard_name
from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, canonical_json
from feeder.errors import ConfigError, DatasetError
from feeder.pack.progress import ProgressLine
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import write_output
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.location.storage import is_url

STATE_NAME: Final = "state.json"
SPEC_NAME: Final = "source.json"
_VERSION: Final = 7
_UNFINISHED: Final = re.compile(
    r"(manifest\.json|\w+\.jsonl|survey\.html|shard-\d+\.fds)\.\d+\.tmp"
)
_JSON_BYTES_MAX: Final = 256 << 20  # packing writes no larger ones


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source file that did not become a sample, and why."""

    path: str
    """Relative to the source."""
    kind: str
    reason: str


def encode_quarantine(entries: Iterable[QuarantineEntry]) -> bytes:
    """Return the lines of a quarantine list."""
    lines = (json.dumps(msgspec.to_builtins(entry), sort_keys=True) for entry in entries)
    return b"".join(line.encode("ascii") + b"\n" for line in lines)


class PartResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of packing one part."""

    files: int
    samples: int
    source_bytes: int
    odd: dict[str, int]
    subsampling: dict[str, int]
    quarantine: list[QuarantineEntry]
    level_max: int = 0
    """The highest level of the images with 16 bits a sample."""


class WorkState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a packing must have in common with the run that it resumes."""

    version: int = _VERSION
    listing: str
    """The hash of all items, in order (see items.py)."""
    classes: str
    """The hash of the classes, and of what labels are."""
    files: int
    source_bytes: int
    shards: int
    seed: int
    split: str
    """Empty for all items."""
    labels: LabelSpec
    conversion: SourceOptions


def _differences(begun: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between the fields of two WorkStates, as clauses for a message."""
    if begun["classes"] != new["classes"]:
        yield "the classes were others (class folders, or --classes-of)"
    elif begun["listing"] != new["listing"] and not any(
        begun[name] != new[name] for name in ("seed", "split", "labels")
    ):
        change = "files were written again or replaced, or have other labels"
        if begun["files"] != new["files"]:
            change = f"it had {begun['files']:,} files and has {new['files']:,}"
        yield f"the source has changed: {change}"
    was, now = ({**state, **state["conversion"]} for state in (begun, new))
    for name in (*new["conversion"], "seed", "split", "shards"):
        if was[name] != now[name]:
            option = name.removesuffix("_px").replace("_", "-")
            yield f"{option} was {_show(was[name])}, now {_show(now[name])}"


def _show(option: object) -> object:
    return "none" if option in (None, "") else option


class OtherPackingError(ConfigError):
    """Raised for a work folder of another packing: of another source, options or version."""


class WorkFolder:
    """The work folder of one packing; a context manager that unlocks it."""

    def __init__(self, destination: Path) -> None:
        self.path = destination / WORK_FOLDER_NAME
        self._lock = -1

    def lock(self) -> None:
        """Create the folder or find it, locked; ConfigError if another packing runs in it."""
        self.path.mkdir(exist_ok=True)
        # a file instead of the folder: NFS locks only descriptors open for writing
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another feeder pack or repack is running on {self.path.parent}: wait for it or "
                "stop it"
            ) from None
        self.remove_unfinished()

    @property
    def is_begun(self) -> bool:
        """Whether parts may have been packed."""
        return (self.path / STATE_NAME).exists()

    def read_state(self) -> dict[str, Any]:
        """Read what ``begin`` recorded; DatasetError if it is damaged."""
        path = self.path / STATE_NAME
        try:
            return dict(json.loads(read_regular(path, _JSON_BYTES_MAX)))
        except (OSError, TypeError, ValueError):
            raise self.damaged(path) from None

    def begin(self, state: Mapping[str, Any]) -> None:
        """Record what is made here, or resume it; OtherPackingError if something else was begun.

        ``state`` are the fields of a WorkState, or what a repacking has.
        """
        path, data = self.path / STATE_NAME, canonical_json(state)
        if not path.exists():
            write_output(path, data)
            return
        written = read_regular(path, _JSON_BYTES_MAX)
        if written == data:
            return
        folder = self.path.parent
        try:
            begun = json.loads(written)
            if begun.get("version", _VERSION) != _VERSION:
                raise OtherPackingError(
                    f"{folder} holds the beginning of a packing by another feeder version (of "
                    f"format {begun['version']}, this one continues {_VERSION}): remove {folder} "
                    "and pack again"
                )
            what = "a repacking" if "former" in begun else "another packing"
            if "former" not in {*begun, *state}:
                what += f" ({'; '.join(_differences(begun, state))})"
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self.damaged(path) from None
        raise OtherPackingError(
            f"{folder} holds the beginning of {what}: run the command that began it to resume it, "
            f"or remove {folder} to start over"
        )

    def remove_unfinished(self) -> None:
        """Remove the temporary files that a killed packing left, here and in the dataset."""
        for path in self.path.glob("*.tmp"):
            path.unlink(missing_ok=True)
        for path in self.path.parent.glob("*.tmp"):
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def damaged(self, path: Path) -> DatasetError:
        return DatasetError(f"{path} is damaged: remove {self.path.parent} and pack again")

    def part_path(self, number: int) -> Path:
        return self.path / f"part-{number:05d}.fds"

    def shard_path(self, number: int) -> Path:
        """Part ``number`` in the dataset."""
        return self.path.parent / shard_name(number)

    def result_path(self, number: int) -> Path:
        return self.path / f"part-{number:05d}.json"

    def write_result(self, number: int, result: PartResult) -> None:
        """Record that part ``number`` is finished."""
        write_output(self.result_path(number), canonical_json(msgspec.to_builtins(result)))

    def read_result(self, number: int) -> PartResult | None:
        """Return the result of part ``number``; None while it is not finished."""
        path = self.result_path(number)
        try:
            return msgspec.convert(json.loads(read_regular(path, _JSON_BYTES_MAX)), PartResult)
        except FileNotFoundError:
            return None
        except ValueError:
            raise self.damaged(path) from None

    @property
    def items_path(self) -> Path:
        return self.path / "items"

    def remove(self) -> None:
        """Remove the folder, its state last, once the dataset is complete."""
        for path in self.path.iterdir():
            if path.name not in (STATE_NAME, SPEC_NAME):
                path.unlink()
        shutil.rmtree(self.path)

    def abandon(self) -> None:
        """Remove the folder of a packing that never began to pack."""
        if not self.is_begun:
            shutil.rmtree(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def check_destination(destination: Path) -> None:
    """Raise ConfigError if this folder cannot become a dataset, nor holds one's beginning."""
    if is_url(str(destination).replace(":/", "://", 1)):  # a path lacks one of its slashes
        raise ConfigError(
            f"{destination}: a dataset is packed into a folder of this machine: give one, and copy "
            "it to the store when it is complete"
        )
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ConfigError(f"{destination} is a file where the dataset's folder should be")
    names = {path.name for path in destination.iterdir()} - {"lost+found"}
    if (destination / WORK_FOLDER_NAME / STATE_NAME).exists():
        return  # WorkFolder.begin compares the state
    if MANIFEST_NAME in names:
        raise ConfigError(
            f"{destination} is a complete dataset already: give another folder, or remove it first"
        )
    names -= {WORK_FOLDER_NAME}
    if names:
        shown = printable(path_to_text(min(names)))
        raise ConfigError(
            f"{destination} is not empty (it holds {shown}): give an empty or a new folder"
        )


def warn_of_small_disk(destination: Path, needed: int, progress: ProgressLine) -> None:
    """Note it if ``destination`` has less room than the ``needed`` bytes."""
    status = os.statvfs(destination)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        progress.note(
            f"warning: {destination} has {free / 1e9:.1f} GB free, "
            f"packing takes about {needed / 1e9:.1f} GB"
        )
