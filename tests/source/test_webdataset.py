"""WebDataset: what webdataset's own writer wrote, and samples and tars with faults."""

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import DatasetError
from tests.source.listings import (
    GOLDEN,
    Listed,
    list_container,
    list_one,
    read_items,
    read_one,
    spec_of,
)
from tests.source.tar_writer import member, tar_bytes

READ = json.loads((GOLDEN / "webdataset.json").read_text())
NAMES = ["tench", "goldfish", "great white shark"]


def list_tar(data: bytes, folder: Path, **options: Any) -> Listed:
    path = folder / "a.tar"
    path.write_bytes(data)
    return list_one("webdataset", path, **options)


@pytest.mark.parametrize(
    ("name", "image", "label", "expected"),
    [
        ("webdataset-cls.tar", "", "", [0, 1, 4, 9, 16]),
        ("webdataset-json.tar.gz", "", "", [[0, 2], [1, 3], [2, 4]]),
        ("webdataset-json.tar.gz", "png", "json.a.b", [0.0, 0.5, 1.0]),
        ("webdataset-json.tar.gz", ".PNG", ".json.text", NAMES),
        ("webdataset-txt.tar.zst", "left.jpg", "", NAMES),
        ("webdataset-txt.tar.zst", "right.png", "txt", NAMES),
    ],
)
def test_what_webdatasets_writer_wrote_is_read(
    tmp_path: Path, name: str, image: str, label: str, expected: list[Any]
) -> None:
    if name.endswith(".zst"):
        pytest.importorskip("zstandard", reason="make test installs zstandard")
    spec = spec_of("webdataset", GOLDEN / name, image=image, label=label)
    listed = list_container(spec, tmp_path)
    assert list(listed.labels.values()) == expected
    assert listed.rejected == {}
    assert listed.facts.notes == ()
    images = read_items(spec, listed, tmp_path)
    field = image.lstrip(".").lower() or ("jpg" if "cls" in name else "png")
    assert {key: hashlib.sha256(data).hexdigest() for key, data in images.items()} == {
        f"{sample['key']}.{field}": sample[field] for sample in READ[name]
    }
    is_copied = not name.endswith(".tar")
    assert (listed.facts.spilled_bytes > 0) == is_copied


def test_several_tars_prefix_the_names(tmp_path: Path) -> None:
    paths = [tmp_path / "s-0.tar", tmp_path / "s-1.tar.gz"]
    paths[0].write_bytes(tar_bytes({"a.jpg": b"x", "a.cls": b"1", "b.jpg": b"y"}))
    paths[1].write_bytes(gzip.compress(tar_bytes({"a.jpg": b"z", "a.cls": b"2", "../b.jpg": b""})))
    spec = spec_of("webdataset", *paths)
    listed = [list_container(spec, tmp_path / "work", number) for number in (0, 1)]
    assert [each.labels for each in listed] == [{"s-0/a.jpg": 1}, {"s-1/a.jpg": 2}]
    assert [sorted(each.rejected) for each in listed] == [["s-0/b.jpg"], ["s-1/../b.jpg"]]
    for each, data in zip(listed, (b"x", b"z"), strict=True):
        assert list(read_items(spec, each, tmp_path / "work").values()) == [data]


def test_keys_end_at_the_first_dot_of_the_file_name(tmp_path: Path) -> None:
    names = ("v1.2/a.jpg", "v1.2/a.cls", "./v1.2/b.x.JPG", "v1.2/b.cls", "/v1.2//c.jpeg")
    listed = list_tar(tar_bytes(dict.fromkeys((*names, "v1.2/c.CLS"), b"7")), tmp_path)
    assert listed.labels == {"v1.2/a.jpg": 7, "v1.2/b.x.JPG": 7, "v1.2/c.jpeg": 7}


def test_folders_hidden_members_and_webdatasets_own_are_left_out(tmp_path: Path) -> None:
    tar = member("d", kind=tarfile.DIRTYPE) + tar_bytes(
        {
            "__meta__": b"{}",
            "__index__/a.json": b"{}",
            "README": b"x",
            "d/._a.jpg": b"x",
            ".git/b.jpg": b"x",
            "d/a.jpg": b"x",
            "d/a.cls": b"1",
        }
    )
    listed = list_tar(tar, tmp_path)
    assert (listed.labels, listed.rejected, listed.facts.hidden) == ({"d/a.jpg": 1}, {}, 2)


_IMAGE = ("k.jpg", b"image")


@pytest.mark.parametrize(
    ("members", "kind", "reason"),
    [
        ([("k.cls", b"1")], "no-image", "it has no image, only cls"),
        ([_IMAGE], "no-label", "it has no cls, txt or json beside its image (--label-kind none"),
        ([_IMAGE, ("k.png", b"x"), ("k.cls", b"1")], "two-images", "jpg and png: choose with --im"),
        ([_IMAGE, ("k.JPG", b"x"), ("k.cls", b"1")], "two-images", "same member twice"),
        ([_IMAGE, ("k.cls", b"1"), ("k.cls", b"1")], "bad-label", "it has the member cls twice"),
        ([("k.jpg", b""), ("k.cls", b"1")], "empty", "no bytes"),
        ([_IMAGE, ("k.cls", b" \n")], "no-label", "it has no label"),
        ([_IMAGE, ("k.txt", b"\xff")], "bad-label", "its txt is not UTF-8"),
        ([_IMAGE, ("k.txt", b"x" * 2_000_000)], "bad-label", "its txt has 2000000 bytes"),
        ([_IMAGE, *((f"k.{n}", b"") for n in range(300))], "corrupt", "256 members or more"),
        ([_IMAGE, ("k.json", b"{")], "bad-label", "its json is no JSON"),
        ([_IMAGE, ("k.json", b'{"a": 1}')], "no-label", "none of the keys label, cls"),
        ([_IMAGE, ("k.json", b'{"label": {"x": 1}}')], "bad-label", "a JSON object"),
    ],
)
def test_a_sample_with_a_fault_is_rejected_and_the_next_one_read(
    tmp_path: Path, members: list[tuple[str, bytes]], kind: str, reason: str
) -> None:
    tar = tar_bytes([*members, ("l.jpg", b"good"), ("l.cls", b"3")])
    for data in (tar, gzip.compress(tar, 1)):
        listed = list_tar(data, tmp_path)
        ((name, found),) = listed.rejected.items()
        assert name == ("k" if kind in ("no-image", "two-images", "corrupt") else "k.jpg")
        assert found[0] == kind
        assert reason in found[1]
        assert listed.labels == {"l.jpg": 3}
        assert read_one("webdataset", tmp_path / "a.tar", listed) == [b"good"]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_gnu_tars_members_of_every_kind_become_items_or_are_rejected(
    tmp_path: Path, form: str
) -> None:
    spec = spec_of("webdataset", GOLDEN / f"kinds-{form}.tar", label_kind="none")
    listed = list_container(spec, tmp_path)
    long_name = f"{'long' * 30}/{'name' * 30}.jpg"
    assert set(listed.labels) == {"plain.jpg", long_name, "é\udcff.jpg"}
    assert listed.faults == {
        "empty.jpg": "empty",
        "pipe.jpg": "device",
        "same.jpg": "link",
        "soft.jpg": "link",
        "sparse.jpg": "unsupported",
    }
    images = read_items(spec, listed, tmp_path)
    assert len(set(images.values())) == 1
    assert images["plain.jpg"].startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize("name", ["../k.jpg", "a/../../k.jpg", "k/..", "nul\0.jpg"])
def test_names_that_lead_out_of_a_folder_are_rejected(tmp_path: Path, name: str) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": name}  # the only header in which a name has a zero byte
    tar = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    listed = list_tar(tar, tmp_path, label_kind="none")
    assert listed.items == {}
    assert [*listed.faults.values()] == ["bad-name"]


@pytest.mark.parametrize(
    ("label", "data", "kind", "expected"),
    [
        ("", {"cls": b" 7\n"}, None, 7),
        ("", {"cls": b"7"}, "name", "7"),
        ("", {"cls": b"tench"}, None, "tench"),
        ("", {"txt": b" 7 "}, None, 7),
        ("", {"json": b'{"class_id": 5, "x": 1}'}, None, 5),
        ("", {"json": b'{"labels": [3, 5]}'}, None, [3, 5]),
        ("", {"txt": b"no", "json": b'{"label": 1}', "cls": b"2"}, None, 2),
        ("json", {"txt": b"no", "json": b'{"label": 1}', "cls": b"2"}, None, 1),
        ("json.Label", {"json": b'{"Label": "x"}'}, None, "x"),
        ("json.a.b", {"json": b'{"a": {"b": 1}, "a.b": 2}'}, None, 2),
        ("meta.json.a", {"meta.json": b'{"a": 3}', "json": b"1"}, None, 3),
        ("Fine.cls", {"fine.cls": b"3", "coarse.cls": b"1"}, None, 3),
        ("", {}, "none", None),
    ],
)
def test_labels_of_every_form(
    tmp_path: Path, label: str, data: dict[str, bytes], kind: str | None, expected: object
) -> None:
    files = {"a.jpg": b"x"} | {f"a.{extension}": each for extension, each in data.items()}
    listed = list_tar(tar_bytes(files), tmp_path, label=label, label_kind=kind, label_base=2)
    assert (listed.labels, listed.rejected) == ({"a.jpg": expected}, {})
    assert listed.facts.base == 2


def test_of_several_images_the_one_named_first_is_taken(tmp_path: Path) -> None:
    files = {"a.png": b"png", "a.cls": b"1", "a.jpg": b"jpg", "b.png": b"PNG", "b.cls": b"2"}
    for data in (tar_bytes(files), gzip.compress(tar_bytes(files))):
        listed = list_tar(data, tmp_path, image="jpg;png")
        options = {"image": "jpg;png"}
        assert [*listed.items] == ["a.jpg", "b.png"]
        assert read_one("webdataset", tmp_path / "a.tar", listed, **options) == [b"jpg", b"PNG"]


def test_a_missing_end_marker_is_noted(tmp_path: Path) -> None:
    listed = list_tar(tar_bytes({"a.cls": b"1", "a.jpg": b"x"})[:-1024], tmp_path)
    assert listed.labels == {"a.jpg": 1}
    (note,) = listed.facts.notes
    assert note.endswith(
        "a.tar has no end-of-archive marker: if it was cut, members are missing after a.jpg"
    )


def test_class_folders_in_a_tar_are_no_webdataset(tmp_path: Path) -> None:
    data = tar_bytes([("cat/1.jpg", b"\xff\xd8\xff"), ("dog/2.jpg", b"\xff\xd8\xff")])
    with pytest.raises(DatasetError, match=r"images in folders \(dog/2.jpg\) and no labels"):
        list_tar(data, tmp_path)
    assert len(list_tar(data, tmp_path, label_kind="none").items) == 2
    data = tar_bytes([("cat/1.jpg", b"x"), ("cat/2.jpg", b"x"), ("cat/2.cls", b"\xff")])
    assert len(list_tar(data, tmp_path).rejected) == 2
