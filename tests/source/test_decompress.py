"""Decompressed content: gzip and zstd of every kind, cut, damaged, followed by something else."""

import gzip
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.source.decompress import open_container
from feeder.source.tar_members import TarWalk
from tests.source.tar_writer import tar_bytes

zstandard = pytest.importorskip("zstandard", reason="make test installs zstandard")

_NOISE = random.Random(5)
DATA = _NOISE.randbytes(300_000) + bytes(500_000) + _NOISE.randbytes(7)
_SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


def zstd(data: bytes, **options: bool) -> bytes:
    """Return a frame without its size, as of a stream, and with a checksum unless it is off."""
    parameters = zstandard.ZstdCompressionParameters(**({"write_checksum": True} | options))
    engine = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return engine.compress(data) + engine.flush()


def read_all(path: Path, size: int = 70_001) -> bytes:
    with open_container(path) as content:
        return b"".join(iter(lambda: content.read(size), b""))


Put = Callable[[bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(data: bytes) -> Path:
        path = tmp_path / "a.tar"
        path.write_bytes(data)
        return path

    return write


FORMS = {
    "gzip": gzip.compress(DATA),
    "gzip members": gzip.compress(DATA[:1000]) + gzip.compress(b"") + gzip.compress(DATA[1000:]),
    "zstd": zstd(DATA),
    "zstd with sizes": zstandard.compress(DATA),
    "zstd frames": zstd(DATA[:1000]) + zstd(b"") + zstd(DATA[1000:]),
    "zstd skippable": _SKIPPABLE + zstd(DATA[:10]) + _SKIPPABLE + zstd(DATA[10:]) + _SKIPPABLE,
}


@pytest.mark.parametrize("form", FORMS)
def test_everything_compressed_is_read(put: Put, form: str) -> None:
    path = put(FORMS[form])
    assert read_all(path) == read_all(path, 1 << 20) == DATA
    with open_container(path) as content:
        assert (content.size_bytes, content.stored_bytes) == (None, len(FORMS[form]))
        content.seek(10)
        assert content.read(5) == DATA[10:15]
        with pytest.raises(ValueError, match="cannot go back"):
            content.seek(3)


@pytest.mark.parametrize("form", ["gzip", "gzip members", "zstd", "zstd with sizes", "zstd frames"])
def test_a_cut_anywhere_is_an_error(put: Put, form: str) -> None:
    whole = FORMS[form]
    ends = set()
    if form == "gzip members":
        ends = {len(gzip.compress(DATA[:1000])), len(whole) - len(gzip.compress(DATA[1000:]))}
    if form == "zstd frames":
        ends = {len(zstd(DATA[:1000])), len(whole) - len(zstd(DATA[1000:]))}
    sizes = {*range(9, 60), *range(60, len(whole), 40_009), *range(len(whole) - 12, len(whole))}
    for size in sorted(sizes - ends):
        with pytest.raises(DatasetError, match=f"is cut at byte {size}: its "):
            read_all(put(whole[:size]))


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_flipped_bit_or_something_after_the_stream_is_an_error(put: Put, form: str) -> None:
    for at in (200, 100_000, len(FORMS[form]) - 2):
        damaged = bytearray(FORMS[form])
        damaged[at] ^= 4
        with pytest.raises(DatasetError, match=r"is (damaged|cut) at byte \d+: "):
            read_all(put(bytes(damaged)))
    with pytest.raises(DatasetError, match="is damaged"):
        read_all(put(FORMS[form] + b"something else"))


def test_damage_in_a_tar_is_reported_with_the_member_and_the_byte(put: Put) -> None:
    tar = tar_bytes({"a.jpg": DATA[:100_000], "b\n.jpg": DATA[:200_000]})
    path = put(gzip.compress(tar)[:150_000])
    with open_container(path) as content, pytest.raises(DatasetError) as raised:
        for _ in TarWalk(content, "a.tar"):
            pass
    assert str(raised.value) == (
        f"{path} is cut at byte 150000: its gzip stream ends too early: copy it again, or make it "
        r"again (after b\n.jpg)"
    )
    with open_container(path) as content:
        walk = TarWalk(content, "a.tar")
        members = iter(walk)
        assert b"".join(walk.read(next(members))) == DATA[:100_000]
        with pytest.raises(DatasetError, match=r"ends too early: .* \(in b\\n\.jpg\)"):
            b"".join(walk.read(next(members)))


@pytest.mark.parametrize("form", ["gzip", "zstd", "plain"])
def test_a_named_pipe_is_read_to_its_end(tmp_path: Path, form: str) -> None:
    path = tmp_path / "pipe.tar"
    os.mkfifo(path)
    data = FORMS.get(form, DATA)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    try:
        with open_container(path) as content:
            assert content.size_bytes is None
            assert content.read(len(DATA) + 1) == DATA
    finally:
        writer.join()
