"""A folder of classes: which files belong to it, with which labels, and which are refused."""

import errno
import os
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from feeder.source.class_folder import ClassFolder
from feeder.source.item_bytes import SourceError
from feeder.source.location.storage import stamp_path
from tests.source.listings import JPEG, Listed, list_one, put, spec_of


def list_folder(source: Path, **options: bool) -> Listed:
    return list_one("class-folder", source, **options)


def read(source: Path, listed: Listed, name: str) -> bytes:
    return ClassFolder(spec_of("class-folder", source)).read_item(listed.items[name])


def test_the_label_of_a_file_is_its_class_folder_however_deep_it_lies(tmp_path: Path) -> None:
    names = "b/2.jpg b/1.png a/x.jpg a/sub.jpg/deep/y.jpg B/z.jpg"
    source = put(tmp_path / "source", names)
    put(source, {"a/.DS_Store": b"", "a/.thumbs/y.jpg": JPEG, ".git/config": b""})
    os.utime(source / "a/x.jpg", ns=(0, -12345))
    listed = list_folder(source)
    assert listed.facts.texts == ("B", "a", "b")
    assert listed.labels == {name: name[0] for name in names.split()}
    assert listed.stamps == {name: stamp_path(source / name) for name in names.split()}
    assert (listed.facts.bytes, listed.facts.hidden) == (5 * len(JPEG), 3)


def test_folders_are_names_of_classes_whatever_they_are_called(tmp_path: Path) -> None:
    names = ("-1", "007", "10", "2", "2.0", "NA", " a ", "a\udcff", "[1]")
    source = put(tmp_path / "source", {f"{name}/b\udcfe.jpg": JPEG for name in names})
    listed = list_folder(source)
    assert listed.labels == {f"{name}/b\udcfe.jpg": name for name in names}
    assert sorted(listed.facts.texts) == sorted(names)
    assert (listed.facts.by_name, listed.facts.field, listed.rejected) == (True, "", {})
    assert read(source, listed, "a\udcff/b\udcfe.jpg") == JPEG


def test_every_file_is_listed_and_links_are_followed_but_not_in_loops(tmp_path: Path) -> None:
    source = put(tmp_path / "source", "a/x.jpg a/notes.txt")
    (source / "a" / "dangling.jpg").symlink_to("nowhere")
    (source / "a" / "loop.jpg").symlink_to("loop.jpg")
    (source / "b").symlink_to(put(tmp_path / "elsewhere", "x.jpg"))
    listed = list_folder(source)
    names = ["dangling.jpg", "loop.jpg", "notes.txt", "x.jpg"]
    assert sorted(listed.items) == [*(f"a/{name}" for name in names), "b/x.jpg"]
    assert listed.stamps["a/dangling.jpg"] == 0
    assert read(source, listed, "a/x.jpg") == JPEG
    for name, reason in (("dangling", "a dangling link"), ("loop", "too many levels")):
        with pytest.raises(SourceError, match=f"unreadable: {reason}"):
            read(source, listed, f"a/{name}.jpg")
    (source / "a" / "up").symlink_to(source / "a")
    with pytest.raises(DatasetError, match=r"a/up links to a folder above it"):
        list_folder(source)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "holds no class folders"),
        ({"b/x": JPEG, "m.txt": b"", "c.txt": b"", "z.txt": b""}, r"/c\.txt is a file where"),
        ({"a/x": JPEG, "c/d/.x": JPEG}, "class folder .*/c holds no images: add some or remove"),
        ({"c/readme": b"x", "c/d/y.csv": b"x"}, "/c holds no images, only 2 other files; readme"),
        ({"a/x.jpg": b"version https://git-lfs"}, "x.jpg is a Git LFS pointer and no image: fetch"),
        ({"a/x.jpg": b"", "a/README": b"x"}, "only 2 other files; x.jpg is empty; add some or rem"),
    ],
)
def test_what_is_there_instead_of_class_folders_with_images_is_said(
    tmp_path: Path, files: dict[str, bytes], problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        list_folder(put(tmp_path / "source", files))


def test_images_without_permission_are_not_called_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path / "source", "a/x.jpg")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("feeder.source.location.storage.open_regular", refuse)
    with pytest.raises(DatasetError, match=r"x.jpg cannot be read: Permission denied; add some"):
        list_folder(source)


def test_a_training_set_beside_it_with_other_classes_is_said(tmp_path: Path) -> None:
    put(tmp_path, "train/ant/x train/bee/x train/cat/x val/ant/x val/cat/x test/ant/x")
    (warning,) = list_folder(tmp_path / "val").facts.notes
    assert warning == (
        "feeder: warning: train has a class bee and val has none, so that their labels are not the "
        "same numbers: pack train first, and this one with --classes-of"
    )
    put(tmp_path, "val/bee/x")
    for name in ("val", "train"):
        assert list_folder(tmp_path / name).facts.notes == ()
