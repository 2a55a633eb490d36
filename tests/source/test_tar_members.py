"""Tars and compressed streams: read to the last byte, or refused where they are cut or damaged."""

import gzip
import os
import random
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.source.decompress import open_container
from feeder.source.tar_members import TarMember, TarWalk
from tests.source.tar_writer import tar_bytes

zstandard = pytest.importorskip("zstandard", reason="make test installs zstandard")

_BLOCK = tarfile.BLOCKSIZE
_NOISE = random.Random(5)
DATA = _NOISE.randbytes(300_000) + bytes(500_000) + _NOISE.randbytes(7)
_SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


def _zstd(data: bytes) -> bytes:
    """Return a frame without its size, as of a stream, and with a checksum."""
    parameters = zstandard.ZstdCompressionParameters(write_checksum=True)
    engine = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return engine.compress(data) + engine.flush()


_PARTS = {
    "gzip": [gzip.compress(DATA)],
    "gzip members": [gzip.compress(part) for part in (DATA[:1000], b"", DATA[1000:])],
    "zstd": [_zstd(DATA)],
    "zstd with a size": [zstandard.compress(DATA)],
    "zstd frames": [_zstd(DATA[:1000]), _SKIPPABLE, _zstd(b""), _zstd(DATA[1000:])],
}
FORMS = {form: b"".join(parts) for form, parts in _PARTS.items()}
Put = Callable[[bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(data: bytes) -> Path:
        path = tmp_path / "a.tar"
        path.write_bytes(data)
        return path

    return write


def read_all(path: Path, size: int = 70_001) -> bytes:
    with open_container(path) as content:
        return b"".join(iter(lambda: content.read(size), b""))


def walk(path: Path) -> list[TarMember]:
    with open_container(path) as content:
        return list(TarWalk(content, path.name))


@pytest.mark.parametrize("form", FORMS)
def test_everything_compressed_is_read(put: Put, form: str) -> None:
    path = put(FORMS[form])
    assert read_all(path) == read_all(path, 1 << 20) == DATA
    with open_container(path) as content:
        assert (content.size_bytes, content.stored_bytes) == (None, len(FORMS[form]))
        content.seek(10)
        assert content.read(5) == DATA[10:15]


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_of_a_stream_is_an_error_except_between_its_parts(put: Put, form: str) -> None:
    whole = FORMS[form]
    ends = {sum(map(len, _PARTS[form][:number])) for number in range(len(_PARTS[form]))}
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


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_data_is_where_the_walk_finds_it(put: Put, form: int) -> None:
    sizes = (0, 1, 511, 512, 513, 1024, 70_001)
    files = {f"d/{size}.bin": os.urandom(size) for size in sizes}
    path = put(tar_bytes(files, form=form))
    with open_container(path) as content:
        tar = TarWalk(content, path.name)
        read = {member.name: b"".join(tar.read(member)) for member in tar}
        assert tar.has_end_marker
    assert read == files
    stored = path.read_bytes()
    for member in walk(path):
        assert stored[member.offset : member.offset + member.size_bytes] == files[member.name]


def test_every_cut_is_an_error_except_between_members_after_the_last_byte(put: Put) -> None:
    files = {"a.jpg": bytes(range(256)) * 3, "b" * 120: b"x" * 100}  # the second has a long name
    whole = tar_bytes(files, form=tarfile.GNU_FORMAT)
    assert len(walk(put(whole))) == 2
    for size in {*range(1, len(whole) - 2 * _BLOCK, 31)} - {3 * _BLOCK}:
        for data in (whole[:size], gzip.compress(whole[:size])):
            with pytest.raises(DatasetError, match=r"^a\.tar is (cut: it ends|no tar file)") as e:
                walk(put(data))
            assert "\n" not in str(e.value)


def test_what_is_cut_is_reported_with_the_member_and_the_byte(put: Put) -> None:
    tar = tar_bytes({"a.jpg": DATA[:100_000], "b\n.jpg": DATA[:200_000]})
    with pytest.raises(DatasetError) as raised:
        walk(put(tar[:150_000]))
    assert str(raised.value) == (
        r"a.tar is cut: it ends after 150000 bytes, in the data of b\n.jpg, which has 200000 bytes "
        "from byte 101376 on: copy it again, or make it again"
    )
    path = put(gzip.compress(tar)[:150_000])
    with pytest.raises(DatasetError) as raised:
        walk(path)
    assert str(raised.value) == (
        f"{path} is cut at byte 150000: its gzip stream ends too early: copy it again, or make it "
        r"again (after b\n.jpg)"
    )
    with open_container(path) as content:
        members = iter(tar_walk := TarWalk(content, "a.tar"))
        assert b"".join(tar_walk.read(next(members))) == DATA[:100_000]
        with pytest.raises(DatasetError, match=r"ends too early: .* \(in b\\n\.jpg\)"):
            b"".join(tar_walk.read(next(members)))


_FOUR = tar_bytes({f"{n}.jpg": b"x" * 600 for n in range(4)})
_ONE, _TWO = tar_bytes({"a.jpg": b"x"}), tar_bytes({"b.jpg": b"y"})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"\xff\xd8\xff" * 1000, "is no tar file"),
        (b"BZh9" + bytes(600), "is compressed by bzip2: unpack it, or compress it as .gz or .zst"),
        # A header that is damaged, where tarfile ends, or overwritten by zeros.
        (_FOUR[:1536] + b"!" + _FOUR[1537:], r"damaged at byte 1536, after 0\.jpg"),
        (_FOUR[:1536] + bytes(512) + _FOUR[2048:], r"byte 2048, after 0\.jpg: what follows would"),
        (_ONE + _TWO, f"at byte {len(_ONE)}, after a.jpg: what follows .* `tar --ignore-zeros -xf"),
        (_ONE + bytes(100_000) + b"x", f"end-of-archive marker, at byte {len(_ONE) + 100_000},"),
    ],
)
def test_what_is_no_tar_or_damaged_or_goes_on_is_called_so(
    put: Put, data: bytes, what: str
) -> None:
    with pytest.raises(DatasetError, match=what):
        walk(put(data))
