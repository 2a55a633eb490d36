"""Lists a source's containers into the work folder: here, or in worker processes.

A list that an earlier run completed is used again if its container still has the same size and
modification time. Folders have no such mark and are listed again by each run.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from feeder.dataset.manifest import canonical_json
from feeder.errors import DatasetError
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import Report, TaskPool
from feeder.process.output_file import write_output
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.listing import (
    ItemListing,
    ListedContainer,
    ListedItems,
    Progress,
    forget_list,
    list_path,
    read_listed,
)
from feeder.source.source import Source, SourceSpec, open_source

SPEC_NAME: Final = "source.json"
_SPEC_BYTES_MAX: Final = 256 << 20
_INLINE_BYTES_MAX: Final = 64 << 20  # starting worker processes takes longer than listing this
_Stamp = tuple[int, int]
_FOLDER: Final[_Stamp] = (0, 0)


def list_containers(
    work_folder: Path, spec: SourceSpec, *, jobs: int, progress: ProgressLine
) -> list[ListedItems]:
    """Return the lists of all containers, by number.

    Raises what ``Source.list_items`` does, and OSError where the work folder cannot be written.
    """
    stamps = [_stamp(path_from_text(container)) for container in spec.containers]
    todo = []
    for number, (container, stamp) in enumerate(zip(spec.containers, stamps, strict=True)):
        listed = read_listed(work_folder, number)
        known = None if listed is None else (listed.container, listed.stamp)
        # labels in a file of their own may have changed while the container has not
        if stamp == _FOLDER or spec.labels_file or known != (container, stamp):
            forget_list(work_folder, number)
            todo.append(number)
    if todo:
        write_spec(work_folder, spec)
        progress.begin("listing", "items", None)
        try:
            _list_all(work_folder, spec, todo, stamps, jobs, progress)
        finally:
            progress.clear()
    return read_lists(work_folder, spec)


def read_lists(work_folder: Path, spec: SourceSpec) -> list[ListedItems]:
    """Return the complete lists of all containers, by number; DatasetError if one is missing."""
    lists = []
    for number in range(len(spec.containers)):
        listed = read_listed(work_folder, number)
        if listed is None:
            path = list_path(work_folder, number, "json")
            raise DatasetError(f"{path} is missing or damaged: run the same command again")
        lists.append(ListedItems(work_folder, number, listed))
    return lists


def forget_containers(work_folder: Path) -> None:
    """Remove all lists, with the spilled copies of containers."""
    complete = work_folder.glob("list-*.json")  # first: a list without it is none
    for path in (*complete, *work_folder.glob("list-*"), work_folder / SPEC_NAME):
        path.unlink(missing_ok=True)


def write_spec(work_folder: Path, spec: SourceSpec) -> None:
    """Record the source that the work folder's lists are of."""
    write_output(work_folder / SPEC_NAME, canonical_json(msgspec.to_builtins(spec)))


def read_spec(work_folder: Path) -> SourceSpec:
    """Return the source that the work folder's lists are of."""
    data = read_regular(work_folder / SPEC_NAME, _SPEC_BYTES_MAX)
    return msgspec.convert(json.loads(data), SourceSpec)


def _list_all(
    work_folder: Path,
    spec: SourceSpec,
    todo: list[int],
    stamps: list[_Stamp],
    jobs: int,
    progress: ProgressLine,
) -> None:
    workers = min(jobs, len(todo))  # one would list no faster than this process
    if workers == 1 or sum(stamps[number][0] for number in todo) <= _INLINE_BYTES_MAX:
        source = open_source(spec, path_to_text(work_folder))
        try:
            for number in todo:
                _list_one(source, spec, work_folder, number, lambda items, _: progress.add(items))
        finally:
            source.close()
        return
    setup = {"work_folder": path_to_text(os.path.abspath(work_folder))}
    tasks = ({"container": number} for number in todo)
    with TaskPool("feeder.pack.containers", setup, jobs=workers) as pool:
        for _, kind, counts in pool.run(tasks):
            if kind == "report":
                progress.add(counts["items"])


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """List one container; the task of a worker process. Reports new {"items"}."""
    work_folder = path_from_text(setup["work_folder"])
    spec = read_spec(work_folder)
    source = open_source(spec, setup["work_folder"])
    try:
        _list_one(
            source,
            spec,
            work_folder,
            task["container"],
            lambda items, _: report({"items": items}),
        )
    finally:
        source.close()
    return {}


def _list_one(
    source: Source, spec: SourceSpec, work_folder: Path, number: int, progress: Progress
) -> ListedContainer:
    container = spec.containers[number]
    stamp = _stamp(path_from_text(container))
    with ItemListing(work_folder, number, label_kind=spec.label_kind, progress=progress) as listing:
        source.list_items(number, listing)
        if _stamp(path_from_text(container)) != stamp:
            raise DatasetError(
                f"{printable(container)} changed while it was read: wait until it is complete, "
                "then run the same command again"
            )
        return listing.finish(container, stamp)


def _stamp(path: Path) -> _Stamp:
    """Return size and modification time of a file; zeros for anything else."""
    try:
        status = path.stat()
    except OSError:
        return _FOLDER  # listing it reports the error
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else _FOLDER
