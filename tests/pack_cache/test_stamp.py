"""The stamp of a source: which changes it notices, and how they are described."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.pack_cache.stamp import Stamp, describe_change, take_stamp
from feeder.process.path_text import path_to_text

FILES = ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/deep/3.jpg")


def stamp(*paths: Path) -> Stamp:
    return take_stamp(map(path_to_text, paths), lambda files: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def rewrite(path: Path) -> None:
    """Write other bytes of the same size, and a time one nanosecond later."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def swap(one: Path, other: Path) -> None:
    """Exchange the contents of two names; sizes and times stay in the folder."""
    one.rename(one.with_name("x"))
    other.rename(one)
    one.with_name("x").rename(other)


@pytest.mark.parametrize(
    ("change", "described"),
    [
        (lambda root: write(root / "a/3.jpg", b""), "1 file more in {}"),
        (lambda root: (root / "b/deep/3.jpg").unlink(), "1 file fewer in {}"),
        (
            lambda root: write(root / "a/1.jpg", b"longer than before"),
            "sizes of files in {} differ",
        ),
        (lambda root: rewrite(root / "a/1.jpg"), "names or modification times of files in {}"),
        (lambda root: (root / "a/1.jpg").rename(root / "a/9.jpg"), "names or modification times"),
        (lambda root: swap(root / "a/1.jpg", root / "b/deep/3.jpg"), "names or modification times"),
        (lambda root: (root / "c").mkdir(), "names or modification times of files in {} differ"),
        (lambda root: (root / "d").symlink_to(root / "nowhere"), "1 file more in {}"),
        (lambda root: (root / "a/up").symlink_to(root), "names or modification times"),
    ],
)
def test_a_change_in_a_folder_is_noticed_and_described(
    source: Path, change: Callable[[Path], object], described: str
) -> None:
    before = stamp(source)
    change(source)
    assert described.format(source) in describe_change(before, stamp(source))


def test_what_packing_leaves_out_changes_nothing(source: Path, tmp_path: Path) -> None:
    before = stamp(source)
    (source / "a/.DS_Store").write_bytes(b"x")
    (source / ".hidden").mkdir()
    (source / ".hidden/1.jpg").write_bytes(b"x")
    os.utime(source / "a")
    assert describe_change(before, stamp(source)) == ""
    assert before == stamp(source)


def test_the_order_of_files_and_arguments_does_not_count(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in reversed(FILES):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(name.encode())
        status = (source / name).stat()
        os.utime(copy / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    one, other = stamp(source), stamp(copy)
    assert (one[0].files, one[0].bytes, one[0].digest) == (4, 33, other[0].digest)
    assert stamp(source, copy) == stamp(copy, source)


def test_containers_and_label_files_count_each(tmp_path: Path) -> None:
    shards = [tmp_path / f"{n}.tar" for n in range(3)]
    for shard in shards:
        shard.write_bytes(b"shard")
    before = stamp(*shards)
    assert describe_change(before, stamp(*shards)) == ""
    assert describe_change(before, stamp(*shards[1:])) == f"{shards[0]} is gone"
    assert describe_change(stamp(shards[1]), before) == f"{shards[0]} is new, and 1 more"
    rewrite(shards[2])
    assert describe_change(before, stamp(*shards)) == f"{shards[2]} was written again"
    rewrite(shards[0])
    described = describe_change(before, stamp(*shards))
    assert described == f"{shards[0]} was written again, and 1 more have changed"
    shards[0].unlink()
    shards[0].mkdir()
    assert describe_change(before, stamp(*shards)).startswith(f"{shards[0]} was written again")
