"""Checks one shard completely: the task of a verification's worker process (see task_pool).

Every byte of a shard is covered: the header by its checksum, records, label rows and names by the
index checksum, each record and each blob by its own, and padding between blobs must be zero. Each
sample must also be consistent: its labels are of the dataset's kind, its tiles decode to the
content checksum in its record, and the complete JPEG decodes without a warning, to the same pixels
by both decoders.
"""

import warnings
from collections import Counter
from typing import Any, Final

import msgspec
import numpy as np
import turbojpeg
from numpy.typing import NDArray

from feeder.dataset.format import (
    HEADER_BYTES,
    Oddity,
    aligned,
    checksum,
    record_is_intact,
)
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import check_blob, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_window
from feeder.jpeg.recode import MCU_PX, PIXELS_MAX, Subsampling
from feeder.pack.task_pool import Report
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.process.path_text import decode_name, path_from_text, printable

_DAMAGED_PADDING = "the bytes between two samples are not zero"
_REPORT_EVERY: Final = 32  # samples


class VerifySetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a dataset share."""

    path: str
    """As ``path_to_text`` writes it."""
    classes: int
    labels: LabelSpec = INDEX_LABELS
    tile_width_px: int


class VerifyTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard to check, and its manifest entry."""

    number: int
    first_sample: int
    entry: ShardEntry


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Check the shard; reports {"samples", "bytes"} and {"problem"}, returns the counts."""
    check = _ShardCheck(
        msgspec.convert(setup, VerifySetup), msgspec.convert(task, VerifyTask), report
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a decoder's warning is a problem
        check.run()
    return {
        **check.take_counts(),
        "odd": dict(check.odd),
        "subsampling": dict(check.subsampling),
    }


class _ShardCheck:
    def __init__(self, setup: VerifySetup, task: VerifyTask, report: Report) -> None:
        self._setup = setup
        self._task = task
        self._report = report
        self._decoder = turbojpeg.TurboJPEG()
        self._samples = self._bytes = 0
        self.odd: Counter[str] = Counter()
        self.subsampling: Counter[str] = Counter()

    def run(self) -> None:
        entry = self._task.entry
        try:
            reader = ShardReader(path_from_text(self._setup.path) / entry.name)
        except DatasetError as error:
            self._report({"problem": str(error)})
            return
        try:
            self._check_header(reader)
            self._check_samples(reader)
        except DatasetError as error:  # the file cannot be read to its end
            self._report({"problem": str(error)})
        finally:
            reader.close()

    def take_counts(self) -> dict[str, Any]:
        """Return the numbers of samples and bytes checked since the last call."""
        counts = {"samples": self._samples, "bytes": self._bytes}
        self._samples = self._bytes = 0
        return counts

    def _problem(self, what: str) -> None:
        self._report({"problem": f"{self._task.entry.name}: {what}"})

    def _sample_problem(self, row: int, name: str, what: str) -> None:
        sample = self._task.first_sample + row
        self._report(
            {"problem": f"sample {sample} ({printable(name)}) in {self._task.entry.name}: {what}"}
        )

    def _check_header(self, reader: ShardReader) -> None:
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

    def _check_samples(self, reader: ShardReader) -> None:
        records, label_rows, names, intact = reader.read_index()
        if not intact:
            self._problem("the checksum of its records, labels and names does not match")
        # where the next blob and name must begin; None after a damaged record
        blobs_end: int | None = HEADER_BYTES
        names_end: int | None = 0
        for row, record in enumerate(records):
            self._samples += 1
            if self._samples == _REPORT_EVERY:
                self._report(self.take_counts())
            if not record_is_intact(record.tobytes()):
                self._sample_problem(row, "name unknown", "its record is damaged")
                blobs_end = names_end = None
                continue
            offset = int(record["offset"])
            name = self._check_name(row, record, names, names_end)
            names_end = int(record["name_offset"]) + int(record["name_bytes"])
            if not reader.holds_blob(offset, int(record["blob_bytes"])):
                self._sample_problem(row, name, "its record points out of the shard")
                blobs_end = None
                continue
            if blobs_end is not None:
                self._check_padding(reader, blobs_end, offset, row, name)
            blobs_end = offset + int(record["blob_bytes"])
            self._check_labels(row, record, label_rows[row], name)
            self._check_sample(reader, row, record, name)
        if blobs_end is not None:
            self._check_padding(reader, blobs_end, reader.header.records_offset, -1, "")
        if names_end is not None and names_end != len(names):
            self._problem("it has names that belong to no sample")

    def _check_name(self, row: int, record: np.void, names: bytes, names_end: int | None) -> str:
        start = int(record["name_offset"])
        name = decode_name(names[start : start + int(record["name_bytes"])])
        if names_end not in (start, None) or start + int(record["name_bytes"]) > len(names):
            self._sample_problem(row, name, "its name is not where it belongs")
        return name

    def _check_padding(
        self, reader: ShardReader, start: int, end: int, row: int, name: str
    ) -> None:
        if end != aligned(start):
            what = "there is a gap or an overlap before it"
        else:
            gap = bytearray(end - start)
            reader.read_into(start, memoryview(gap))
            if not any(gap):
                return
            what = _DAMAGED_PADDING
        if row >= 0:
            self._sample_problem(row, name, what)
        else:
            self._problem(f"before its records: {what}")

    def _check_sample(self, reader: ShardReader, row: int, record: np.void, name: str) -> None:
        read = np.zeros(int(record["blob_bytes"]) + READ_SLACK_BYTES, np.uint8)
        blob = read.data[:-READ_SLACK_BYTES]
        reader.read_into(int(record["offset"]), blob)
        self._bytes += len(blob)
        if checksum(blob) != int(record["checksum"]):
            self._sample_problem(row, name, "its checksum does not match")
            return
        what = find_fault(record, blob, self._setup.tile_width_px) or self._decode(record, read)
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
