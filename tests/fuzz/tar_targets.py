"""Tars: their headers, compression, and the samples of a WebDataset in them."""

import gzip
import random
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from feeder.errors import DatasetError
from feeder.process.path_text import encode_name
from feeder.source.decompress import open_container
from feeder.source.source import SourceSpec
from feeder.source.tar_members import TarMember, TarWalk
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target, folder, refusal, written
from tests.source.listings import GOLDEN, Listed, list_container
from tests.source.tar_writer import member

_BLOCK = tarfile.BLOCKSIZE
_FIELDS = ((0, 100), (100, 8), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155), (386, 96))
_FIELD_TOKENS = (
    *(b"\0" * 12, b"\xff" * 12, b"\x80" + b"\0" * 11, b"\x80" + b"\x7f" * 11, b"77777777777\0"),
    *(b"00000000777\0", b"\xff" * 10 + b"\xfc\0", b"0", b"1", b"5", b"7", b"L", b"K", b"x", b"g"),
    *(b"S", b"X", b"V", b"../../x.jpg\0", b"/x.jpg\0", b".jpg\0", b"a\n.jpg\0", b"\xff.cls\0"),
    b"\0",
)
_PAX_TOKENS = (
    *(b"12 size=-51\n", b"20 size=9999999999\n", b"17 path=../x.jpg\n", b"11 path=\0\n"),
    b"0 a=b\n",
    *(b"25 GNU.sparse.major=1\n25 ", b"22 GNU.sparse.map=a,b\n", b"26 GNU.sparse.size=x\n"),
    *(b"9" * 4500 + b" a=b\n", b"22 hdrcharset=BINARY\n", b"22 hdrcharset=\xff\xff\n", b"\xff"),
)
_LABEL_TOKENS = (b"{", b"[" * 2000, b'"label"', b"null", b"-1", b"1e999", b'"\\ud800"', b"\xff")


@cache
def _members() -> tuple[bytes, ...]:
    """Return runs of members of every kind, with their headers and data."""
    made = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for key in ("a", "d/b", "n" * 120 if form != tarfile.USTAR_FORMAT else "c"):
            image = member(f"{key}.jpg", b"\xff\xd8\xff" * 300, form=form)
            made.append(image + member(f"{key}.cls", b"17", form=form))
            json = b'{"label": [1, 2], "a": {"b": 0.5}}'
            made.append(member(f"{key}.json", json, form=form) + image)
            made += [image, member(f"{key}.txt", "Straße".encode(), form=form)]
    made += [member("l.jpg", kind=kind, link="a.jpg") for kind in (b"1", b"2", b"3", b"6", b"5")]
    return tuple(made)


@cache
def _golden() -> tuple[bytes, ...]:
    names = ("kinds-gnu.tar", "kinds-pax.tar", "webdataset-cls.tar")
    return tuple((GOLDEN / name).read_bytes() for name in names)


def _tar(rng: random.Random) -> bytes:
    """Return a tar of some members with up to three faults, most under a right checksum."""
    data = bytearray(b"".join(rng.choice(_members()) for _ in range(rng.randint(1, 5))))
    data += bytes(rng.choice((0, 1, 2, 2, 2, 20)) * _BLOCK)
    if rng.random() < 0.2:
        data = bytearray(rng.choice(_golden()))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = rng.randrange(0, len(data), _BLOCK)
        is_header = data[at + 257 : at + 262] == b"ustar"
        start, size = rng.choice(_FIELDS) if is_header else (0, _BLOCK)
        tokens = _FIELD_TOKENS if is_header else (*_PAX_TOKENS, *_LABEL_TOKENS)
        field = bytes(data[at + start : at + start + size])
        if rng.random() < 0.4:
            field = rng.choice(tokens).ljust(size, b"\0")[:size]
        else:
            field = mutate_bytes(rng, field, tokens=tokens).ljust(size, b"\0")[:size]
        data[at + start : at + start + len(field)] = field
        if is_header and rng.random() < 0.9:
            _correct_checksum(data, at)
    if rng.random() < 0.1:
        return mutate_bytes(rng, bytes(data), others=_members())
    return bytes(data)


def _correct_checksum(data: bytearray, at: int) -> None:
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + _BLOCK])


class _Walked(NamedTuple):
    members: list[TarMember]
    data: list[bytes]
    is_refused: bool


def _walk(path: Path) -> _Walked:
    members, data = [], []
    with open_container(path) as content:
        walk = TarWalk(content, "a.tar")
        try:
            for each in walk:
                members.append(each)
                data.append(b"".join(walk.read(each)) if each.kind == "file" else b"")
        except DatasetError as error:
            refusal(error, members)
            return _Walked(members, data, True)
    return _Walked(members, data, False)


def _hold_walk(found: _Walked, tar: bytes) -> bool:
    """The same members and data from a file and from a stream; data lies within the file."""
    streamed = _walk(written(gzip.compress(tar, 0), "a.tar.gz"))
    for each, data in zip(found.members, found.data, strict=False):
        encode_name(each.name)
        if each.kind == "file":
            assert tar[each.offset : each.offset + each.size_bytes] == data
            assert len(data) == each.size_bytes
    # The size of a stream is unknown: where a member is cut, it is yielded before the error.
    assert streamed.members[: len(found.members)] == found.members
    assert streamed.data[: len(found.data)] == found.data
    assert streamed.is_refused == found.is_refused
    return not found.is_refused


@cache
def _streams() -> tuple[bytes, ...]:
    import zstandard  # an extra: the other targets do without

    content = random.Random(3).randbytes(2000) + bytes(5000)
    checked = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    sized = zstandard.ZstdCompressor(level=1)
    skippable = b"\x51\x2a\x4d\x18\x03\0\0\0abc"
    return (
        gzip.compress(content, mtime=0),
        gzip.compress(content, mtime=0) + gzip.compress(b"more", mtime=0) + bytes(9),
        checked.compress(content),
        sized.compress(content) + skippable + checked.compress(b"more"),
    )


def _read_stream(data: bytes) -> None:
    with open_container(written(data)) as content:
        while content.read(70_000):
            pass


def _list_samples(tar: bytes) -> Listed | None:
    path = written(tar, "samples.tar")
    spec = SourceSpec(kind="webdataset", location="x", containers=(str(path),))
    try:
        return list_container(spec, folder() / "work")
    except AssertionError as error:  # packing reports names that occur twice
        if "is listed twice" not in str(error):
            raise
        return None


def _hold_samples(listed: Listed | None, tar: bytes) -> bool:
    """Items with names and labels that a dataset can hold, and reasons fit for quarantine.jsonl."""
    if listed is None:
        return False
    assert all(item.offset + item.size_bytes <= len(tar) for item in listed.items.values())
    for kind, reason in listed.rejected.values():
        assert kind.isprintable()
        refusal(reason, tar)
    return bool(listed.items)


TARGETS = (
    Target(  # some files are compressed, or begin as if they were: open_container refuses them
        "tar",
        _tar,
        lambda tar: _walk(written(tar, "a.tar")),
        30_000,
        DatasetError,
        _hold_walk,
    ),
    Target(
        "compressed",
        lambda rng: mutate_bytes(rng, rng.choice(_streams()), others=_streams()),
        _read_stream,
        30_000,
        DatasetError,
    ),
    Target("webdataset", _tar, _list_samples, 20_000, DatasetError, _hold_samples),
)
