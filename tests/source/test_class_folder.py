"""A folder of classes: which files belong to it, with which labels, and which are refused."""

import errno
import os
from pathlib import Path

import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_to_text
from feeder.source.class_folder import ClassFolder
from feeder.source.item_bytes import SourceError, unpacked_name
from feeder.source.location.storage import stamp_path
from feeder.source.source import SourceSpec
from tests.source.listings import Listed, list_container
from tests.support.sources import encoded, image

_JPEG = encoded(image())


def put(root: Path, *names: str, data: bytes = _JPEG) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def spec_of(source: Path, *, may_lack_images: bool = False) -> SourceSpec:
    return SourceSpec(
        kind="class-folder",
        location=str(source),
        containers=(path_to_text(source),),
        may_lack_images=may_lack_images,
    )


def list_folder(source: Path, *, may_lack_images: bool = False) -> Listed:
    spec = spec_of(source, may_lack_images=may_lack_images)
    return list_container(spec, source.with_name("work"))


def test_the_label_of_a_file_is_its_class_folder_however_deep_it_lies(source: Path) -> None:
    put(source, "b/2.jpg", "b/1.png", "a/x.jpg", "a/sub.jpg/deep/y.jpg", "B/z.jpg")
    listed = list_folder(source)
    assert listed.facts.texts == ("B", "a", "b")
    assert listed.labels == {
        "B/z.jpg": "B",
        "a/sub.jpg/deep/y.jpg": "a",
        "a/x.jpg": "a",
        "b/1.png": "b",
        "b/2.jpg": "b",
    }
    assert listed.facts.bytes == 5 * len(_JPEG)


def test_folders_are_names_of_classes_whatever_they_are_called(source: Path) -> None:
    names = ("-1", "007", "10", "2", "2.0", "NA", " a ", "a\udcff", "[1]")
    put(source, *(f"{name}/x.jpg" for name in names))
    listed = list_folder(source)
    assert listed.labels == {f"{name}/x.jpg": name for name in names}
    assert sorted(listed.facts.texts) == sorted(names)
    assert (listed.facts.by_name, listed.facts.field, listed.rejected) == (True, "", {})
    assert (listed.facts.hidden, listed.facts.rejected) == (0, 0)


def test_every_file_is_listed_except_hidden_ones(source: Path) -> None:
    put(source, "a/x.jpg", "a/notes.txt", "a/.DS_Store", "a/.thumbs/y.jpg", ".git/config")
    (source / "a" / "dangling.jpg").symlink_to("nowhere")
    (source / "a" / "loop.jpg").symlink_to("loop.jpg")
    listed = list_folder(source)
    assert sorted(listed.items) == ["a/dangling.jpg", "a/loop.jpg", "a/notes.txt", "a/x.jpg"]
    assert listed.facts.hidden == 3
    folder = ClassFolder(spec_of(source))
    assert folder.read_item(listed.items["a/x.jpg"]) == _JPEG
    with pytest.raises(SourceError, match="unreadable: a dangling link"):
        folder.read_item(listed.items["a/dangling.jpg"])
    with pytest.raises(SourceError, match="unreadable: "):
        folder.read_item(listed.items["a/loop.jpg"])


def test_names_that_are_not_utf_8_are_listed_and_read(source: Path) -> None:
    folder = os.fsencode(source) + b"/a\xff"
    os.mkdir(folder)
    with open(folder + b"/b\xfe.jpg", "wb") as file:
        file.write(_JPEG)
    listed = list_folder(source)
    assert listed.labels == {"a\udcff/b\udcfe.jpg": "a\udcff"}
    item = listed.items["a\udcff/b\udcfe.jpg"]
    assert ClassFolder(spec_of(source)).read_item(item) == _JPEG


def test_linked_class_folders_are_listed_and_loops_refused(source: Path) -> None:
    elsewhere = put(source.parent / "elsewhere", "x.jpg")
    put(source, "a/y.jpg")
    (source / "b").symlink_to(elsewhere)
    assert list_folder(source).labels == {"a/y.jpg": "a", "b/x.jpg": "b"}
    (source / "a" / "up").symlink_to(source / "a")
    with pytest.raises(DatasetError, match=r"a/up links to a folder above it"):
        list_folder(source)


def test_stamps_are_listed(source: Path) -> None:
    put(source, "a/x.jpg", "a/old.jpg")
    os.utime(source / "a/old.jpg", ns=(0, -12345))
    (source / "a/none.jpg").symlink_to("nowhere")
    stamps = {name: stamp_path(source / name) for name in ("a/x.jpg", "a/old.jpg")}
    assert list_folder(source).stamps == {**stamps, "a/none.jpg": 0}


def test_file_and_folder_of_one_name_after_unpacking_are_refused(source: Path) -> None:
    put(source, "a/x.jpg/y.jpg", "a/x.png")
    with pytest.raises(ConfigError, match=r"a/x.png in .* folder a/x.jpg after unpacking"):
        list_folder(source)


def test_a_folder_may_have_the_name_of_a_file_that_is_no_image(source: Path) -> None:
    put(source, "a/x.jpg/y.jpg")
    put(source, "a/x.txt", "a/.x.png", data=b"no image")
    put(source, "a/x.png/z.jpg", "a/own.jpg")
    assert len(list_folder(source).items) == 4


def test_unpacked_names_have_a_jpeg_suffix() -> None:
    assert unpacked_name("a/b.JPEG") == "a/b.JPEG"
    assert unpacked_name("a/b.jfif") == "a/b.jfif"
    assert unpacked_name("a/b.png") == "a/b.jpg"
    assert unpacked_name("a.b/c") == "a.b/c.jpg"


def test_folders_without_classes_or_images_are_refused(source: Path) -> None:
    with pytest.raises(DatasetError, match=r"source folder .*missing does not exist"):
        list_folder(source.with_name("missing"))
    with pytest.raises(DatasetError, match="holds no class folders"):
        list_folder(source)
    put(source, "a/x.jpg", "b/x.jpg")
    with pytest.raises(DatasetError, match=r"x.jpg is a file: give a folder that holds"):
        list_container(spec_of(source / "a" / "x.jpg"), source.with_name("work"))
    with pytest.raises(DatasetError, match=r"x.jpg is a file where a class folder should be"):
        list_container(spec_of(source / "a"), source.with_name("work"))
    (source / "c" / "nested").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"class folder .*/c holds no images: add some"):
        list_folder(source)
    put(source, "c/readme", "c/nested/labels.csv", data=b"x,y")
    with pytest.raises(
        DatasetError, match="/c holds no images, only 2 other files; readme is of no"
    ):
        list_folder(source)


def test_of_several_stray_files_the_first_by_name_is_reported(source: Path) -> None:
    put(source, "b/x.jpg", "m.txt", "c.txt", "z.txt")
    with pytest.raises(DatasetError, match=r"/c\.txt is a file where"):
        list_folder(source)


def test_another_datasets_classes_may_be_empty_but_not_all_of_them(source: Path) -> None:
    put(source, "a/x.jpg")
    (source / "b").mkdir()
    listed = list_folder(source, may_lack_images=True)
    assert listed.facts.texts == ("a", "b")
    assert listed.labels == {"a/x.jpg": "a"}
    put(source, "b/notes.txt", data=b"no image")
    with pytest.raises(
        DatasetError, match=r"/b holds no images, only 1 other file; notes.txt is of"
    ):
        list_folder(source, may_lack_images=True)
    (source / "a" / "x.jpg").unlink()
    (source / "b" / "notes.txt").unlink()
    with pytest.raises(DatasetError, match="holds no images: put some into the class folders"):
        list_folder(source, may_lack_images=True)


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("x.qoi", b"qoif....", "x.qoi is a QOI image: convert it to PNG or JPEG"),
        ("x.dds", b"DDS ....", "x.dds is a DDS image: convert it to PNG or JPEG"),
        ("x.jpg", b"version https://git-lfs", "x.jpg is a Git LFS pointer and no image: fetch it"),
        ("x.jpg", b"<!DOCTYPE html>", "x.jpg is a page of HTML, as of a failed download: download"),
        ("x.jpg", b"", "x.jpg is empty; add some or remove the folder"),
    ],
)
def test_what_is_there_instead_of_images_is_named(
    source: Path, name: str, data: bytes, what: str
) -> None:
    put(source, f"a/{name}", data=data)
    put(source, "a/README", data=b"text")
    with pytest.raises(DatasetError, match=f"a holds no images, only 2 other files; {what}"):
        list_folder(source)


def test_images_without_permission_are_not_called_something_else(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "a/x.jpg")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("feeder.source.location.storage.open_regular", refuse)
    with pytest.raises(DatasetError, match=r"x.jpg cannot be read: Permission denied; add some"):
        list_folder(source)


def test_a_training_set_beside_it_with_other_classes_is_said(tmp_path: Path) -> None:
    for name in ("train/ant", "train/bee", "train/cat", "val/ant", "val/cat", "test/ant"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.jpg").write_bytes(_JPEG)
    (warning,) = list_folder(tmp_path / "val").facts.notes
    assert warning == (
        "feeder: warning: train has a class bee and val has none, so that their labels are not the "
        "same numbers: pack train first, and this one with --classes-of"
    )
    (tmp_path / "val" / "bee").mkdir()
    (tmp_path / "val" / "bee" / "x.jpg").write_bytes(_JPEG)
    for name in ("val", "train"):
        assert list_folder(tmp_path / name).facts.notes == ()
