"""The members of tars: GNU tar's and Python's, cut, damaged, concatenated and nested."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.source.decompress import open_container
from feeder.source.tar_members import TarMember, TarWalk
from tests.source.tar_writer import tar_bytes

_BLOCK = tarfile.BLOCKSIZE


def walk(path: Path) -> list[TarMember]:
    with open_container(path) as content:
        return list(TarWalk(content, path.name))


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "a.tar"
        path.write_bytes(data)
        return path

    return write


Put = Callable[[bytes], Path]


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
    ends = {2 * _BLOCK + _BLOCK, len(whole) - 2 * _BLOCK}
    assert len(walk(put(whole))) == 2
    for size in range(1, len(whole), 31):
        if size in ends or size > len(whole) - 2 * _BLOCK:
            continue
        with pytest.raises(DatasetError, match=r"^a\.tar is (cut: it ends|no tar file)") as raised:
            walk(put(whole[:size]))
        assert "\n" not in str(raised.value)


def test_a_cut_names_the_member_and_the_byte(put: Put) -> None:
    whole = tar_bytes({"a.jpg": b"x" * 700, "b\n.jpg": b"y" * 5000})
    with pytest.raises(DatasetError) as raised:
        walk(put(whole[:5000]))
    assert str(raised.value) == (
        r"a.tar is cut: it ends after 5000 bytes, in the data of b\n.jpg, which has 5000 bytes "
        "from byte 2048 on: copy it again, or make it again"
    )


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
        (
            _FOUR[:1536] + bytes(512) + _FOUR[2048:],
            r"byte 2048, after 0\.jpg: what follows would be",
        ),
        (
            _ONE + _TWO,
            f"at byte {len(_ONE)}, after a.jpg: what follows .* `tar --ignore-zeros -xf`",
        ),
        (
            _ONE + bytes(100_000) + b"x",
            f"after its end-of-archive marker, at byte {len(_ONE) + 100_000},",
        ),
    ],
)
def test_what_is_no_tar_or_damaged_or_goes_on_is_called_so(
    put: Put, data: bytes, what: str
) -> None:
    with pytest.raises(DatasetError, match=what):
        walk(put(data))
