"""Lists a source's containers into the work folder, and compares its files with the lists later.

A list that an earlier run completed is used again if its container still has the same stamp.
Folders have none and are listed again by each run. Many large containers are listed by worker
processes (see task_pool). Those in a store are fetched first (see feeder.source.fetch).
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from feeder.dataset.manifest import canonical_json
from feeder.errors import DatasetError
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import Message, Report, run_tasks
from feeder.pack.work_folder import SPEC_NAME
from feeder.process.output_file import write_output
from feeder.process.path_text import encode_name, path_from_text, path_to_text
from feeder.process.regular_file import read_regular
from feeder.source.fetch import fetch_container, forget_copies, look_at_all, state_room
from feeder.source.item_bytes import SNIFF_BYTES, SourceError, sniff_file, sniff_format
from feeder.source.listing import (
    ItemListing,
    ListedItems,
    fetched_path,
    forget_list,
    list_path,
    read_listed,
)
from feeder.source.location.objects import retries, take_retries
from feeder.source.location.storage import check_listed, stamp_path, stamp_status
from feeder.source.source import Item, Source, SourceSpec, open_source

_SPEC_BYTES_MAX: Final = 256 << 20
_INLINE_BYTES_MAX: Final = 64 << 20  # starting worker processes takes longer than listing this
_CHUNK: Final = 1 << 14
_FOLDER: Final = (0, 0)


def list_source(
    work_folder: Path, spec: SourceSpec, *, jobs: int, progress: ProgressLine
) -> list[ListedItems]:
    """List all containers, by number.

    Raises what ``Source.list_items`` does, and OSError where the work folder cannot be written.
    """
    if spec.kind == "samples":  # its spool is its list
        return read_lists(work_folder, range(len(spec.containers)))
    if find_spec(work_folder) != spec:
        forget_containers(work_folder)
    stamps = _stamp_all(spec)
    todo, copies = [], []
    for number, (container, stamp) in enumerate(zip(spec.containers, stamps, strict=True)):
        listed = read_listed(work_folder, number)
        known = None if listed is None else (listed.container, listed.stamp)
        is_lost = False
        if spec.is_fetched and not (listed and listed.spilled_bytes):
            copies.append(fetched_path(work_folder, container, stamp[1]))
            is_lost = not copies[-1].exists()
        # labels in a file of their own may have changed while the container has not
        if stamp == _FOLDER or spec.labels_file or known != (container, stamp) or is_lost:
            forget_list(work_folder, number)
            todo.append(number)
    forget_copies(work_folder, copies)
    if not todo:
        return read_lists(work_folder, range(len(spec.containers)))
    write_spec(work_folder, spec)
    workers = min(jobs, len(todo))  # one would list no faster than this process
    is_small = sum(stamps[number][0] for number in todo) <= _INLINE_BYTES_MAX
    if spec.is_fetched:
        is_small = False  # but each one takes the time of its requests
        missing = {spec.containers[number]: stamps[number] for number in todo}
        all_bytes = sum(size for size, _ in stamps)
        progress.note(state_room(work_folder, spec.location, missing, all_bytes, workers))
    progress.begin("listing", "items", None)
    try:
        if workers == 1 or is_small:
            with closing(open_source(spec, path_to_text(work_folder))) as source:
                for number in todo:
                    _list_one(source, spec, work_folder, number, progress.add)
        else:
            setup = Setup(work_folder=path_to_text(os.path.abspath(work_folder)))
            tasks = (Task(container=number) for number in todo)
            with closing(
                run_tasks("feeder.pack.containers", setup, tasks, jobs=workers)
            ) as messages:
                for message in messages:
                    progress.count(message)
                    retries.update(message.get("retries", {}))
    finally:
        progress.clear()
    return read_lists(work_folder, range(len(spec.containers)))


def read_lists(work_folder: Path, numbers: Iterable[int]) -> list[ListedItems]:
    """Map the complete lists of these containers; DatasetError if one is missing."""
    lists = []
    for number in numbers:
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
    """Read what ``write_spec`` recorded."""
    data = read_regular(work_folder / SPEC_NAME, _SPEC_BYTES_MAX)
    return msgspec.convert(json.loads(data), SourceSpec)


def find_spec(work_folder: Path) -> SourceSpec | None:
    """Read what ``write_spec`` recorded; None if it did not, or was stopped meanwhile."""
    try:
        return read_spec(work_folder)
    except (OSError, ValueError):
        return None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Where the lists and ``source.json`` are, as ``path_to_text`` writes it."""

    work_folder: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the container to list."""

    container: int


def perform(setup: Setup, task: Task, report: Report) -> Message:
    """List one container, in a worker process; reports "count", "bytes", and "retries"."""
    work_folder = path_from_text(setup.work_folder)
    spec = read_spec(work_folder)
    with closing(open_source(spec, setup.work_folder)) as source:
        _list_one(
            source,
            spec,
            work_folder,
            task.container,
            lambda count, size_bytes=0: report.add(count=count, bytes=size_bytes),
        )
    return {"retries": take_retries()}


def _list_one(
    source: Source,
    spec: SourceSpec,
    work_folder: Path,
    number: int,
    progress: Callable[..., None],
) -> None:
    """List a container; ``progress`` is called with numbers of items, and of bytes fetched."""
    container = spec.containers[number]
    copy = None
    if spec.is_fetched:
        copy, stamp = fetch_container(work_folder, container, lambda size: progress(0, size))
    else:
        stamp = _stamp(path_from_text(container))
    with ItemListing(
        work_folder,
        number,
        label_kind=spec.label_kind,
        progress=progress,
        stamp=None if copy is not None or stamp == _FOLDER else stamp[1],
        copy=copy,
    ) as listing:
        source.list_items(number, listing)
        listed = listing.finish(container, stamp)
    if copy is not None and listed.spilled_bytes:
        copy.unlink()


def _stamp_all(spec: SourceSpec) -> list[tuple[int, int]]:
    """Size and stamp of each container; zeros for a folder."""
    if not spec.is_remote:
        return [_stamp(path_from_text(container)) for container in spec.containers]
    return [_FOLDER] if spec.is_loose else look_at_all(spec.containers)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and stamp of a file; zeros for anything else."""
    try:
        status = path.stat()
    except OSError:
        return _FOLDER  # listing it reports the error
    return (status.st_size, stamp_status(status)) if stat.S_ISREG(status.st_mode) else _FOLDER


def is_image(work_folder: Path, spec: SourceSpec, item: Item) -> bool:
    """Whether an item begins like an image."""
    if spec.is_loose:
        root = encode_name(spec.containers[0])
        return sniff_file(os.path.join(root, encode_name(item.name))) is not None
    try:
        with closing(open_source(spec, path_to_text(work_folder))) as source:
            return sniff_format(source.read_item(item)[:SNIFF_BYTES]) is not None
    except SourceError:
        return False


def check_source(spec: SourceSpec, lists: Sequence[ListedItems], progress: ProgressLine) -> None:
    """Raise SourceChangedError unless every file is still the one that was listed.

    An object need not be: a request returns all of it in one version, whose stamp was compared.
    """
    if spec.kind == "samples" or spec.is_remote:  # samples have no files
        return
    total = len(lists[0].rows) if spec.is_loose else len(lists)
    progress.begin("comparing", "files", total)
    try:
        for path, stamp in _listed_files(spec, lists):
            check_listed(path, stamp)
            progress.add(1)
    finally:
        progress.clear()


def _listed_files(
    spec: SourceSpec, lists: Sequence[ListedItems]
) -> Iterator[tuple[bytes, int | None]]:
    """Yield the path of each file that is read, and its stamp."""
    if not spec.is_loose:
        for each in lists:
            stamp = None if each.listed.stamp == _FOLDER else each.listed.stamp[1]
            yield encode_name(each.listed.container), stamp
        return
    root, (items,) = encode_name(spec.containers[0]), lists
    for first in range(0, len(items.rows), _CHUNK):
        rows = items.rows[first : first + _CHUNK]
        for at, size, stamp in rows[["name_at", "name_bytes", "stamp"]].tolist():
            yield os.path.join(root, items.text[at : at + size]), stamp


def stamp_labels(spec: SourceSpec) -> dict[bytes, int]:
    """Stamp the files with labels and class names, by path, for ``check_labels``."""
    given = [encode_name(path) for path in (spec.labels_file, spec.class_names_file) if path]
    if spec.kind == "imagenet-val":
        from feeder.source.imagenet import META  # only here: it imports the readers of tars

        given += [os.path.join(os.path.dirname(path), META.encode()) for path in tuple(given)]
    for path in filter(os.path.isdir, tuple(given)):
        given += [os.path.join(folder, n) for folder, _, names in os.walk(path) for n in names]
    return {path: stamp_path(path) for path in given if not os.path.isdir(path)}


def check_labels(stamps: Mapping[bytes, int]) -> None:
    """Raise SourceChangedError unless these files still have their stamps."""
    for path, stamp in stamps.items():
        check_listed(path, stamp)
