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
from typing import Any, Final

from feeder.errors import DatasetError
from feeder.source.kinds import missing_extra
from feeder.source.location.file_format import GZIP, UNPACK, is_zlib, is_zstd, recognise_other
from feeder.source.location.objects import ObjectFile
from feeder.source.location.storage import (
    FilePath,
    StoredFile,
    encode_path,
    is_url,
    open_stored,
    show_path,
)

_START_BYTES: Final = 12
_PIECE_BYTES: Final = 1 << 18
_ZSTD_PIECE_BYTES: Final = 1 << 10  # may hold 256 blocks, of 128 KiB of content each
_BUFFER_BYTES: Final = 8192  # a tar's header and the small member after it


class DamagedStream(DatasetError):  # noqa: N818 -- names what happened
    """Raised when content cannot be read or decompressed any further."""


class _Stored(io.FileIO):
    """The bytes of a file or pipe as they are stored; what cannot be read is a DamagedStream."""

    def __init__(self, descriptor: int, where: str) -> None:
        super().__init__(descriptor, closefd=False)
        self._where = where

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise DamagedStream(f"{self._where} cannot be read: {error.strerror}") from None


class Pieces(io.RawIOBase):
    """Bytes that come in pieces and can be read once, forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._position = 0

    def readinto(self, buffer: Any) -> int:
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece = memoryview(piece)
        part = self._piece[: len(buffer)]
        buffer[: len(part)] = part
        self._piece = self._piece[len(part) :]
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True


class Content(io.BufferedReader):
    """The content of a container: of a regular file as it is stored, or a stream."""

    def __init__(
        self, raw: Pieces | _Stored | ObjectFile, where: str = "", stored_bytes: int = 0
    ) -> None:
        super().__init__(raw, _BUFFER_BYTES)
        self.where = where
        """The container's path, for messages."""
        self.stored_bytes = stored_bytes
        """The size of the container's file; 0 of a pipe."""
        self.size_bytes = None if isinstance(raw, Pieces) else stored_bytes
        """None of a stream, which can only be read forward, and not again at packing."""

    def seek(self, position: int, _: int = os.SEEK_SET, /) -> int:
        """Go to a position, or to the end if that is before it; return where that is."""
        if self.size_bytes is not None:
            return super().seek(min(position, self.size_bytes))
        at = self.tell()
        if position < at:
            raise ValueError("a stream cannot go back")
        while at < position and (data := self.read(min(position - at, _PIECE_BYTES))):
            at += len(data)
        return at


@contextlib.contextmanager
def open_container(
    path: FilePath,
    listed: int | None = None,
    *,
    where: str = "",
    is_plain: Callable[[bytes], bool] | None = None,
) -> Iterator[Content]:
    """Open the file, named pipe or object ``path`` for its content, decompressed.

    Messages call it ``where``, by default its path. ``is_plain`` is given for a format that may be
    compressed as ZLIB, which has no magic number: it returns whether the first 12 bytes are those
    of the format itself. Raises DatasetError if the file cannot be opened or is compressed in
    another way, ResourceError without the library for its compression. At the end
    SourceChangedError is raised unless it has the stamp ``listed``.
    """
    where = where or show_path(encode_path(path))
    try:
        is_pipe = not is_url(path) and stat.S_ISFIFO(os.stat(encode_path(path)).st_mode)
        stored = open_stored(path, listed, is_pipe=is_pipe)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise DatasetError(f"{where} cannot be opened: {error.strerror}") from None
    with stored:
        raw: _Stored | ObjectFile
        if isinstance(stored, StoredFile):
            raw = _Stored(stored.descriptor, where)
        else:
            raw = ObjectFile(stored)
        yield _open_content(Content(raw, where, stored.size_bytes), is_plain, is_pipe=is_pipe)


def _open_content(
    stored: Content, is_plain: Callable[[bytes], bool] | None, *, is_pipe: bool
) -> Content:
    start = stored.read(_START_BYTES)
    what, remedy = recognise_other(start)
    if remedy == UNPACK:
        raise DatasetError(f"{stored.where} is {what}: {remedy}")
    if start.startswith(GZIP):
        pieces = _decompress(stored, start, "gzip")
    elif is_zstd(start):
        pieces = _decompress(stored, start, "zstd")
    elif is_plain is not None and is_zlib(start) and not is_plain(start):
        pieces = _decompress(stored, start, "ZLIB")
    elif is_pipe:
        pieces = _read_pipe(stored, start)
    else:
        stored.seek(0)
        return stored
    return Content(Pieces(pieces), stored.where, stored.stored_bytes)


def _read_pipe(stored: Content, start: bytes) -> Iterator[bytes]:
    data = start
    while data:
        yield data
        data = stored.read(_PIECE_BYTES)


def _decompress(stored: Content, start: bytes, form: str) -> Iterator[bytes]:
    """Yield the content of all members of a gzip file, of a ZLIB stream, or of all zstd frames.

    ``start`` are the first bytes of ``stored``, which is behind them.
    """
    size = _PIECE_BYTES
    limits: tuple[int, ...] = (size,)  # of what zlib returns at once; zstandard has none
    errors: type[Exception] = zlib.error
    start_member: Callable[[], Any] = functools.partial(zlib.decompressobj, 32 + zlib.MAX_WBITS)
    if form == "zstd":
        try:
            import zstandard
        except ImportError:
            raise missing_extra(stored.where, "zstandard", "zstd") from None
        size, limits, errors = _ZSTD_PIECE_BYTES, (), zstandard.ZstdError
        start_member = zstandard.ZstdDecompressor().decompressobj
    data, at = start, len(start)
    while data:
        engine = start_member()
        while not engine.eof:
            if not data:
                data = stored.read1(size)
                at += len(data)
            if not data:
                raise _fault(stored, f"cut at byte {at}: its {form} stream ends too early")
            try:
                piece = engine.decompress(data, *limits)
            except errors as error:
                reason = str(error).rpartition(": ")[2]
                what = f"damaged at byte {at}: its {form} stream has an error ({reason})"
                raise _fault(stored, what) from None
            data = engine.unconsumed_tail
            if piece:
                yield piece
        data = engine.unused_data.lstrip(b"\x00")  # padding, as on tapes
        while not data and (more := stored.read(size)):
            at += len(more)
            data = more.lstrip(b"\x00")


def _fault(stored: Content, what: str) -> DamagedStream:
    return DamagedStream(f"{stored.where} is {what}: copy it again, or make it again")
