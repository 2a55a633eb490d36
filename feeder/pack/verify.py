"""Verifies a dataset: manifest, quarantine list, every byte and every sample of every shard.

A change of any single byte in any file is found. The manifest has one canonical form and a
fingerprint, the quarantine list its checksum in the manifest. Of a shard, the header has a
checksum, records, label rows and names have the index checksum, each record and each blob has its
own, and padding between blobs must be zero. Each sample must also be consistent: its labels are of
the dataset's kind, its tiles decode to the content checksum in its record, and the complete JPEG
decodes without a warning, to the same pixels by both decoders.

Shards are checked by worker processes (see task_pool), which report each problem as one line: the
first of a sample, or of a shard whose header or index is not that of the manifest.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import msgspec
import numpy as np
import turbojpeg
from numpy.typing import NDArray

from feeder.dataset.content import content_fingerprint
from feeder.dataset.files import (
    DatasetFiles,
    Location,
    files_at,
    location_from_text,
    location_to_text,
)
from feeder.dataset.first_read import check_readable
from feeder.dataset.format import HEADER_BYTES, Oddity, aligned, checksum, record_is_intact
from feeder.dataset.manifest import (
    QUARANTINE_BYTES_MAX,
    QUARANTINE_NAME,
    Manifest,
    load_manifest,
)
from feeder.dataset.proven_shard import compare_header
from feeder.dataset.reader import ShardReader
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError, StoreError
from feeder.jpeg.crop_decode import check_blob, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_window
from feeder.jpeg.recode import MCU_PX, Subsampling
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import Report, ShardTask, run_tasks, shard_tasks
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.process.path_text import decode_name, printable

_NOT_IN_FORMER_RECORDS: Final = {*Oddity.PPM.kinds(), *Oddity.CLIPPED.kinds()}
"""Kinds that a repacked dataset only counts: records of shard format 2 had no bits for them."""
_SAMPLE_FIELDS: Final = ["width", "height", "subsampling", "label"]


def verify_dataset(
    location: Location, *, jobs: int, progress: ProgressLine
) -> tuple[Manifest, Iterator[str]]:
    """Load the manifest; return it and the problems, one line each, found as they are iterated.

    Raises DatasetError for a manifest that is missing or damaged.
    """
    check_readable({f"dataset {location}": location})
    files = files_at(location)
    manifest = load_manifest(files)
    setup = Setup(
        path=location_to_text(location),
        classes=len(manifest.classes),
        labels=manifest.labels,
        tile_width_px=manifest.tile_width_px,
    )
    return manifest, _find_problems(files, setup, manifest, jobs, progress)


def _find_problems(
    files: DatasetFiles, setup: "Setup", manifest: Manifest, jobs: int, progress: ProgressLine
) -> Iterator[str]:
    try:
        data = files.read(QUARANTINE_NAME, QUARANTINE_BYTES_MAX)
        if f"{checksum(data):016x}" != manifest.quarantine_xxh3:
            yield f"{QUARANTINE_NAME}: its checksum does not match"
    except OSError as error:
        yield f"{QUARANTINE_NAME}: it cannot be read ({error.strerror})"
    except StoreError as error:
        yield f"{QUARANTINE_NAME}: it cannot be read ({error})"
    odd: Counter[str] = Counter()
    subsampling: Counter[str] = Counter()
    is_damaged = False
    progress.begin("verifying", "samples", manifest.samples)
    tasks = shard_tasks(manifest)
    with closing(run_tasks("feeder.pack.verify", setup, tasks, jobs=jobs)) as messages:
        for message in messages:
            progress.count(message)
            odd.update(message.get("odd", {}))
            subsampling.update(message.get("subsampling", {}))
            if "problem" in message:
                is_damaged = True
                yield message["problem"]
    progress.end()
    if is_damaged:
        return
    counted = manifest.odd
    if manifest.former:
        counted = {kind: n for kind, n in counted.items() if kind not in _NOT_IN_FORMER_RECORDS}
    if (odd, subsampling) != (counted, manifest.subsampling):
        yield "manifest.json: its counts of odd kinds or subsamplings differ from the shards'"
    content = content_fingerprint(
        files,
        [entry.name for entry in manifest.shards],
        samples=manifest.samples,
        labels=manifest.labels,
        classes=manifest.classes,
    )
    if content != manifest.content:
        yield f"manifest.json: its content fingerprint does not match the shards, {content}"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a dataset share; the path as ``location_to_text`` writes it."""

    path: str
    classes: int
    labels: LabelSpec = INDEX_LABELS
    tile_width_px: int


Task = ShardTask


@functools.cache
def _open_files(location: str) -> DatasetFiles:
    return files_at(location_from_text(location))


def perform(setup: Setup, task: Task, report: Report) -> dict[str, Any]:
    """Check the shard; reports each "problem", returns the counts "odd" and "subsampling"."""
    counts: dict[str, Counter[str]] = {"odd": Counter(), "subsampling": Counter()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a decoder's warning is a problem
        try:
            files = _open_files(setup.path)
            with closing(ShardReader(files.open(task.entry.name))) as reader:
                for problem in _check_shard(reader, setup, task, report, counts):
                    report.send(problem=problem)
        except DatasetError as error:  # the file cannot be read to its end
            if isinstance(error, StoreError) and error.kind not in ("gone", "changed"):
                raise  # which says nothing of the file
            report.send(problem=str(error))
    return counts


def _check_shard(
    reader: ShardReader, setup: Setup, task: Task, report: Report, counts: dict[str, Counter[str]]
) -> Iterator[str]:
    """Yield the problems of a shard, in order; count its good samples."""
    shard, index = task.entry.name, reader.read_index()
    different = compare_header(reader, task.entry, task.number, setup.labels.stored_bytes)
    if different:
        yield f"{shard}: it differs from the manifest in its {different}"
        return
    if not index.is_intact:
        yield f"{shard}: the checksum of its records, labels and names does not match"
        return
    decoder = turbojpeg.TurboJPEG()
    blobs_end, names_end = HEADER_BYTES, 0
    for row, record in enumerate(index.records):
        report.add(count=1)
        blob_begin, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
        name_begin, name_bytes = int(record["name_offset"]), int(record["name_bytes"])
        try:
            if not record_is_intact(record.tobytes()):
                raise ValueError("its record is damaged")
            if not reader.holds_blob(blob_begin, blob_bytes):
                raise ValueError("its record points out of the shard")
            _check_padding(reader, blobs_end, blob_begin)
            if name_begin != names_end:
                raise ValueError("its name is not where it belongs")
            _check_fields(setup, index.records[row : row + 1], index.label_rows[row])
            blob = np.zeros(blob_bytes + READ_SLACK_BYTES, np.uint8)
            reader.file.read_into(blob_begin, blob.data[:blob_bytes])
            report.add(bytes=blob_bytes)
            _check_blob(record, blob.data[:blob_bytes], setup.tile_width_px)
            _decode(record, blob, decoder)
        except ValueError as error:
            name = printable(decode_name(index.name(record)))
            yield f"sample {task.first_sample + row} ({name}) in {shard}: {error}"
        else:
            counts["odd"].update(Oddity(int(record["flags"])).kinds())
            counts["subsampling"][Subsampling(int(record["subsampling"])).name.lower()] += 1
        blobs_end, names_end = blob_begin + blob_bytes, name_begin + name_bytes
    try:
        _check_padding(reader, blobs_end, reader.header.records_offset)
        if names_end != len(index.names):
            raise ValueError("its names do not end where its last sample's does")
    except ValueError as error:
        yield f"{shard}: after its last sample: {error}"


def _check_padding(reader: ShardReader, start: int, end: int) -> None:
    """Raise ValueError if zeros are not all between the blob before ``start`` and ``end``."""
    if end != aligned(start):
        raise ValueError("there is a gap or an overlap before it")
    gap = bytearray(end - start)
    reader.file.read_into(start, memoryview(gap))
    if any(gap):
        raise ValueError("the bytes between two samples are not zero")


def _check_fields(setup: Setup, record: NDArray[np.void], stored: NDArray[np.uint8]) -> None:
    """Raise ValueError for fields of ``record`` (1,) or a label row that no sample can have."""
    if find_inconsistent(record, setup.labels.count_record_labels(setup.classes)) is not None:
        width, height, subsampling, label = record[_SAMPLE_FIELDS][0]
        raise ValueError(
            f"no sample has {width} x {height} pixels, subsampling {subsampling} and class {label}"
        )
    fault = setup.labels.find_fault(stored.tobytes())
    if fault is not None:
        raise ValueError(fault)


def _check_blob(record: np.void, blob: memoryview, tile_width_px: int) -> None:
    """Raise ValueError for a contradiction between a sample's record and its blob."""
    if checksum(blob) != int(record["checksum"]):
        raise ValueError("its checksum does not match")
    width, height = int(record["width"]), int(record["height"])
    content_checksum, *size, mcu_width_px, mcu_height_px, tile_mcus = check_blob(blob)
    if size != [width, height]:
        raise ValueError(
            f"its blob is of {size[0]} x {size[1]} pixels, its record of {width} x {height}"
        )
    if (mcu_width_px, mcu_height_px) != MCU_PX[Subsampling(record["subsampling"])]:
        raise ValueError("its MCU size does not fit its subsampling")
    tile_px = tile_mcus * mcu_width_px
    if tile_mcus > 1 and tile_px > tile_width_px:
        raise ValueError(f"its tiles are {tile_px} px wide, the dataset's at most {tile_width_px}")
    if content_checksum != int(record["content_checksum"]):
        raise ValueError("its coefficients do not match the checksum in its record")


def _decode(record: np.void, blob: NDArray[np.uint8], decoder: turbojpeg.TurboJPEG) -> None:
    """Decode a blob, slack behind it, by both decoders; ValueError unless they agree."""
    blob_bytes = int(record["blob_bytes"])
    width, height = int(record["width"]), int(record["height"])
    mcu_width_px, mcu_height_px = MCU_PX[Subsampling(record["subsampling"])]
    window = (0, -(-width // mcu_width_px), 0, -(-height // mcu_height_px), width, height)
    try:
        jpeg = whole_jpeg(blob[:blob_bytes], record)
        pixels = decoder.decode(jpeg, pixel_format=turbojpeg.TJPF_RGBX)
        own = np.empty((height, width, 4), np.uint8)
        is_own = decode_window(blob, blob_bytes, window, 1, 4 * width, own.reshape(-1))
    except (OSError, ValueError, Warning) as error:
        raise ValueError(f"it does not decode ({error})") from None
    if is_own and not np.array_equal(own, pixels):
        raise ValueError(
            "its coefficients are beyond those of a picture, and Feeder's decoder makes other "
            "pixels of them than TurboJPEG: pack its source again, which converts it"
        )
