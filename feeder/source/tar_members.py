"""Walks the members of a tar: name, kind, and where the data is, without reading the data.

``tarfile`` parses the headers. Its own walk ends silently where one is damaged, keeps every member,
and reads headers of any size into memory; here these are errors, and memory is bounded.

Invariant: a walk that ends has seen every byte of its tar: all members are whole, and nothing but
zeros follows the end-of-archive marker. All else raises DatasetError.
"""

import contextlib
import tarfile
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, cast

from feeder.errors import DatasetError
from feeder.process.path_text import printable
from feeder.source.decompress import Content, DamagedStream, Pieces, open_container
from feeder.source.item_bytes import FILE_BYTES_MAX, FaultKind, SourceError, check_size
from feeder.source.listing import ItemListing
from feeder.source.source import ContainerSource

MemberKind = Literal["file", "folder", "symbolic link", "hard link", "device", "sparse", "unknown"]

SUFFIXES: Final = ("tar", "tgz", "tzst")
_HEADER_BYTES_MAX: Final = 1 << 20  # of a long name or of pax records
_SCAN_BYTES: Final = 1 << 20
_MAKE_AGAIN: Final = "copy it again, or make it again"
_PARSE_ERRORS: Final = (
    *(tarfile.TarError, ValueError, OverflowError, IndexError, KeyError, RecursionError),
    *(TypeError, AttributeError),  # of tarfile, at damaged numbers of sparse files
)
_KINDS: Final[dict[bytes, MemberKind]] = {
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), "device"),
}
_MAKE_WITHOUT_LINKS: Final = ("link", ": make the tar with --hard-dereference -h")
_NO_FILES: Final[dict[MemberKind, tuple[FaultKind, str]]] = {
    "symbolic link": _MAKE_WITHOUT_LINKS,
    "hard link": _MAKE_WITHOUT_LINKS,
    "device": ("device", " or a named pipe"),
}


class TarMember(NamedTuple):
    """A member of a tar."""

    name: str
    """As it is written; bytes that are not UTF-8 are surrogate escapes."""
    kind: MemberKind
    offset: int
    """Of the data, in the container."""
    size_bytes: int


class TarWalk:
    """The members of one tar in their order; iterates once.

    ``content`` is at the tar's first byte, and the tar ends after ``size_bytes`` there; None: at
    its end. Data is read while its member is the last one that was yielded.
    """

    def __init__(self, content: Content, where: str = "", size_bytes: int | None = None) -> None:
        self._content = content
        self.where = where or content.where
        self.is_stream = content.size_bytes is None
        self._start = content.tell()
        if size_bytes is None and content.size_bytes is not None:
            size_bytes = content.size_bytes - self._start
        self._size_bytes = size_bytes
        self._last = ""
        """The name of the last member."""
        self.has_end_marker = False
        """Whether the walk has ended at an end-of-archive marker, not at the end of the file."""

    def __iter__(self) -> Iterator[TarMember]:
        try:
            yield from self._walk()
        except DamagedStream as fault:
            after = f" (after {printable(self._last)})" if self._last else ""
            raise DatasetError(f"{fault}{after}") from None

    def inner(self, member: TarMember) -> "TarWalk":
        """Return the walk of a tar that is the data of a member."""
        self._content.seek(member.offset)
        where = f"{printable(member.name)} in {self.where}"
        return TarWalk(self._content, where, member.size_bytes)

    def read(self, member: TarMember) -> Iterator[bytes]:
        """Yield the data of a member in pieces of at most 1 MiB."""
        self._content.seek(member.offset)
        left = member.size_bytes
        while left:
            try:
                data = self._content.read(min(left, _SCAN_BYTES))
            except DamagedStream as fault:
                raise DatasetError(f"{fault} (in {printable(member.name)})") from None
            if not data:
                raise self._cut_in_data()
            left -= len(data)
            yield data

    def note_end(self, listing: ItemListing) -> None:
        """Add a line for the user if a walk that is over found no end-of-archive marker."""
        if not self.has_end_marker:
            listing.note(
                f"{self.where} has no end-of-archive marker: if it was cut, members are missing "
                f"after {printable(self._last)}"
            )

    def _walk(self) -> Iterator[TarMember]:
        view = _TarView(self._content, self._start, self._size_bytes)
        # Mode "r" would read the first header here, and end at any that is damaged.
        tar = tarfile.TarFile(
            fileobj=cast(Any, view), mode="w", encoding="utf-8", errors="surrogateescape"
        )
        end = 0  # of the last member, from the tar's first byte
        while True:
            try:
                info = tarfile.TarInfo.fromtarfile(tar)
            except _PARSE_ERRORS as error:
                if view.last_at == end and not any(view.last):
                    break
                raise self._explain(error, view, end) from None
            if info.size < 0 or tar.offset <= end or info.offset_data > tar.offset:
                raise self._damaged(end, "its size is impossible")
            self._last, end = info.name, tar.offset
            offset = self._start + info.offset_data
            if self._size_bytes is not None and end > self._size_bytes:
                raise self._cut_in_data(f", which has {info.size} bytes from byte {offset} on")
            kind = "sparse" if info.issparse() else _KINDS.get(info.type, "unknown")
            yield TarMember(info.name, kind, offset, info.size)
            if self._content.seek(self._start + end) < self._start + end:
                raise self._cut_in_data()
        if view.last:
            self.has_end_marker = True
            self._check_end(view)
        elif not end:
            raise DatasetError(f"{self.where} is empty: {_MAKE_AGAIN}")

    def _check_end(self, view: "_TarView") -> None:
        """Raise DatasetError unless nothing but zeros follows the end-of-archive marker."""
        while data := view.read(_SCAN_BYTES):
            if any(data):
                at = self._content.tell() - len(data.lstrip(b"\0"))
                raise DatasetError(
                    f"{self.where} goes on after its end-of-archive marker, at byte {at}"
                    f"{self._after()}: what follows would be lost; if tars were concatenated, pack "
                    "them one by one, or unpack with `tar --ignore-zeros -xf` and pack the folder"
                )

    def _explain(self, error: Exception, view: "_TarView", end: int) -> DatasetError:
        text = printable(str(error))[:200] or type(error).__name__
        if not end and view.last_at == 0:
            return DatasetError(
                f"{self.where} is no tar file: it does not begin with a header ({text}): give a "
                "tar, or another --source"
            )
        if len(view.last) < tarfile.BLOCKSIZE:
            return self._cut(f"in a header{self._after()}")
        return self._damaged(end, text)

    def _damaged(self, at: int, what: str) -> DatasetError:
        return DatasetError(
            f"{self.where} is damaged at byte {self._start + at}{self._after()} ({what}): "
            f"{_MAKE_AGAIN}"
        )

    def _cut_in_data(self, more: str = "") -> DatasetError:
        return self._cut(f"in the data of {printable(self._last)}{more}")

    def _cut(self, what: str) -> DatasetError:
        size = "" if self._size_bytes is None else f" after {self._size_bytes} bytes"
        return DatasetError(f"{self.where} is cut: it ends{size}, {what}: {_MAKE_AGAIN}")

    def _after(self) -> str:
        return f", after {printable(self._last)}" if self._last else ""


class TarSource(ContainerSource):
    """What sources of tars have in common: members become items.

    An item is where its member is or, if the tar cannot be read in any order, in a copy.
    """

    @contextlib.contextmanager
    def open_tar(self, container: int, listing: ItemListing) -> Iterator[TarWalk]:
        """Open a container; ResourceError if the disk has no room for a copy that is necessary."""
        path = listing.copy or self.path(container)
        where = self.where(container)
        with open_container(path, listing.stamp, where=where) as content:
            walk = TarWalk(content)
            if walk.is_stream:
                listing.expect_spill(content.stored_bytes)
            yield walk
            walk.note_end(listing)

    def place(self, walk: TarWalk, member: TarMember, listing: ItemListing) -> int:
        """Return the offset of a member's data for ``ItemListing.add``."""
        if not walk.is_stream or member.kind != "file" or member.size_bytes > FILE_BYTES_MAX:
            return member.offset
        offset = listing.about.spilled_bytes
        for piece in walk.read(member):
            listing.spill(piece)
        return offset

    def name(self, member: TarMember, prefix: str, listing: ItemListing) -> str | None:
        """Return the name of a member; None if it is left out: rejected, hidden or a folder."""
        if member.kind == "folder":
            return None
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if not parts or ".." in parts or "\0" in member.name:
            reason = "its name has .. or a zero byte, or is empty"
            listing.reject(prefix + member.name, "bad-name", reason)
            return None
        if any(part.startswith(".") for part in parts):
            listing.about.hidden += 1
            return None
        return "/".join(parts)

    def add(
        self, walk: TarWalk, member: TarMember, name: str, label: object, listing: ItemListing
    ) -> None:
        """Add the member that was yielded last, or reject it if it cannot be an image."""
        try:
            check_image(member)
        except SourceError as fault:
            listing.reject(name, fault.kind, fault.reason)
            return
        offset = self.place(walk, member, listing)
        listing.add(name, label, offset=offset, size_bytes=member.size_bytes)


def check_image(member: TarMember) -> None:
    """Raise SourceError for a member that cannot be an image."""
    check_kind(member, "image")
    check_size(member.size_bytes, "its image has no bytes")


def check_kind(member: TarMember, what: str) -> None:
    """Raise SourceError (link, device, unsupported) for a member that is no regular file."""
    if member.kind in _NO_FILES:
        kind, remedy = _NO_FILES[member.kind]
        raise SourceError(kind, f"its {what} is a {member.kind}{remedy}")
    if member.kind != "file":
        raise SourceError("unsupported", f"its {what} is a member of the kind {member.kind}")


def is_tar(start: bytes) -> bool:
    """Return whether a file is a tar: it begins with a header, of any version, or with the end."""
    block = start[: tarfile.BLOCKSIZE]
    if len(block) == tarfile.BLOCKSIZE and not any(block):
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def find_first(start: bytes) -> str:
    """Return the name of the first file in a tar, by its start; without folders, or ""."""
    members = iter(TarWalk(Content(Pieces(iter((start,))))))
    with contextlib.suppress(DatasetError):  # its reader reports what is wrong with it
        for member in members:
            if member.kind == "file":
                return member.name.rpartition("/")[2]
    return ""


class _TarView:
    """A tar as tarfile reads it: positions count from its first byte, and headers only."""

    def __init__(self, content: Content, start: int, size_bytes: int | None) -> None:
        self._content = content
        self._start = start
        self._size_bytes = size_bytes
        self.last, self.last_at = b"", 0
        """What was read last, and where."""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _HEADER_BYTES_MAX:
            raise tarfile.ReadError(f"a header of {size} bytes")
        self.last_at = self.tell()
        if self._size_bytes is not None:
            size = min(size, self._size_bytes - self.last_at)
        self.last = self._content.read(size)
        return self.last

    def tell(self) -> int:
        return self._content.tell() - self._start
