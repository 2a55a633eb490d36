"""Listing a source: which files belong to it, in which order, and which sources are refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.pack.listing import SourceListing, list_source, unpacked_name
from feeder.process.path_text import decode_name
from tests.support.sources import encoded, image

_JPEG = encoded(image())


def _put(root: Path, *names: str, data: bytes = _JPEG) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def _names(listing: SourceListing) -> list[str]:
    return [decode_name(listing.stored_name(number)) for number in range(len(listing))]


def test_classes_and_files_are_sorted_and_nested_folders_belong_to_their_class(
    tmp_path: Path,
) -> None:
    _put(tmp_path, "b/2.jpg", "b/1.png", "a/x.jpg", "a/sub.jpg/deep/y.jpg", "B/z.jpg")
    listing = list_source(tmp_path)
    assert listing.classes == ("B", "a", "b")
    assert _names(listing) == ["B/z.jpg", "a/sub.jpg/deep/y.jpg", "a/x.jpg", "b/1.png", "b/2.jpg"]
    assert listing.labels.tolist() == [0, 1, 1, 2, 2]
    assert listing.total_bytes == 5 * len(_JPEG)
    assert listing.hidden == 0


def test_every_file_is_listed_except_hidden_ones(tmp_path: Path) -> None:
    _put(tmp_path, "a/x.jpg", "a/notes.txt", "a/.DS_Store", "a/.thumbs/y.jpg", ".git/config")
    (tmp_path / "a" / "dangling.jpg").symlink_to("nowhere")
    (tmp_path / "a" / "loop.jpg").symlink_to("loop.jpg")
    listing = list_source(tmp_path)
    assert _names(listing) == ["a/dangling.jpg", "a/loop.jpg", "a/notes.txt", "a/x.jpg"]
    assert listing.hidden == 3


def test_undecodable_names_are_listed(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/a\xff"
    os.mkdir(folder)
    with open(folder + b"/b\xfe.jpg", "wb") as file:
        file.write(_JPEG)
    listing = list_source(tmp_path)
    assert listing.stored_name(0) == b"a\xff/b\xfe.jpg"
    assert listing.digest() == list_source(tmp_path).digest()


def test_symlinked_class_folders_are_listed_and_loops_refused(tmp_path: Path) -> None:
    elsewhere = _put(tmp_path / "elsewhere", "x.jpg")
    source = _put(tmp_path / "source", "a/y.jpg")
    (source / "b").symlink_to(elsewhere)
    assert list_source(source).classes == ("a", "b")
    (source / "a" / "up").symlink_to(source / "a")
    with pytest.raises(DatasetError, match=r"a/up links to a folder above it"):
        list_source(source)


def test_digest_changes_with_names_sizes_and_modification_times(tmp_path: Path) -> None:
    source = _put(tmp_path, "a/x.jpg", "a/y.jpg")
    digests = {list_source(source).digest()}
    os.utime(source / "a/x.jpg", ns=(0, 12345))
    digests.add(list_source(source).digest())
    (source / "a/y.jpg").rename(source / "a/z.jpg")
    digests.add(list_source(source).digest())
    _put(source, "a/x.jpg", data=_JPEG + b"\0")
    os.utime(source / "a/x.jpg", ns=(0, 12345))
    digests.add(list_source(source).digest())
    assert len(digests) == 4


def test_shuffle_depends_on_the_seed_and_not_on_other_files(tmp_path: Path) -> None:
    names = [f"c{n % 5}/{n:04d}.jpg" for n in range(200)]
    _put(tmp_path, *names)
    listing = list_source(tmp_path)
    order = listing.shuffled(0)
    assert sorted(order.tolist()) == list(range(200))
    assert not np.array_equal(order, listing.shuffled(1))
    assert np.array_equal(order, list_source(tmp_path).shuffled(0))
    counts = np.bincount(listing.labels[order[:100]], minlength=5)
    assert counts.min() >= 8  # 20 expected: half of the order is a fair sample of the classes
    shuffled_names = [_names(listing)[n] for n in order]
    (tmp_path / names[7]).unlink()
    fewer = list_source(tmp_path)
    shuffled_names.remove(names[7])
    assert [_names(fewer)[n] for n in fewer.shuffled(0)] == shuffled_names


@pytest.mark.parametrize(
    ("first", "second"),
    [("a/x.jpg", "a/x.png"), ("a/x.JPEG", "a/x.jpg"), ("a/s/x", "a/s/x.webp")],
)
def test_images_that_would_unpack_to_one_name_are_refused_with_both_names(
    tmp_path: Path, first: str, second: str
) -> None:
    _put(tmp_path, first, second)
    with pytest.raises(ConfigError, match=f"{first} and {second} in .* unpack to the same name"):
        list_source(tmp_path)


def test_file_and_folder_of_one_name_after_unpacking_are_refused(tmp_path: Path) -> None:
    _put(tmp_path, "a/x.jpg/y.jpg", "a/x.png")
    with pytest.raises(ConfigError, match=r"a/x.png in .* folder a/x.jpg after unpacking"):
        list_source(tmp_path)


def test_an_image_and_other_files_may_share_a_name(tmp_path: Path) -> None:
    _put(tmp_path, "a/x.jpg", "b/x.jpg", "a/s/x.jpg", "a/X.jpg")
    _put(tmp_path, "a/x.json", "a/x.bin", "a/x.txt", data=b"no image")
    assert len(list_source(tmp_path)) == 7
    _put(tmp_path, "a/x.zzz")
    with pytest.raises(ConfigError, match=r"a/x.jpg and a/x.zzz"):
        list_source(tmp_path)


def test_unpacked_names_have_a_jpeg_suffix() -> None:
    assert unpacked_name("a/b.JPEG") == "a/b.JPEG"
    assert unpacked_name("a/b.jfif") == "a/b.jfif"
    assert unpacked_name("a/b.png") == "a/b.jpg"
    assert unpacked_name("a.b/c") == "a.b/c.jpg"


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"source folder .*missing does not exist"):
        list_source(tmp_path / "missing")
    with pytest.raises(DatasetError, match="holds no class folders"):
        list_source(tmp_path)
    _put(tmp_path, "a/x.jpg", "b/x.jpg")
    with pytest.raises(DatasetError, match=r"x.jpg is a file: give a folder that holds"):
        list_source(tmp_path / "a" / "x.jpg")
    with pytest.raises(DatasetError, match=r"x.jpg is a file where a class folder should be"):
        list_source(tmp_path / "a")
    (tmp_path / "c" / "nested").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"class folder .*/c holds no images: add some"):
        list_source(tmp_path)
    _put(tmp_path, "c/readme", "c/nested/labels.csv", data=b"x,y")
    with pytest.raises(DatasetError, match="/c holds no images, only 2 other files"):
        list_source(tmp_path)
