"""Verifies a dataset: manifest, quarantine list, every byte and every sample of every shard.

A change of any single byte in any file is found. The manifest has one canonical form and a
fingerprint, the quarantine list its checksum in the manifest. Of a shard, the header has a
checksum, records, label rows and names have the index checksum, each record and each blob has its
own, and padding between blobs must be zero. Each sample must also be consistent: its labels are of
the dataset's kind, its tiles decode to the content checksum in its record, and the complete JPEG
decodes without a warning, to the same pixels by both decoders.

Shards are checked by worker processes (see task_pool), which report each problem as one line.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import turbojpeg
from numpy.typing import NDArray

from feeder.dataset.content import content_fingerprint
from feeder.dataset.first_read import check_readable
from feeder.dataset.format import HEADER_BYTES, Oddity, aligned, checksum, record_is_intact
from feeder.dataset.manifest import (
    QUARANTINE_BYTES_MAX,
    QUARANTINE_NAME,
    Manifest,
    load_manifest,
)
from feeder.dataset.reader import ShardIndex, ShardReader
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import check_blob, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_window
from feeder.jpeg.recode import MCU_PX, PIXELS_MAX, Subsampling
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import Report, ShardTask, run_tasks, shard_tasks
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.process.path_text import decode_name, path_from_text, path_to_text, printable
from feeder.process.regular_file import read_regular

_NOT_IN_FORMER_RECORDS: Final = {*Oddity.PPM.kinds(), *Oddity.CLIPPED.kinds()}
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
        manifest = self.manifest
        setup = Setup(
            path=path_to_text(self.path.absolute()),
            classes=len(manifest.classes),
            labels=manifest.labels,
            tile_width_px=manifest.tile_width_px,
        )
        odd: Counter[str] = Counter()
        subsampling: Counter[str] = Counter()
        is_damaged = False
        self.progress.begin("verifying", "samples", manifest.samples)
        tasks = shard_tasks(manifest)
        with closing(run_tasks("feeder.pack.verify", setup, tasks, jobs=self.jobs)) as messages:
            for message in messages:
                self.progress.count(message)
                odd.update(message.get("odd", {}))
                subsampling.update(message.get("subsampling", {}))
                if "problem" in message:
                    is_damaged = True
                    yield message["problem"]
        self.progress.end()
        if is_damaged:
            return
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

    def _check_quarantine(self) -> Iterator[str]:
        try:
            data = read_regular(self.path / QUARANTINE_NAME, QUARANTINE_BYTES_MAX)
        except OSError as error:
            yield f"{QUARANTINE_NAME}: it cannot be read ({error.strerror})"
            return
        if f"{checksum(data):016x}" != self.manifest.quarantine_xxh3:
            yield f"{QUARANTINE_NAME}: its checksum does not match"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a dataset share; the path as ``path_to_text`` writes it."""

    path: str
    classes: int
    labels: LabelSpec = INDEX_LABELS
    tile_width_px: int


Task = ShardTask


def perform(setup: Setup, task: Task, report: Report) -> dict[str, Any]:
    """Check the shard; reports each "problem", returns the counts "odd" and "subsampling"."""
    check = _ShardCheck(setup, task, report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a decoder's warning is a problem
        try:
            reader = ShardReader(path_from_text(setup.path) / task.entry.name)
            try:
                check.check_header(reader)
                check.check_samples(reader)
            finally:
                reader.close()
        except DatasetError as error:  # the file cannot be read to its end
            report.send(problem=str(error))
    return {"odd": dict(check.odd), "subsampling": dict(check.subsampling)}


class _ShardCheck:
    def __init__(self, setup: Setup, task: Task, report: Report) -> None:
        self._setup = setup
        self._task = task
        self._report = report
        self._decoder = turbojpeg.TurboJPEG()
        self.odd: Counter[str] = Counter()
        self.subsampling: Counter[str] = Counter()

    def _problem(self, what: str) -> None:
        self._report.send(problem=f"{self._task.entry.name}: {what}")

    def _sample_problem(self, row: int, name: str, what: str) -> None:
        sample, shard = self._task.first_sample + row, self._task.entry.name
        self._report.send(problem=f"sample {sample} ({printable(name)}) in {shard}: {what}")

    def check_header(self, reader: ShardReader) -> None:
        entry, header = self._task.entry, reader.header
        if header.shard != self._task.number:
            self._problem(f"its header has shard number {header.shard}")
        if header.samples != entry.samples:
            self._problem(f"it holds {header.samples} samples, the manifest has {entry.samples}")
        if not reader.file_bytes == header.file_bytes == entry.bytes:
            self._problem(f"it has {reader.file_bytes} bytes, the manifest has {entry.bytes}")
        label_bytes = self._setup.labels.stored_bytes
        if header.samples and header.label_bytes != label_bytes:
            self._problem(
                f"it has {header.label_bytes} bytes of labels a sample, not {label_bytes}"
            )
        if f"{header.index_checksum:016x}" != entry.index_xxh3:
            self._problem("its index checksum differs from the manifest's")

    def check_samples(self, reader: ShardReader) -> None:
        index = reader.read_index()
        if not index.is_intact:
            self._problem("the checksum of its records, labels and names does not match")
        # where the next blob and name must begin; None after a damaged record
        blobs_end: int | None = HEADER_BYTES
        names_end: int | None = 0
        for row, record in enumerate(index.records):
            self._report.add(count=1)
            if not record_is_intact(record.tobytes()):
                self._sample_problem(row, "name unknown", "its record is damaged")
                blobs_end = names_end = None
                continue
            offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
            name = self._check_name(row, record, index, names_end)
            names_end = int(record["name_offset"]) + int(record["name_bytes"])
            if not reader.holds_blob(offset, blob_bytes):
                self._sample_problem(row, name, "its record points out of the shard")
                blobs_end = None
                continue
            if blobs_end is not None:
                what = _check_padding(reader, blobs_end, offset)
                if what is not None:
                    self._sample_problem(row, name, what)
            blobs_end = offset + blob_bytes
            self._check_labels(row, record, index.label_rows[row], name)
            self._check_sample(reader, row, record, name)
        if blobs_end is not None:
            what = _check_padding(reader, blobs_end, reader.header.records_offset)
            if what is not None:
                self._problem(f"before its records: {what}")
        if names_end is not None and names_end != len(index.names):
            self._problem("it has names that belong to no sample")

    def _check_name(
        self, row: int, record: np.void, index: ShardIndex, names_end: int | None
    ) -> str:
        start = int(record["name_offset"])
        name = decode_name(index.name(record))
        if names_end not in (start, None) or start + record["name_bytes"] > len(index.names):
            self._sample_problem(row, name, "its name is not where it belongs")
        return name

    def _check_sample(self, reader: ShardReader, row: int, record: np.void, name: str) -> None:
        read = np.zeros(int(record["blob_bytes"]) + READ_SLACK_BYTES, np.uint8)
        blob = read.data[:-READ_SLACK_BYTES]
        reader.read_into(int(record["offset"]), blob)
        self._report.add(bytes=len(blob))
        what: str | None = "its checksum does not match"
        if checksum(blob) == int(record["checksum"]):
            what = find_fault(record, blob, self._setup.tile_width_px)
            what = what or self._decode(record, read)
        if what is not None:
            self._sample_problem(row, name, what)
            return
        self.odd.update(Oddity(int(record["flags"])).kinds())
        self.subsampling[Subsampling(int(record["subsampling"])).name.lower()] += 1

    def _check_labels(
        self, row: int, record: np.void, stored: NDArray[np.uint8], name: str
    ) -> None:
        labels, label = self._setup.labels, int(record["label"])
        if label >= labels.count_record_labels(self._setup.classes):
            self._sample_problem(row, name, f"there is no class {label}")
        if len(stored) == labels.stored_bytes:  # else the header's problem
            what = labels.find_fault(stored.tobytes())
            if what is not None:
                self._sample_problem(row, name, what)

    def _decode(self, record: np.void, read: NDArray[np.uint8]) -> str | None:
        """Decode the blob at the start of ``read`` with both decoders; return a problem or None."""
        blob_bytes = int(record["blob_bytes"])
        width, height = int(record["width"]), int(record["height"])
        mcu_width_px, mcu_height_px = MCU_PX[Subsampling(record["subsampling"])]
        window = (0, -(-width // mcu_width_px), 0, -(-height // mcu_height_px), width, height)
        try:
            jpeg = whole_jpeg(read[:blob_bytes], record)
            pixels = self._decoder.decode(jpeg, pixel_format=turbojpeg.TJPF_RGBX)
            if pixels.shape[:2] != (height, width):
                shown_height, shown_width = pixels.shape[:2]
                return (
                    f"it decodes to {shown_width} x {shown_height} pixels, its record has "
                    f"{width} x {height}"
                )
            own = np.empty_like(pixels)
            is_own = decode_window(read, blob_bytes, window, 1, 4 * width, own.reshape(-1))
        except (OSError, ValueError, Warning) as error:
            return f"it does not decode ({error})"
        if is_own and not np.array_equal(own, pixels):
            return (
                "its coefficients are beyond those of a picture, and Feeder's decoder makes other "
                "pixels of them than TurboJPEG: pack its source again, which converts it"
            )
        return None


def _check_padding(reader: ShardReader, start: int, end: int) -> str | None:
    """Return what is wrong between a blob that ends at ``start`` and what begins at ``end``."""
    if end != aligned(start):
        return "there is a gap or an overlap before it"
    gap = bytearray(end - start)
    reader.read_into(start, memoryview(gap))
    return "the bytes between two samples are not zero" if any(gap) else None


def find_fault(record: np.void, blob: bytes | memoryview, tile_width_px: int) -> str | None:
    """Return the first contradiction between a sample's record and its blob, or None."""
    width, height = int(record["width"]), int(record["height"])
    subsampling = int(record["subsampling"])
    if subsampling not in MCU_PX:
        return f"there is no subsampling {subsampling}"
    if not width or not height:
        return "its size is zero"
    if width * height > PIXELS_MAX:
        return f"it has more than {PIXELS_MAX} pixels"
    try:
        content_checksum, *size, mcu_width_px, mcu_height_px, tile_mcus = check_blob(blob)
    except ValueError as error:
        return str(error)
    if size != [width, height]:
        return f"its blob is of {size[0]} x {size[1]} pixels, its record of {width} x {height}"
    if (mcu_width_px, mcu_height_px) != MCU_PX[Subsampling(subsampling)]:
        return "its MCU size does not fit its subsampling"
    tile_px = tile_mcus * mcu_width_px
    if tile_mcus > 1 and tile_px > tile_width_px:
        return f"its tiles are {tile_px} px wide, the dataset's at most {tile_width_px}"
    if content_checksum != int(record["content_checksum"]):
        return "its coefficients do not match the checksum in its record"
    return None
