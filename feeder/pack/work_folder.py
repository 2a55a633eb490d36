"""The work folder of a packing, DST/.packing, which makes it resumable at any moment.

    source.json           where the source is; list-00003.*, the items of its container 3
    items                 those to pack, in packing order: of part 0, of part 1, … (see items.py)
    state.json            source and options, or the dataset that is repacked; a run with others is
                          refused
    part-00003.fds        a finished part, as packed
    part-00003.json       its PartResult, written after it: the part is finished
    balanced-00003.fds    the part after samples moved between parts (see publish)
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from feeder.convert.prepare import SourceOptions
from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, canonical_json
from feeder.errors import ConfigError, DatasetError
from feeder.pack.items import describe_change
from feeder.pack.progress import ProgressLine
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import write_output
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.source import SourceSpec

STATE_NAME: Final = "state.json"
_VERSION: Final = 7
_UNFINISHED: Final = re.compile(r"(manifest\.json|\w+\.jsonl|survey\.html)\.\d+\.tmp")
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

    def options(self) -> dict[str, Any]:
        """What the user chose, by names like those of the options."""
        fields = msgspec.to_builtins(self)
        chosen = {**fields["conversion"], **{name: fields[name] for name in ("seed", "split")}}
        chosen["shards"] = self.shards
        return {name.removesuffix("_px").replace("_", "-"): chosen[name] for name in chosen}


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

    def begin(self, state: WorkState, spec: SourceSpec) -> None:
        """Record what is packed, or resume it; OtherPackingError if it is another one's folder."""
        path = self.path / STATE_NAME
        is_new = not path.exists()
        if not is_new:
            self._check_state(path, state, spec)
        self.new_items_path.replace(self.items_path)
        if is_new:
            write_output(path, canonical_json(msgspec.to_builtins(state)))

    def begin_repacking(self, former: str) -> None:
        """Record that the dataset of fingerprint ``former`` is repacked, or resume that."""
        path, state = self.path / STATE_NAME, canonical_json({"former": former})
        if not path.exists():
            write_output(path, state)
        elif read_regular(path, _JSON_BYTES_MAX) != state:
            raise self._other("another packing", "give the same dataset to resume it")

    def _check_state(self, path: Path, state: WorkState, spec: SourceSpec) -> None:
        try:
            fields = json.loads(read_regular(path, _JSON_BYTES_MAX))
            if not isinstance(fields, dict):
                raise TypeError
            if "former" in fields:
                remedy = "run the same feeder repack command to resume it"
                raise self._other("a repacking", remedy)
            if fields.get("version", _VERSION) != _VERSION:
                raise OtherPackingError(
                    f"{self.path.parent} holds the beginning of a packing by another feeder "
                    f"version (of format {fields['version']}, this one continues {_VERSION}): "
                    f"remove {self.path.parent} and pack again"
                )
            begun = msgspec.convert(fields, WorkState)
        except (TypeError, ValueError):
            raise self.damaged(path) from None
        if begun == state:
            return
        new_options = state.options()
        different = [
            f"{name} was {_show(old)}, now {_show(new_options[name])}"
            for name, old in begun.options().items()
            if old != new_options[name]
        ]
        if begun.classes != state.classes:
            different.insert(0, "the classes were others (class folders, or --classes-of)")
        elif begun.listing != state.listing and not any(
            getattr(begun, name) != getattr(state, name) for name in ("seed", "split", "labels")
        ):
            lists, change = (self.items_path, self.new_items_path), "another"
            if lists[0].exists():
                change = describe_change(*lists, state.labels.stored_bytes, spec)
            if begun.files != state.files:
                change = f"it had {begun.files:,} files and has {state.files:,}; {change}"
            different.insert(0, f"the source has changed: {change}")
        raise self._other(
            f"another packing ({'; '.join(different)})",
            "give the same source and options to resume it",
        )

    def _other(self, what: str, remedy: str) -> OtherPackingError:
        return OtherPackingError(
            f"{self.path.parent} holds the beginning of {what}: {remedy}, or remove "
            f"{self.path.parent} to start over"
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

    def balanced_path(self, number: int) -> Path:
        """Part ``number`` after balancing, where that changed it."""
        return self.path / f"balanced-{number:05d}.fds"

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

    @property
    def new_items_path(self) -> Path:
        """The items as this run has listed them, until ``begin``."""
        return self.path / "items.tmp"

    def remove(self) -> None:
        """Remove the folder, its state last, once the dataset is complete."""
        for path in self.path.iterdir():
            if path.name != STATE_NAME:
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
