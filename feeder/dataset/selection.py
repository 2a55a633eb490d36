"""A selection: a file that names samples of one or several datasets, and is served like a dataset.

    at 0   MAGIC (8 bytes), VERSION and bytes of the header (4 each), checksum (8): XXH3 with 64
           bits of all other bytes of the file
    at 24  header: the canonical JSON of SelectionHeader
    then   its tables, little-endian, each at the next multiple of 64; zeros between them
             sources  int64 (n,): member << 48 | sample id in the member
             labels   int32 (n,): class, only where labels are not those of the members
             weights-0, …  uint32 (n,): only where samples are drawn by weight, a table for each
                      range of epochs (``Drawing``)

A row's number is the sample's id in the selection. Rows of a member are in the order of its ids,
and members are merged in proportion: row k of a member with n of them sorts at (2k + 1) / 2n, ties
by member. As packing has shuffled every member, each range of rows is a fair sample of all, and
lies within one span of each member's order. The components of a mix come one after the other, each
so merged.

Classes are merged by name: those of the first member in its order, then those of the second that
are new, and so on. A class keeps its number in the merged classes even if no sample of it is left,
so that a part of a dataset has the labels of the dataset.

``content`` is BLAKE2b with 128 bits of the members' content fingerprints, classes, labels, and all
tables. It identifies a selection as the content fingerprint does a dataset: names, hints, options
and times are no part of it.

Tables are mapped read-only: opening 14 million samples reads 112 MB once, and makes no object for a
sample. Invariant: what ``Selection.open`` returns is whole, and each row is a sample of its member.
"""

import hashlib
import itertools
import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import NDArray

from feeder.dataset.manifest import canonical_json
from feeder.errors import ConfigError, DatasetError
from feeder.plan.draws import DRAWS_MAX, WEIGHTED_SAMPLES_MAX, Component, Draws
from feeder.plan.epoch import MAX_EPOCH, ShardLayout
from feeder.plan.labels import INDEX_LABELS, LabelRows, LabelSpec
from feeder.process.path_text import encode_name, printable
from feeder.process.regular_file import open_regular_file

MAGIC: Final = b"FEEDSLCT"
VERSION: Final = 1
MEMBERS_MAX: Final = 1024
SAMPLES_MAX: Final = 2**31 - 1  # twice the product of two such numbers fits into an int64

PREAMBLE: Final = struct.Struct("<8sIIQ")
CHECKSUM_BYTES: Final = 8
_HEADER_BYTES_MAX: Final = 256 << 20
_ALIGNMENT_BYTES: Final = 64
ID_BITS: Final = 48
_ID_MASK: Final = 2**ID_BITS - 1
_CHECKED_ROWS: Final = 1 << 18  # at a time, to bound the memory of checks
_DTYPES: Final = {"sources": "<i8", "labels": "<i4"}
_SPAN_ROWS: Final = 1024
_REMEDY: Final = "restore it or make it again (feeder select)"

Count = Annotated[int, Meta(ge=1, lt=2**48)]
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset that a selection has samples of."""

    name: str
    """What its folder or URL is called, for messages."""
    content: Fingerprint
    """The content fingerprint of its manifest, by which it is found."""
    samples: Count
    """All of its samples."""
    chosen: Count
    """How many of them the selection has."""
    size_bytes: Annotated[int, Meta(ge=0, lt=2**62)]
    """Of its shards."""
    classes: tuple[str, ...]
    labels: LabelSpec = INDEX_LABELS
    hint: str = ""
    """Where it was: a path, relative to the selection's folder, or a URL."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file, one value a row."""

    name: str
    dtype: str


class Drawing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an epoch draws samples, by the tables of weights (``feeder.plan.draws``)."""

    epoch_samples: Annotated[int, Meta(ge=1, le=DRAWS_MAX)]
    """Draws of an epoch."""
    epochs: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_EPOCH)], ...], Meta(max_length=1024)]
    """The epochs from which each table of weights holds."""
    components: Annotated[
        tuple[tuple[int, int, int], ...], Meta(min_length=1, max_length=MEMBERS_MAX)
    ]
    """First row, end and share of each component."""
    piece: Annotated[int, Meta(ge=1, le=SAMPLES_MAX)]
    """Samples that are read together, which the order of an epoch depends on."""


class SelectionHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says before its tables."""

    name: str
    samples: Annotated[int, Meta(ge=1, le=SAMPLES_MAX)]
    classes: tuple[str, ...]
    labels: LabelSpec = INDEX_LABELS
    members: Annotated[tuple[Member, ...], Meta(min_length=1, max_length=MEMBERS_MAX)]
    tables: tuple[Table, ...]
    draws: Drawing | None = None
    options: dict[str, str] = {}
    """How it was made, for people."""
    content: Fingerprint

    @property
    def size_bytes(self) -> int:
        """The selection's part of its members' bytes."""
        return sum(m.size_bytes * m.chosen // m.samples for m in self.members)


class Group(NamedTuple):
    """The rows of a batch that are samples of one member."""

    member: int
    sample_ids: NDArray[np.int64]
    """Those of the member, (n,)."""
    rows: NDArray[np.int64]
    """Their positions in the batch, (n,), ascending."""


class Selection:
    """An open selection, for any thread."""

    def __init__(self, header: SelectionHeader, memory: memoryview, at: int, where: str) -> None:
        """``memory`` is the whole file, whose tables begin at ``at``; see ``parse``."""
        self.header = header
        self.memory = memory
        self.where = where
        self.name = header.name
        self.content = header.content
        self.classes = header.classes
        self.labels = header.labels
        self.members = header.members
        self.samples = header.samples
        """Rows, which sample ids are below; ``layout`` counts draws where there are weights."""
        self._tables = tables = dict[str, NDArray[Any]]()
        for table in header.tables:
            tables[table.name] = np.frombuffer(memory, table.dtype, header.samples, at)
            at = aligned(at + tables[table.name].nbytes)
        self.sources: NDArray[np.int64] = tables["sources"]
        self.own_labels: NDArray[np.int32] | None = tables.get("labels")
        size_bytes, draws, count = header.size_bytes, None, header.samples
        if header.draws is not None:
            count = header.draws.epoch_samples
            draws = Draws(
                weights=[tables[f"weights-{n}"] for n in range(len(header.draws.epochs))],
                epochs=header.draws.epochs,
                components=tuple(Component(*part) for part in header.draws.components),
                piece=header.draws.piece,
            )
        self.layout = ShardLayout(samples=count, shards=1, size_bytes=size_bytes, draws=draws)
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._class_maps = [
            np.array([numbers[name] for name in member.classes], np.int64)
            for member in self.members
        ]

    @classmethod
    def open(cls, path: str | Path, *, content: str | None = None) -> Self:
        """Map the file and check all of it.

        Raises DatasetError if it is missing, damaged, of another version, or not the one of this
        ``content``.
        """
        where = str(path)
        try:
            with open_regular_file(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size_bytes else b""
        except OSError as error:
            raise DatasetError(f"the selection {where} cannot be read: {error.strerror}") from error
        selection = cls.parse(memoryview(mapped), where)
        selection.check(content)
        return selection

    @classmethod
    def parse(cls, memory: memoryview, where: str) -> Self:
        """Return the selection in ``memory``, whose rows ``open`` has checked. DatasetError."""
        if len(memory) < PREAMBLE.size or bytes(memory[: len(MAGIC)]) != MAGIC:
            raise DatasetError(f"{where} is not a selection, or is truncated: {_REMEDY}")
        _, version, header_bytes, _ = PREAMBLE.unpack_from(memory)
        if version != VERSION:
            remedy = "upgrade feeder" if version > VERSION else "make it again (feeder select)"
            raise DatasetError(
                f"{where} is of selection format version {version}, this feeder reads {VERSION}: "
                f"{remedy}"
            )
        end = PREAMBLE.size + header_bytes
        if header_bytes > _HEADER_BYTES_MAX or end > len(memory):
            raise DatasetError(f"{where} is truncated: {_REMEDY}")
        try:
            fields = json.loads(bytes(memory[PREAMBLE.size : end]))
            header = msgspec.convert(fields, SelectionHeader)
            _check_header(header, len(memory), end)
        # msgspec's and json's errors are ValueErrors; ConfigError is of LabelSpec
        except (ValueError, RecursionError, ConfigError) as error:
            reason = printable(str(error).partition("\n")[0][:200]) or type(error).__name__
            raise DatasetError(f"{where} is damaged ({reason}): {_REMEDY}") from None
        return cls(header, memory, aligned(end), where)

    def check(self, content: str | None = None) -> None:
        """Compare the checksum, every row with its member, and ``content``; DatasetError."""
        if content not in (None, self.content):
            raise DatasetError(
                f"{self.where} is another selection than the one that is served: its fingerprint "
                f"is {self.content}, it was {content}; restore the old one or restart the daemon"
            )
        stored = PREAMBLE.unpack_from(self.memory)[3]
        if stored != _checksum(self.memory):
            raise DatasetError(f"{self.where} is damaged (its checksum does not match): {_REMEDY}")
        counts = np.zeros(len(self.members), np.int64)
        components = [(0, self.samples, 1)]
        if self.header.draws is not None:
            components = [*self.header.draws.components]
        for first, end, _ in components:
            self._check_rows(first, end, counts)
        if counts.tolist() != [member.chosen for member in self.members]:
            raise self._inconsistent()
        draws = self.layout.draws
        lines = () if draws is None else itertools.chain.from_iterable(draws.lines)
        if not all(line.total for line in lines):
            raise DatasetError(
                f"{self.where} is damaged (weights of a component are all 0): {_REMEDY}"
            )

    def _check_rows(self, begin: int, end: int, counts: NDArray[np.int64]) -> None:
        """Check rows, in which each member's samples ascend, and add them up in ``counts``."""
        last = np.full(len(self.members), -1, np.int64)
        for first in range(begin, end, _CHECKED_ROWS):
            stop = min(first + _CHECKED_ROWS, end)
            part = self.sources[first:stop]
            members, ids = part >> ID_BITS, part & _ID_MASK
            if part.min() < 0 or members.max() >= len(self.members):
                raise self._inconsistent()
            here = np.bincount(members, minlength=len(counts))
            for number in np.flatnonzero(here).tolist():
                own = ids[members == number]
                if own[0] <= last[number] or (own[1:] <= own[:-1]).any():
                    raise self._inconsistent()
                last[number] = own[-1]
            counts += here
            labels = self.own_labels
            if labels is not None:
                given = labels[first:stop]
                if given.min() < 0 or given.max() >= len(self.classes):
                    raise self._inconsistent()
        for number, member in enumerate(self.members):
            if last[number] >= member.samples:
                raise self._inconsistent()

    def _inconsistent(self) -> DatasetError:
        return DatasetError(
            f"{self.where} is damaged (a row is no sample of its datasets): {_REMEDY}"
        )

    def compute_content(self) -> str:
        """Return the fingerprint of what the tables hold, which ``content`` must be."""
        return fingerprint_tables(self.header, self._tables.values())

    def locate(self, ids: NDArray[np.int64]) -> list[Group]:
        """Return the members' samples of the ids (n,), grouped by member, members ascending.

        Raises IndexError for an id outside 0 .. samples - 1.
        """
        members, own_ids = self.split(ids)
        groups = []
        for number in np.unique(members).tolist():
            rows = np.flatnonzero(members == number)
            groups.append(Group(number, own_ids[rows], rows))
        return groups

    def split(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the member of each of the ids (n,), and its sample id there; errors as
        ``locate``."""
        outside = (ids < 0) | (ids >= self.samples)
        if outside.any():
            first = int(ids[outside][0])
            last = self.samples - 1
            raise IndexError(f"sample {first} is outside this selection's 0 .. {last}")
        sources = self.sources[ids]
        return sources >> ID_BITS, sources & _ID_MASK

    def rows_of(self, member: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of a member's samples, ascending, and their ids in it, both (n,)."""
        rows = np.flatnonzero(self.sources >> ID_BITS == member)
        return rows, self.sources[rows] & _ID_MASK

    def spans(self, first: int, end: int) -> dict[int, tuple[int, int]]:
        """Return the span of each member's order that rows first .. end - 1 lie in: by member,
        first sample id and end. Members without such a row are left out."""
        rows = self.sources[first:end]
        firsts = self._find_first(rows)
        lasts = self._find_first(rows[::-1])
        return {member: (firsts[member], lasts[member] + 1) for member in sorted(firsts)}

    def _find_first(self, rows: NDArray[np.int64]) -> dict[int, int]:
        """Return the first sample id of each member in a part of ``sources``, read no further than
        all members take to appear."""
        found: dict[int, int] = {}
        at, size = 0, _SPAN_ROWS
        while at < len(rows) and len(found) < len(self.members):
            part = rows[at : at + size]
            numbers, places = np.unique(part >> ID_BITS, return_index=True)
            for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
                found.setdefault(number, int(part[place]) & _ID_MASK)
            at, size = at + size, 4 * size
        return found

    def take_labels(
        self, ids: NDArray[np.int64], group: Group, labels: LabelRows, out: LabelRows
    ) -> None:
        """Write into rows ``group.rows`` of ``out`` the labels of a group of ``locate(ids)``.

        ``labels`` are those that the member has, (n, *its row_shape).
        """
        if self.own_labels is not None:
            out[group.rows] = self.own_labels[ids[group.rows]]
        elif self.labels.kind == "index":
            out[group.rows] = self._class_maps[group.member][labels]
        elif self.labels.kind == "multi":
            merged = np.zeros((len(labels), self.labels.width), labels.dtype)
            merged[:, self._class_maps[group.member]] = labels
            out[group.rows] = merged
        else:
            out[group.rows] = labels


def is_selection(path: str | Path) -> bool:
    """Return whether there is a file at ``path`` that begins as a selection does."""
    with suppress(OSError), open_regular_file(path) as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def merge_labels(specs: Mapping[str, LabelSpec], classes: Sequence[str]) -> LabelSpec:
    """Return the labels of a selection of datasets, which are given by name in messages.

    ``classes`` are the merged ones. Raises ConfigError where kinds or widths differ.
    """
    (first, wanted), *others = specs.items()
    for name, spec in others:
        if spec.kind != wanted.kind or (spec.kind == "float" and spec.width != wanted.width):
            texts = [_describe(each) for each in (wanted, spec)]
            raise ConfigError(
                f"{first} and {name} have different labels, {texts[0]} and {texts[1]}: select from "
                "datasets with labels of one kind"
            )
    return LabelSpec(kind="multi", width=len(classes)) if wanted.kind == "multi" else wanted


def _describe(labels: LabelSpec) -> str:
    return f"{labels.width} floats" if labels.kind == "float" else labels.kind


def fingerprint_tables(header: SelectionHeader, tables: Iterable[NDArray[Any]]) -> str:
    description: dict[str, object] = {
        "classes": header.classes,
        "labels": msgspec.to_builtins(header.labels),
        "members": [member.content for member in header.members],
        "samples": header.samples,
        "tables": msgspec.to_builtins(header.tables),
    }
    if header.draws is not None:
        description["draws"] = msgspec.to_builtins(header.draws)
    content = hashlib.blake2b(canonical_json(description), digest_size=16)
    for table in tables:
        content.update(table.view(np.uint8).data)
    return content.hexdigest()


def _check_header(header: SelectionHeader, file_bytes: int, end: int) -> None:
    """Raise ValueError, with the reason as a clause, for a header that contradicts itself."""
    members, names = header.members, [table.name for table in header.tables]
    needed = {
        "sources",
        *(f"weights-{n}" for n in range(len(header.draws.epochs if header.draws else ()))),
    }
    if not needed.issubset(names) or len({*names}) < len(names):
        raise ValueError("its tables are not those of a selection")
    drawing = header.draws
    known_tables = dict(_DTYPES)
    if drawing is not None:
        _check_drawing(drawing, header.samples)
        known_tables |= {f"weights-{number}": "<u4" for number in range(len(drawing.epochs))}
    for table in header.tables:
        if known_tables.get(table.name) != table.dtype:
            raise ValueError(f"it has a table {table.name!r} that this feeder does not know")
    for member in members:
        if member.chosen > member.samples:
            raise ValueError(f"it counts {member.chosen} of {member.samples} samples of a dataset")
        if b"\0" in encode_name(member.name + member.hint):  # ValueError for lone surrogates
            raise ValueError("the name or place of a dataset has a zero byte")
        contradiction = member.labels.find_contradiction(len(member.classes))
        if contradiction is not None:
            raise ValueError(contradiction)
    known = {*header.classes}
    if len(known) < len(header.classes) or any(not known.issuperset(m.classes) for m in members):
        raise ValueError("its classes are not those of its datasets")
    specs = {f"{number}": member.labels for number, member in enumerate(members)}
    if merge_labels(specs, header.classes) != header.labels:
        raise ValueError("its labels are not those of its datasets")
    if "labels" in names and header.labels.kind != "index":
        raise ValueError("its samples have labels of their own, which are not of kind index")
    for table in header.tables:
        end = aligned(end) + header.samples * np.dtype(table.dtype).itemsize
    if end != file_bytes:
        raise ValueError(f"it has {file_bytes} bytes, it should have {end}")


def _check_drawing(drawing: Drawing, samples: int) -> None:
    """Raise ValueError for components that are not all samples, and for epochs out of order."""
    at = 0
    for first, end, share in drawing.components:
        if first != at or not first < end <= samples or not 1 <= share <= 10**18:
            raise ValueError("the components of its mix contradict each other")
        at = end
    if drawing.piece.bit_count() != 1:
        raise ValueError("the pieces of its weights are no power of two")
    epochs = drawing.epochs
    is_ascending = all(a < b for a, b in itertools.pairwise(epochs))
    if at != samples or samples > WEIGHTED_SAMPLES_MAX or epochs[:1] != (0,) or not is_ascending:
        raise ValueError("its weights contradict each other")


def _checksum(memory: memoryview) -> int:
    state = xxhash.xxh3_64(memory[: PREAMBLE.size - CHECKSUM_BYTES])
    state.update(memory[PREAMBLE.size :])
    return state.intdigest()


def aligned(at: int) -> int:
    return -(-at // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
