"""Finds the dataset behind each thing to serve, and packs the sources that are not packed yet.

    a folder that feeder pack wrote        served as it is
    a source, packed before, unchanged     its copy in the cache folder, at once
    a source, packed before, changed       an error; with repack it is packed again
    a source, packed before, now gone      its copy, after a warning
    any other source                       packed into the cache folder

A source that another process is packing is waited for. A stop or kill at any moment loses no
finished shard: the next start resumes.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, load_manifest
from feeder.errors import ConfigError, DatasetError, FeederError
from feeder.pack.bad_share import TooManyBadImages
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import PackSummary, pack_dataset
from feeder.pack.work_folder import STATE_NAME
from feeder.pack_cache.entry import CacheEntry, CacheRecord
from feeder.pack_cache.stamp import Stamp, describe_change, take_stamp
from feeder.process.disk_errors import explain_disk_errors, is_inside
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.source.recognise import recognise
from feeder.source.source import SourceSpec

_REMEDY: Final = "start again to resume, or give another folder with --cache-dir"
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
        progress: ProgressLine,
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

    def find_dataset(self, source: str) -> Path:
        """Return the folder of the dataset packed from ``source``, which may take hours.

        Raises ConfigError and DatasetError for what is no source, DatasetError for one that has
        changed, and ResourceError for a cache folder that is full or not writable.
        """
        entry = CacheEntry(self._folder, source)
        record = entry.read_record()
        repack = self._repack
        with explain_disk_errors("keeping packed sources in", self._folder, _REMEDY):
            while record is None or repack:
                self._check_source(source)
                with entry.locked(self._note):
                    before, record = record, entry.read_record()
                    if record == before:
                        return self._pack(entry, record)
                repack = False  # another process has packed it meanwhile
        self._check(entry, record)
        return entry.folder / record.folder

    def _check_source(self, source: str) -> None:
        """Raise an error for what cannot be packed, before an entry is made for it."""
        recognise(source)
        if os.path.isdir(source) and is_inside(self._folder, Path(source)):
            raise ConfigError(
                f"the folder for packed sources, {self._folder}, is inside the source {source}: "
                "give another one with --cache-dir"
            )

    def _check(self, entry: CacheEntry, record: CacheRecord) -> None:
        """Raise DatasetError unless the packed copy is whole and the source as it was."""
        source = printable(path_to_text(entry.source))
        dataset = entry.folder / record.folder
        try:
            load_manifest(dataset)
        except DatasetError as error:
            raise DatasetError(
                f"the packed copy of {source} cannot be served ({error}): --repack packs it again"
            ) from None
        if not any(os.path.lexists(path_from_text(each.path)) for each in record.stamp):
            self._note(f"warning: {source} is gone: serving {dataset}, which was packed from it")
            return
        try:
            change = describe_change(record.stamp, self._take_stamp(recognise(entry.source)))
        except FeederError as error:
            change = str(error)
        if change:
            raise DatasetError(
                f"{source} has changed since it was packed ({change}): --repack packs it again"
            )
        self._note(f"{source} is packed in {dataset}")

    def _pack(self, entry: CacheEntry, record: CacheRecord | None) -> Path:
        """Pack a source into its entry, which is locked; ``record`` is of the dataset there."""
        spec = recognise(entry.source)
        stamp = self._take_stamp(spec)
        dataset = entry.choose_folder(stamp, record)
        entry.remove_others(dataset, *([entry.folder / record.folder] if record else []))
        if not _is_complete(dataset):
            self._note(f"packing {printable(spec.location)} into {dataset}")
            try:
                summary = pack_dataset(
                    entry.source, dataset, self._options, self._progress, spec=spec
                )
            except TooManyBadImages as error:
                raise DatasetError(
                    f"{error}; that is an option of feeder pack: pack the source with it, and "
                    "serve the dataset"
                ) from None
            self._report(dataset, summary)
        entry.write_record(dataset, stamp)
        entry.remove_others(dataset)
        return dataset

    def _take_stamp(self, spec: SourceSpec) -> Stamp:
        due_s = time.monotonic() + _LINE_S

        def report(files: int) -> None:
            nonlocal due_s
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
