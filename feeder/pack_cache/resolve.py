"""Finds the dataset behind each thing to serve, and packs the sources that are not packed yet.

    a folder that feeder pack wrote        served as it is
    a source, packed before, unchanged     its copy in the cache folder, at once
    a source, packed before, changed       an error; with repack it is packed again
    a source, packed before, now gone      its copy, after a warning; also if its store is away
    a source, packed with other classes    packed again, if it is to have those of another dataset
    any other source                       packed into the cache folder

A source that another process is packing is waited for. A stop or kill at any moment loses no
finished shard: the next start resumes.
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, load_manifest
from feeder.errors import ConfigError, DatasetError, FeederError, SourceChangedError, StoreError
from feeder.pack.classes import OtherKindError
from feeder.pack.options import PackOptions, TooManyBadImages
from feeder.pack.run import PackSummary, pack_dataset
from feeder.pack.work_folder import STATE_NAME, OtherPackingError
from feeder.pack_cache.entry import CacheEntry, CacheRecord, describe_other_classes
from feeder.pack_cache.shared_progress import SharedProgress
from feeder.pack_cache.stamp import Stamp, describe_change, is_there, take_stamp
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import path_to_text, printable
from feeder.source.location.splits import pair_splits
from feeder.source.recognise import recognise
from feeder.source.source import SourceSpec

_REMEDY: Final = "start again to resume, or give another folder with --cache-dir"
_WAIT: Final = "wait until it is complete, then start again"
_LINE_S: Final = 10.0
"""Between two lines of a long look at a source."""


class SourceCache:
    """The packed copies of sources below one folder, and how to make more."""

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int,
        repack: bool,
        progress: SharedProgress,
        report: Callable[[Path, PackSummary], None],
    ) -> None:
        """Use ``folder``, which need not exist, and ``jobs`` processes.

        With ``repack`` every source is packed again, even if it has not changed. ``report`` is
        called with the dataset and the result of each packing.
        """
        self._folder = folder
        self._repack = repack
        self._options = PackOptions(jobs=jobs)
        self._progress = progress
        self._report = report

    def find_datasets(self, data: Mapping[str, str], sources: Collection[str]) -> dict[str, str]:
        """Return ``data``, by name, with the packed datasets of the ``sources`` among them.

        A validation source is packed with the classes of its training set: their names differ in
        the word for the split only. Raises what ``find_dataset`` does.
        """
        training = pair_splits(data)
        found = dict(data)
        ordered = sorted(sources, key=lambda each: (each in training, each))
        for number, name in enumerate(ordered, 1):
            self._progress.begin_source(name, number, len(ordered))
            classes_of = Path(found[training[name]]) if name in training else None
            try:
                found[name] = str(self.find_dataset(data[name], classes_of))
            except ConfigError as error:
                if "--classes-of" not in str(error):
                    raise
                raise ConfigError(
                    f"{name} takes the classes of {training[name]}, as --classes-of does: {error}; "
                    "or serve it under a name that is no validation set's"
                ) from None
        return found

    def find_dataset(self, source: str, classes_of: Path | None = None) -> Path:
        """Return the folder of the dataset packed from ``source``, which may take hours.

        It has the classes of the dataset ``classes_of``, and is packed again if it has others; if
        one of both has no classes it is packed by itself. Raises ConfigError and DatasetError for
        what is no source, DatasetError for one that has changed, and ResourceError for a cache
        folder that is full or not writable.
        """
        entry = CacheEntry(self._folder, source)
        with explain_disk_errors("keeping packed sources in", self._folder, _REMEDY):
            record = entry.read_record()
            if record and not self._repack and self._is_usable(entry, record, classes_of):
                return entry.folder / record.folder
            recognise(source)  # what cannot be packed gets no entry
            if os.path.isdir(source) and is_inside(self._folder, Path(source)):
                raise ConfigError(
                    f"the folder for packed sources, {self._folder}, is inside the source "
                    f"{source}: give another one with --cache-dir"
                )
            with entry.locked(self._progress):
                before, record = record, entry.read_record()
                if record and record != before and self._is_usable(entry, record, classes_of):
                    return entry.folder / record.folder  # another process has packed it meanwhile
                return self._pack(entry, record, classes_of)

    def _is_usable(self, entry: CacheEntry, record: CacheRecord, classes_of: Path | None) -> bool:
        """Return whether to serve the packed copy, as the source is gone, or it and the classes
        are the same; DatasetError if the source or the copy has changed."""
        source = printable(path_to_text(entry.source))
        dataset = entry.folder / record.folder
        try:
            load_manifest(dataset)
        except DatasetError as error:
            raise DatasetError(
                f"the packed copy of {source} cannot be served ({error}): --repack packs it again"
            ) from None
        try:
            is_gone = not any(is_there(each.path) for each in record.stamp)
            change = "" if is_gone else self._find_change(entry, record.stamp)
        except StoreError as error:
            self._note(f"warning: {error}; serving {dataset}, which was packed from it")
            return True
        if is_gone:
            self._note(f"warning: {source} is gone: serving {dataset}, which was packed from it")
            return True
        if change:
            raise DatasetError(
                f"{source} has changed since it was packed ({change}): --repack packs it again"
            )
        self._note(f"{source} is packed in {dataset}")
        return not self._has_other_classes(dataset, classes_of)

    def _find_change(self, entry: CacheEntry, stamp: Stamp) -> str:
        """Return how the source differs from ``stamp``; empty if it does not. StoreError."""
        try:
            return describe_change(stamp, self._take_stamp(recognise(entry.source)))
        except StoreError:
            raise
        except FeederError as error:
            return str(error)

    def _has_other_classes(self, dataset: Path, classes_of: Path | None) -> bool:
        if classes_of is None:
            return False
        difference = describe_other_classes(load_manifest(dataset), load_manifest(classes_of))
        if difference:
            self._note(f"{dataset} has other classes than {classes_of}: {difference}")
        return bool(difference)

    def _pack(self, entry: CacheEntry, record: CacheRecord | None, classes_of: Path | None) -> Path:
        """Pack a source into its entry, which is locked; ``record`` is of the dataset there."""
        spec = recognise(entry.source)
        stamp = self._take_stamp(spec)
        dataset = entry.choose_folder(stamp, record)
        entry.remove_others(dataset, *([entry.folder / record.folder] if record else []))
        if _is_complete(dataset) and self._has_other_classes(dataset, classes_of):
            shutil.rmtree(dataset)
        if not _is_complete(dataset):
            try:
                self._pack_into(dataset, entry, spec, classes_of)
            except OtherPackingError:  # of other classes, files or a version: none to continue
                shutil.rmtree(dataset)
                self._pack_into(dataset, entry, spec, classes_of)
        change = self._find_change(entry, stamp)
        if change:
            raise DatasetError(
                f"{printable(spec.location)} has changed while it was packed ({change}): {_WAIT}"
            )
        entry.write_record(dataset, stamp)
        entry.remove_others(dataset)
        return dataset

    def _pack_into(
        self, dataset: Path, entry: CacheEntry, spec: SourceSpec, classes_of: Path | None
    ) -> None:
        if classes_of is not None and not load_manifest(classes_of).classes:
            classes_of = None
        classes = f" with the classes of {classes_of}" if classes_of else ""
        self._note(f"packing {printable(spec.location)} into {dataset}{classes}")
        options = dataclasses.replace(self._options, classes_of=classes_of)
        try:
            summary = pack_dataset(entry.source, dataset, options, self._progress, spec=spec)
        except OtherKindError as error:
            self._note(f"warning: {printable(spec.location)} is packed by itself ({error})")
            self._pack_into(dataset, entry, spec, None)
            return
        except SourceChangedError as error:
            raise DatasetError(f"{error.change}: {_WAIT}") from None
        except TooManyBadImages as error:
            raise DatasetError(
                f"{error}; that is an option of feeder pack: pack the source with it, and "
                "serve the dataset"
            ) from None
        self._report(dataset, summary)

    def _take_stamp(self, spec: SourceSpec) -> Stamp:
        due_s = time.monotonic() + _LINE_S

        def report(files: int) -> None:
            nonlocal due_s
            self._progress.advance(f"looking at its files: {files:,} so far")
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _LINE_S
                self._note(f"looking at {printable(spec.location)}: {files:,} files so far")

        labels = (spec.labels_file, spec.class_names_file)
        return take_stamp((*spec.containers, *filter(None, labels)), report)

    def _note(self, text: str) -> None:
        self._progress.note(f"feeder: {text}")


def _is_complete(dataset: Path) -> bool:
    """Return whether packing has ended, and only the record was not written."""
    state = dataset / WORK_FOLDER_NAME / STATE_NAME
    return (dataset / MANIFEST_NAME).exists() and not state.exists()
