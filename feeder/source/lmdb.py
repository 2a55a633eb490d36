"""LMDB files with an image at each key: its bytes, or Caffe's Datum with its label.

    n01440764/x.JPEG    the bytes of an image, whose class is the folder
    00000017_x.JPEG     Datum, a protobuf message
    __len__             metadata, left out

A value is contiguous in the file, so images are read at their offsets, without LMDB. Only pages of
keys are read through LMDB's memory map. A page behind the end of the file would end the process by
SIGBUS, a damaged one by SIGABRT, so lmdb.verify, which maps nothing, checks all of them first
(28 µs a key).
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.source.item_bytes import SNIFF_BYTES, SourceError, describe_foreign, sniff_format
from feeder.source.kinds import Kind, missing_extra
from feeder.source.listing import ItemListing
from feeder.source.location.storage import StoredFile
from feeder.source.source import ContainerSource
from feeder.source.tf_example import BadExample, read_datum

_METADATA: Final = re.compile(rb"__\w+__|num[-_]samples|length")
_BINARY: Final = re.compile(rb"[\0-\x1f\x7f]")
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_DATABASE_BYTES: Final = 48  # of the value that stands for a named database
_DATUM_BYTES_MAX: Final = 1 << 30
_NO_LABEL: Final = "neither a Datum nor its key has a label (--label-kind none packs it without)"
_IN_PYTHON: Final = "read it in Python, and give its images to feeder.pack_samples"


class LmdbFiles(ContainerSource):
    """LMDB files; see ``Source``."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the values of a file; ResourceError without the package lmdb; see ``Source``."""
        where, prefix = self.where(container), self.prefix(container)
        metadata = 0
        listing.about.base = self._spec.label_base or 0
        with StoredFile(listing.copy or self.path(container), listing.stamp) as file:
            for key, at, size_bytes in _walk(file, where):
                if _METADATA.fullmatch(key):
                    metadata += 1
                    continue
                text = key.hex() if _BINARY.search(key) else decode_name(key)
                parts = [part for part in text.split("/") if part not in ("", ".")]
                name = prefix + "/".join(parts)
                try:
                    if not parts or ".." in parts:
                        raise SourceError("bad-name", "its key has .. or is empty")
                    at, size_bytes, label = _find_image(file, at, size_bytes)
                    if label is None and len(parts) == 2:  # more folders could be read in two ways
                        label, listing.about.by_name = parts[0], True
                    if label is None and self._spec.label_kind != "none":
                        raise SourceError("no-label", _NO_LABEL)
                except SourceError as error:
                    listing.reject(name, error.kind, error.reason)
                else:
                    listing.add(name, label, offset=at, size_bytes=size_bytes)
        if metadata:
            listing.note(f"{where}: keys left out as metadata: {metadata:,}")


def _find_image(file: StoredFile, at: int, size_bytes: int) -> tuple[int, int, int | str | None]:
    """Return offset, size and label of the image of a value; SourceError where it has none."""
    label = None
    start = file.read(at, min(size_bytes, SNIFF_BYTES))
    if _PICKLE.match(start):
        raise SourceError("unsupported", f"a pickle, which can run any code: {_IN_PYTHON}")
    if start and not sniff_format(start):
        data = file.read(at, min(size_bytes, _DATUM_BYTES_MAX))
        with contextlib.suppress(BadExample):
            if datum := read_datum(data):
                first, stop, label, is_encoded = datum
                if not is_encoded:
                    raise SourceError("unsupported", "a Datum of raw pixels: encode its images")
                at, size_bytes, start = at + first, stop - first, data[first:stop][:SNIFF_BYTES]
    if not start:
        raise SourceError("empty", "its image has no bytes")
    if not sniff_format(start):
        raise describe_foreign(start)
    return at, size_bytes, label


def _walk(file: StoredFile, where: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield key, offset and size of each value; DatasetError where the file is damaged."""
    try:
        import lmdb
        from lmdb.verify import VerifyError, verify
    except ModuleNotFoundError:
        raise missing_extra("LMDB", "lmdb>=3", "lmdb") from None
    path = f"/proc/self/fd/{file.descriptor}"  # the file that was opened, if it is replaced now
    try:
        problems = [each for each in verify(path, False) if "freeDB" not in each]
        if problems:  # in what is read; a wrong list of free pages does no harm
            raise VerifyError(problems[0])
        with (
            lmdb.open(
                path, subdir=False, readonly=True, lock=False, readahead=False, max_dbs=1
            ) as db,
            db.begin(buffers=True) as transaction,
        ):
            base = 0
            for key, value in transaction.cursor():
                if len(value) == _DATABASE_BYTES:
                    with contextlib.suppress(lmdb.Error):
                        db.open_db(bytes(key), txn=transaction, create=False)
                        name = ascii(bytes(key))[1:]
                        raise DatasetError(f"{where} holds the database {name}: {_IN_PYTHON}")
                address = np.frombuffer(value, np.uint8).ctypes.data if value else base
                base = base or (_map_start(address) if value else 0)
                yield bytes(key), address - base, len(value)
    except (lmdb.Error, VerifyError) as error:
        reason = printable(str(error)).removeprefix(f"{path}: ")
        raise DatasetError(f"{where} is cut or damaged: {reason}: copy it again") from None


def _map_start(address: int) -> int:
    """Return the start of the memory map with this address; the file's first byte is there."""
    with open("/proc/self/maps", errors="replace") as maps:
        starts = [int(line.partition("-")[0], 16) for line in maps]
    return max(start for start in starts if start <= address)


KINDS: Final = {
    "lmdb": Kind(
        open=LmdbFiles,
        labels="in Caffe's Datums or in keys CLASS/NAME",
        takes="label-base float",
        what="an LMDB file",
        plural="LMDB files",
        suffixes=("lmdb",),
        names=r"^data\.mdb$",
        matches=lambda start, name: start[16:20] == b"\xde\xc0\xef\xbe",
    )
}
