"""Verifies a dataset: manifest, quarantine list, every byte and every sample of every shard.

A change of any single byte in any file is found: the manifest has one canonical form and a
fingerprint, the quarantine list its checksum in the manifest; ``verify_shard`` covers the shards.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from feeder.dataset.content import content_fingerprint
from feeder.dataset.first_read import check_readable
from feeder.dataset.format import Oddity, checksum
from feeder.dataset.manifest import (
    QUARANTINE_BYTES_MAX,
    QUARANTINE_NAME,
    Manifest,
    load_manifest,
)
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import TaskPool
from feeder.pack.verify_shard import VerifySetup, VerifyTask
from feeder.process.path_text import path_to_text
from feeder.process.regular_file import read_regular

_NOT_IN_FORMER_RECORDS = {*Oddity.PPM.kinds(), *Oddity.CLIPPED.kinds()}
"""Kinds that a repacked dataset only counts: records of shard format 2 had no bits for them."""


@dataclass(slots=True)
class Verification:
    """One verification; iterate over ``problems`` to perform it."""

    path: Path
    manifest: Manifest
    jobs: int
    progress: ProgressLine

    @classmethod
    def open(cls, path: Path, *, jobs: int, progress: ProgressLine) -> "Verification":
        """Load the manifest; DatasetError if it is missing or damaged."""
        check_readable({f"dataset {path}": path})
        return cls(path, load_manifest(path), jobs, progress)

    def problems(self) -> Iterator[str]:
        """Check everything; yield each problem as one line that names the file or the sample."""
        yield from self._check_quarantine()
        setup = VerifySetup(
            path=path_to_text(self.path.absolute()),
            classes=len(self.manifest.classes),
            labels=self.manifest.labels,
            tile_width_px=self.manifest.tile_width_px,
        )
        odd: Counter[str] = Counter()
        subsampling: Counter[str] = Counter()
        found = 0
        self.progress.begin("verifying", "samples", self.manifest.samples)
        with TaskPool(
            "feeder.pack.verify_shard", msgspec.to_builtins(setup), jobs=self.jobs
        ) as pool:
            for _, kind, message in pool.run(self._tasks()):
                if "problem" in message:
                    found += 1
                    yield message["problem"]
                    continue
                self.progress.add(message["samples"], message["bytes"])
                if kind == "done":
                    odd.update(message["odd"])
                    subsampling.update(message["subsampling"])
        self.progress.end()
        if found:
            return
        manifest = self.manifest
        counted = manifest.odd
        if manifest.former:
            counted = {kind: n for kind, n in counted.items() if kind not in _NOT_IN_FORMER_RECORDS}
        if (odd, subsampling) != (counted, manifest.subsampling):
            yield "manifest.json: its counts of odd kinds or subsamplings differ from the shards'"
        content = content_fingerprint(
            [self.path / entry.name for entry in manifest.shards],
            samples=manifest.samples,
            labels=manifest.labels,
            classes=manifest.classes,
        )
        if content != manifest.content:
            yield f"manifest.json: its content fingerprint does not match the shards, {content}"

    def _tasks(self) -> Iterator[dict[str, object]]:
        first_sample = 0
        for number, entry in enumerate(self.manifest.shards):
            task = VerifyTask(number=number, first_sample=first_sample, entry=entry)
            yield msgspec.to_builtins(task)
            first_sample += entry.samples

    def _check_quarantine(self) -> Iterator[str]:
        path = self.path / QUARANTINE_NAME
        try:
            data = read_regular(path, QUARANTINE_BYTES_MAX)
        except OSError as error:
            yield f"{QUARANTINE_NAME}: it cannot be read ({error.strerror})"
            return
        if f"{checksum(data):016x}" != self.manifest.quarantine_xxh3:
            yield f"{QUARANTINE_NAME}: its checksum does not match"
