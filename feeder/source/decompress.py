"""Opens a container for reading: a file at any position, or the content of .gz, .zst and pipes.

What a file is depends on its first bytes, not on its name. Content that is decompressed or comes
through a pipe can be read forward only, and is not held in memory.

Invariant: a compressed stream that ends early, is damaged or is followed by something else raises
DamagedStream; it never just ends.
"""

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from feeder.errors import DatasetError, ResourceError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular
from feeder.source.item_bytes import check_listed

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a byte 0x50 .. 0x5F; pzstd's files begin with it
_OTHERS: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}
_READ_BYTES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 18
_HEADER_BUFFER_BYTES: Final = 8192  # a tar's header and the small member after it

_NO_ZSTD: Final = "a .zst file needs the package zstandard: pip install zstandard (the extra zstd)"


class DamagedStream(DatasetError):  # noqa: N818 -- names what happened
    """Raised when content cannot be read or decompressed any further."""


class Content(Protocol):
    """Content that is read forward, of ``size_bytes`` bytes where that is known."""

    @property
    def is_seekable(self) -> bool:
        """Whether it can be read in any order, and so again at packing."""

    @property
    def size_bytes(self) -> int | None:
        """None for a stream, whose size is never known."""

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; DamagedStream."""

    def seek(self, position: int) -> None:
        """Continue at ``position``, at most at the end; backwards only if ``is_seekable``."""

    def tell(self) -> int:
        """Return the position."""


class FileContent:
    """A regular file."""

    is_seekable = True

    def __init__(self, descriptor: int, where: str) -> None:
        self._descriptor = descriptor
        self._where = where
        self.size_bytes = os.fstat(descriptor).st_size
        self._position = 0
        self._buffer = b""
        self._buffer_at = 0

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; DamagedStream."""
        at = self._position - self._buffer_at
        if at < 0 or at + size > len(self._buffer):
            if size >= _HEADER_BUFFER_BYTES:
                data = self._pread(size, self._position)
                self._position += len(data)
                return data
            self._buffer = self._pread(_HEADER_BUFFER_BYTES, self._position)
            self._buffer_at, at = self._position, 0
        data = self._buffer[at : at + size]
        self._position += len(data)
        return data

    def seek(self, position: int) -> None:
        """Continue at ``position``, at most at the end."""
        self._position = min(position, self.size_bytes)

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def _pread(self, size: int, position: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            try:
                part = os.pread(self._descriptor, min(size, 1 << 30), position)
            except OSError as error:
                raise DamagedStream(
                    f"{self._where} cannot be read at byte {position}: {error.strerror}"
                ) from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
            position += len(part)
        return b"".join(parts)


class StreamContent:
    """Content that comes in pieces and can be read once."""

    is_seekable = False
    size_bytes = None

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; DamagedStream."""
        if size <= len(self._piece):
            data = bytes(self._piece[:size])
            self._piece = self._piece[size:]
        else:
            data = b"".join(self._take(size))
        self._position += len(data)
        return data

    def seek(self, position: int) -> None:
        """Continue at ``position``, at most at the end."""
        if position < self._position:
            raise ValueError("a stream cannot go back")
        for part in self._take(position - self._position):
            self._position += len(part)

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def _take(self, size: int) -> Iterator[memoryview]:
        while size > 0:
            if not self._piece:
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._piece = memoryview(piece)
            part, self._piece = self._piece[:size], self._piece[size:]
            size -= len(part)
            yield part


class OpenContainer:
    """A container's content, decompressed; a context manager that closes its file."""

    def __init__(self, path: Path, listed: int | None = None) -> None:
        """Open the file or named pipe ``path``.

        Raises DatasetError if it cannot be opened or is compressed in another way, ResourceError
        without the library for its compression. At the end SourceChangedError is raised unless it
        has the stamp ``listed``.
        """
        self._path, self._listed = path, listed
        self.where = printable(path_to_text(path))
        self._descriptor = _open(path, self.where)
        try:
            raw = _RawBytes(self._descriptor, self.where)
            self.stored_bytes = raw.size_bytes
            """The size of the file; 0 of a pipe."""
            self.content: Content = _decompressed(raw, self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            check_listed(os.fsencode(self._path), self._listed, self._descriptor)
        finally:
            os.close(self._descriptor)


class _RawBytes:
    """The bytes of a file or pipe as they are stored."""

    def __init__(self, descriptor: int, where: str) -> None:
        status = os.fstat(descriptor)
        self._descriptor = descriptor
        self.where = where
        self.is_file = stat.S_ISREG(status.st_mode)
        self.size_bytes = status.st_size if self.is_file else 0
        self.position = 0
        """Of the next byte to be read; bytes that were put back are before it."""
        self._put_back = b""
        self.start = self.read_exactly(8)
        self.put_back(self.start)

    def read(self, size: int = _READ_BYTES) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        if self._put_back:
            data, self._put_back = self._put_back[:size], self._put_back[size:]
        else:
            try:
                data = os.read(self._descriptor, size)
            except OSError as error:
                raise DamagedStream(
                    f"{self.where} cannot be read at byte {self.position}: {error.strerror}"
                ) from None
        self.position += len(data)
        return data

    def read_exactly(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        data = self.read(size)
        while len(data) < size and (more := self.read(size - len(data))):
            data += more
        return data

    def put_back(self, data: bytes) -> None:
        self._put_back = data + self._put_back
        self.position -= len(data)

    def damaged(self, what: str) -> DamagedStream:
        return self._fault(f"is damaged at byte {self.position}: {what}")

    def cut(self, form: str) -> DamagedStream:
        return self._fault(f"is cut at byte {self.position}: its {form} stream ends too early")

    def _fault(self, what: str) -> DamagedStream:
        return DamagedStream(f"{self.where} {what}: copy it again, or make it again")


def _open(path: Path, where: str) -> int:
    try:
        if path.is_fifo():  # not to be opened twice: its writer would write to the first reader
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return open_regular(path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise DatasetError(f"{where} cannot be opened: {error.strerror}") from None


def _decompressed(raw: _RawBytes, descriptor: int) -> Content:
    start = raw.start
    if start.startswith(_GZIP):
        return StreamContent(_gunzip(raw))
    if start.startswith(_ZSTD) or (start[1:4] == _ZSTD_SKIPPABLE and start[0] & 0xF0 == 0x50):
        return StreamContent(_unzstd(raw))
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise DatasetError(
                f"{raw.where} is compressed with {name}: decompress it, or use gzip or zstd"
            )
    if raw.is_file:
        return FileContent(descriptor, raw.where)
    return StreamContent(iter(raw.read, b""))


def _gunzip(raw: _RawBytes) -> Iterator[bytes]:
    """Yield the content of all members of a gzip file."""
    data = raw.read()
    while data:
        engine = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while not engine.eof:
            data = data or raw.read()
            if not data:
                raise raw.cut("gzip")
            try:
                piece = engine.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                reason = str(error).rpartition(": ")[2]
                raise raw.damaged(f"its gzip stream has an {reason}") from None
            data = engine.unconsumed_tail
            if piece:
                yield piece
        data = engine.unused_data.lstrip(b"\x00")  # padding, as on tapes
        while not data and (more := raw.read()):
            data = more.lstrip(b"\x00")


def _unzstd(raw: _RawBytes) -> Iterator[bytes]:
    """Yield the content of all frames of a zstd file."""
    try:
        import zstandard
    except ImportError:
        raise ResourceError(f"{raw.where}: {_NO_ZSTD}") from None
    while magic := raw.read_exactly(4):
        if magic[1:] == _ZSTD_SKIPPABLE and magic[0] & 0xF0 == 0x50:
            _skip_frame(raw)
            continue
        if magic != _ZSTD:
            raise raw.damaged("a zstd frame is followed by something else")
        engine = zstandard.ZstdDecompressor().decompressobj()
        for block in _zstd_blocks(raw):
            try:
                piece = engine.decompress(block)
            except zstandard.ZstdError as error:
                reason = str(error).rpartition(": ")[2]
                raise raw.damaged(f"its zstd stream has an error ({reason})") from None
            if piece:
                yield piece


def _zstd_blocks(raw: _RawBytes) -> Iterator[bytes]:
    """Yield a zstd frame after its magic, a block at a time, as RFC 8878 defines it.

    A block has at most 128 KiB of content, so what is decompressed from it is bounded; and a frame
    whose last block was read is complete, which the library would not report.
    """

    def read(size: int) -> bytes:
        data = raw.read_exactly(size)
        if len(data) < size:
            raise raw.cut("zstd")
        return data

    descriptor = read(1)
    is_single_segment, has_checksum = descriptor[0] & 0x20, descriptor[0] & 0x04
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor[0] >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor[0] & 3]
    window_bytes = 0 if is_single_segment else 1
    yield _ZSTD + descriptor + read(window_bytes + dictionary_bytes + size_bytes)
    is_last = False
    while not is_last:
        head = read(3)
        fields = int.from_bytes(head, "little")
        is_last, is_repeated, size = bool(fields & 1), fields >> 1 & 3 == 1, fields >> 3
        yield head + read(1 if is_repeated else size)
    if has_checksum:
        yield read(4)


def _skip_frame(raw: _RawBytes) -> None:
    length = raw.read_exactly(4)
    size = int.from_bytes(length, "little")
    while len(length) == 4 and size:
        data = raw.read(min(size, _READ_BYTES))
        if not data:
            break
        size -= len(data)
    if len(length) < 4 or size:
        raise raw.cut("zstd")
