"""The stamp of a source, and the progress of its packing."""

import errno
import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.pack_cache.shared_progress import SharedProgress, round_duration
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
        (lambda root: write(root / "a/1.jpg", bytes(99)), "sizes of files in {} differ"),
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


def test_what_packing_leaves_out_and_the_order_of_files_do_not_count(
    source: Path, tmp_path: Path
) -> None:
    before = stamp(source)
    (source / "a/.DS_Store").write_bytes(b"x")
    (source / ".hidden").mkdir()
    (source / ".hidden/1.jpg").write_bytes(b"x")
    os.utime(source / "a")
    assert before == stamp(source)
    assert describe_change(before, stamp(source)) == ""
    copy = tmp_path / "copy"
    for name in reversed(FILES):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, copy / name)
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
    assert described == f"{shards[0]} was written again, and 1 more"
    shards[0].unlink()
    shards[0].mkdir()
    assert describe_change(before, stamp(*shards)).startswith(f"{shards[0]} was written again")


# Progress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_text_says_what_is_packed_how_far_and_for_how_long() -> None:
    clock = Clock()
    progress = SharedProgress(io.StringIO(), clock)
    texts = []
    for advance in (
        lambda: progress.begin_source("imagenet", 1, 1),
        lambda: progress.advance("looking at its files: 4,096 so far"),
        lambda: progress.begin("listing", "items", None),
        lambda: progress.begin("packing", "images", 1000),
        lambda: progress.add(250),
        lambda: progress.add(750),
        lambda: progress.begin_source("val", 2, 2),
        lambda: progress.begin("comparing", "files", 4),
    ):
        clock.now_s += 100
        advance()
        texts.append(progress.text)
    assert texts == [
        "packing imagenet, looking at its files",
        "packing imagenet, looking at its files: 4,096 so far",
        "packing imagenet, listing 0 items",
        "packing imagenet, 0 %",
        "packing imagenet, 25 %, 5 min left",
        "packing imagenet, 100 %",
        "packing val (2 of 2), looking at its files",
        "packing val (2 of 2), comparing files, 0 %",
    ]
    durations = [round_duration(seconds) for seconds in (89, 300, 3 * 3600)]
    assert durations == ["89 s", "5 min", "3 h"]


def test_a_packing_that_starts_over_passes_no_number_twice() -> None:
    def run(done: int) -> list[int]:
        progress, numbers = SharedProgress(io.StringIO()), []
        for source in (1, 2):
            progress.begin_source("d", source, 2)
            numbers.append(progress.advances)
            progress.begin("listing", "items", None)
            progress.add(1000)
            progress.begin("packing", "images", 1000, done)
            numbers.append(progress.advances)
            progress.add(1000 - done)
            numbers.append(progress.advances)
        assert numbers == sorted(set(numbers))
        assert [number // 10**11 for number in numbers] == [1, 1, 1, 2, 2, 2], "source by source"
        return numbers

    first, again = run(0), run(400)
    assert again[1] == first[1] + 400, "those of the earlier run count"
    assert again[2] == first[2]
    assert max(first) < 2**48, "which the wire takes"


def test_a_folder_that_cannot_be_listed_is_named_with_its_path(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, real_open = source / "a", os.open
    (parent / "deep").mkdir()

    def refuse(path: str | bytes, flags: int, *, dir_fd: int | None = None) -> int:
        folder = os.readlink(f"/proc/self/fd/{dir_fd}") if path == b"deep" else ""
        if folder == str(parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real_open(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    refusal = f"^folder {re.escape(str(source / 'a'))}/deep cannot be listed: Permission denied$"
    with pytest.raises(DatasetError, match=refusal):
        stamp(source)
