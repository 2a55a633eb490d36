"""Opens a container for reading: a file at any position, or the content of .gz, .zst and pipes.

What a file is depends on its first bytes, not on its name. Content that is decompressed or comes
through a pipe can be read forward only, and is not held in memory.

Invariant: a compressed stream that ends early, is damaged or is followed by something else raises
DamagedStream; it never just ends.
"""

import contextlib
import errno
import functools
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular
from feeder.source.kinds import missing_extra
from feeder.source.location.file_format import GZIP, UNPACK, is_zlib, is_zstd, recognise_other
from feeder.source.location.storage import check_listed

_START_BYTES: Final = 12
_PIECE_BYTES: Final = 1 << 18
_ZSTD_PIECE_BYTES: Final = 1 << 10  # may hold 256 blocks, of 128 KiB of content each
_HEADER_BUFFER_BYTES: Final = 8192  # a tar's header and the small member after it


class DamagedStream(DatasetError):  # noqa: N818 -- names what happened
    """Raised when content cannot be read or decompressed any further."""


class _Stored(io.RawIOBase):
    """The bytes of a file or pipe as they are stored."""

    def __init__(self, descriptor: int, where: str) -> None:
        status = os.fstat(descriptor)
        self._descriptor, self._where = descriptor, where
        self.size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
        self._position = 0

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer; from a pipe until it is full, so that peek sees enough of it."""
        at = self._position
        try:
            if self.size_bytes is not None:
                self._position += os.preadv(self._descriptor, [buffer], at)
                return self._position - at
            while self._position - at < len(buffer):
                data = os.read(self._descriptor, len(buffer) - (self._position - at))
                if not data:
                    break
                filled = self._position - at
                buffer[filled : filled + len(data)] = data
                self._position += len(data)
        except OSError as error:
            raise DamagedStream(
                f"{self._where} cannot be read at byte {self._position}: {error.strerror}"
            ) from None
        return self._position - at

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or self.size_bytes is None:
            raise io.UnsupportedOperation
        self._position = min(position, self.size_bytes)
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.size_bytes is not None


class FileContent(io.BufferedReader):
    """The content of a regular file as it is stored; reading raises DamagedStream."""

    def __init__(self, stored: _Stored, where: str) -> None:
        super().__init__(stored, _HEADER_BUFFER_BYTES)
        self.where = where
        """The container's path, for messages."""
        self.size_bytes = stored.size_bytes
        """Its size; None of a stream, which cannot be read again at packing."""
        self.stored_bytes = stored.size_bytes or 0
        """The size of the container's file; 0 of a pipe."""

    def read_exactly(self, size: int, form: str) -> bytes:
        """Return the next ``size`` bytes; DamagedStream if the stream of this form has fewer."""
        data = self.read(size)
        if len(data) < size:
            raise self.fault(f"is cut at byte {self.tell()}: its {form} stream ends too early")
        return data

    def damaged(self, what: str) -> DamagedStream:
        return self.fault(f"is damaged at byte {self.tell()}: {what}")

    def fault(self, what: str) -> DamagedStream:
        return DamagedStream(f"{self.where} {what}: copy it again, or make it again")


class StreamContent:
    """Content that comes in pieces and can be read once, forward; else as ``FileContent``."""

    size_bytes = None

    def __init__(self, pieces: Iterator[bytes], stored: FileContent) -> None:
        self.where, self.stored_bytes = stored.where, stored.stored_bytes
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._position = 0

    def read(self, size: int, /) -> bytes:
        if size <= len(self._piece):
            data = bytes(self._piece[:size])
            self._piece = self._piece[size:]
        else:
            data = b"".join(self._take(size))
        self._position += len(data)
        return data

    def seek(self, position: int, /) -> int:
        if position < self._position:
            raise ValueError("a stream cannot go back")
        for part in self._take(position - self._position):
            self._position += len(part)
        return self._position

    def tell(self) -> int:
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


Content = FileContent | StreamContent


@contextlib.contextmanager
def open_container(
    path: Path, listed: int | None = None, *, is_plain: Callable[[bytes], bool] | None = None
) -> Iterator[Content]:
    """Open the file or named pipe ``path`` for its content, decompressed.

    ``is_plain`` is given for a format that may be compressed as ZLIB, which has no magic number: it
    returns whether the first 12 bytes are those of the format itself. Raises DatasetError if the
    file cannot be opened or is compressed in another way, ResourceError without the library for its
    compression. At the end SourceChangedError is raised unless it has the stamp ``listed``.
    """
    where = printable(path_to_text(path))
    try:
        # A pipe is not opened twice: its writer would write to the first reader.
        flags = os.O_RDONLY | os.O_CLOEXEC
        descriptor = os.open(path, flags) if path.is_fifo() else open_regular(path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise DatasetError(f"{where} cannot be opened: {error.strerror}") from None
    try:
        stored = FileContent(_Stored(descriptor, where), where)
        start = stored.peek(_START_BYTES)[:_START_BYTES]
        what, remedy = recognise_other(start)
        if remedy == UNPACK:
            raise DatasetError(f"{where} is {what}: {remedy}")
        content: Content = stored
        if start.startswith(GZIP):
            content = StreamContent(_decompress(stored, "gzip"), stored)
        elif is_zstd(start):
            content = StreamContent(_decompress(stored, "zstd"), stored)
        elif is_plain is not None and is_zlib(start) and not is_plain(start):
            content = StreamContent(_decompress(stored, "ZLIB"), stored)
        elif stored.size_bytes is None:
            content = StreamContent(iter(lambda: stored.read(_PIECE_BYTES), b""), stored)
        try:
            yield content
        finally:
            check_listed(os.fsencode(path), listed, descriptor)
    finally:
        os.close(descriptor)


def _decompress(stored: FileContent, form: str) -> Iterator[bytes]:
    """Yield the content of all members of a gzip file, of a ZLIB stream, or of all zstd frames."""
    errors: type[Exception] = zlib.error
    start: Callable[[], Any] = functools.partial(zlib.decompressobj, 32 + zlib.MAX_WBITS)
    size = _PIECE_BYTES
    is_zstd = form == "zstd"
    if is_zstd:
        try:
            import zstandard
        except ImportError:
            raise missing_extra(stored.where, "zstandard", "zstd") from None
        errors, start = zstandard.ZstdError, zstandard.ZstdDecompressor().decompressobj
        size = _ZSTD_PIECE_BYTES
    data = stored.read(size)
    while data:
        engine = start()
        while not engine.eof:
            data = data or stored.read1(size) or stored.read_exactly(1, form)
            try:
                piece = engine.decompress(data) if is_zstd else engine.decompress(data, size)
            except errors as error:
                reason = str(error).rpartition(": ")[2]
                raise stored.damaged(f"its {form} stream has an error ({reason})") from None
            data = engine.unconsumed_tail
            if piece:
                yield piece
        data = engine.unused_data.lstrip(b"\x00")  # padding, as on tapes
        while not data and (more := stored.read(size)):
            data = more.lstrip(b"\x00")
