"""The members of tars: GNU tar's and Python's, cut, damaged, concatenated and nested."""

import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.source.decompress import open_container
from feeder.source.tar_members import TarMember, TarWalk
from tests.source.listings import GOLDEN
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


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_every_kind_of_member_of_gnu_tar_is_recognised(form: str) -> None:
    path = GOLDEN / f"kinds-{form}.tar"
    members = {member.name: member for member in walk(path)}
    image = members["./plain.jpg"]
    long_name = f"./{'long' * 30}/{'name' * 30}.jpg"
    assert {name: member.kind for name, member in members.items()} == {
        ".": "folder",
        "./empty.jpg": "file",
        f"./{'long' * 30}": "folder",
        long_name: "file",
        "./pipe.jpg": "device",
        "./plain.jpg": "file",
        "./same.jpg": "hard link",
        "./soft.jpg": "symbolic link",
        "./sparse.jpg": "sparse",
        "./é\udcff.jpg": "file",
    }
    data = path.read_bytes()
    start = data[image.offset : image.offset + image.size_bytes]
    assert start[:3] == b"\xff\xd8\xff"
    for name in (long_name, "./é\udcff.jpg"):
        member = members[name]
        assert data[member.offset : member.offset + member.size_bytes] == start


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


def test_the_number_of_members_does_not_take_memory(put: Put) -> None:
    names = [f"{number:06d}.cls" for number in range(1500)]
    path = put(tar_bytes(dict.fromkeys(names, b"1")))
    peaks = []
    for count in (300, 1500):
        with open_container(path) as content:
            members = iter(TarWalk(content, path.name))
            tracemalloc.start()
            for _ in range(count):
                next(members)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000, peaks


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


@pytest.mark.parametrize("members", [1, 2])
def test_without_end_marker_whole_members_are_accepted_and_it_is_noticed(
    put: Put, members: int
) -> None:
    whole = tar_bytes({"a.jpg": b"x" * 700, "b.jpg": b"y" * 512})
    path = put(whole[: [0, 3, 5][members] * _BLOCK])
    with open_container(path) as content:
        tar = TarWalk(content, path.name)
        assert len(list(tar)) == members
        assert not tar.has_end_marker


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
        (b"BZh9" + bytes(600), "is compressed with bzip2: decompress it, or use gzip or zstd"),
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


def _header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(tarfile.TarInfo(name.decode()).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size.ljust(12, b"\0")
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    "size",
    [b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"77777777777", b"\xff" * 10 + b"\xfc\x00"],
    ids=["-1", "2**87", "8 GiB", "-1024"],
)
def test_impossible_sizes_neither_loop_nor_fill_memory(put: Put, size: bytes) -> None:
    good = tar_bytes({"a.jpg": b"x" * 600})[: 3 * _BLOCK]
    headers = (b"L", b"x", b"g", b"S")  # in which tarfile reads -1 as 0, without harm
    for kind in (b"0", b"?", *(() if size == b"\xff" * 12 else headers)):
        with pytest.raises(DatasetError) as raised:
            walk(put(good + _header(b"b", size, kind) + good + bytes(1024)))
        assert "after a.jpg" in str(raised.value) or "in the data of b" in str(raised.value)


def test_a_tar_in_a_tar_is_read_in_place(put: Put) -> None:
    inner = {"x.JPEG": os.urandom(1000), "y.JPEG": os.urandom(512)}
    outer = {"n1.tar": tar_bytes(inner), "n2.tar": tar_bytes({"z.JPEG": b"z"})}
    path = put(tar_bytes(outer))
    stored = path.read_bytes()
    found = {}
    with open_container(path) as content:
        tar = TarWalk(content, path.name)
        for member in tar:
            for image in tar.inner(member):
                data = stored[image.offset : image.offset + image.size_bytes]
                found[member.name, image.name] = data
    expected = {("n1.tar", name): data for name, data in inner.items()}
    assert found == expected | {("n2.tar", "z.JPEG"): b"z"}


def test_a_cut_tar_in_a_tar_ends_at_its_own_end(put: Put) -> None:
    inner = tar_bytes({"x.JPEG": bytes(5000), "y.JPEG": bytes(5000)})
    path = put(tar_bytes({"n1.tar": inner[:9000], "n2.tar": inner}))
    with open_container(path) as content:
        tar = TarWalk(content, path.name)
        member = next(iter(tar))
        with pytest.raises(DatasetError, match=r"^n1\.tar in a\.tar is cut: .* of y\.JPEG"):
            list(tar.inner(member))
