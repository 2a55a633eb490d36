"""Recognising a source: what each location is, and which are refused with what was seen."""

import gzip
import os
import struct
import sys
import zlib
from pathlib import Path

import pytest

from feeder.errors import ConfigError, DatasetError, FeederError, ResourceError
from feeder.source.imagenet import GROUND_TRUTH
from feeder.source.recognise import recognise
from feeder.source.source import SourceSpec, open_source
from tests.source.listings import GOLDEN, JPEG, list_one, put, spec_of
from tests.source.tar_writer import tar_bytes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tar_of(name: str, data: bytes = JPEG) -> bytes:
    return tar_bytes({name: data})


def containers(spec: SourceSpec, root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in spec.containers]


_LMDB = struct.pack("<16xI", 0xBEEFC0DE)
_RECORDS = (GOLDEN / "imagenet.tfrecord").read_bytes()
_TAR = tar_bytes({"a/1.jpg": JPEG, "a/1.cls": b"1"})
_ZIPPED_TAR = gzip.compress(_TAR, mtime=0)
_CLASS_TAR = tar_of("n01440764_18.JPEG")
_VALIDATION = tar_of("./ILSVRC2012_val_00000001.JPEG")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("no-suffix", _TAR, "webdataset"),
        ("empty.tar", tar_bytes({}), "webdataset"),
        ("x.tgz", _ZIPPED_TAR, "webdataset"),
        ("x.tar.zst", (GOLDEN / "webdataset-txt.tar.zst").read_bytes(), "webdataset"),
        ("x.tfrecord", _RECORDS, "tfrecord"),
        ("train-00000-of-01024", _RECORDS, "tfrecord"),
        ("x.gz", gzip.compress(_RECORDS, mtime=0), "tfrecord"),
        ("x.zlib", zlib.compress(_RECORDS), "tfrecord"),
        ("x.parquet", (GOLDEN / "classes.parquet").read_bytes(), "parquet"),
        ("no-suffix", _LMDB, "lmdb"),
        ("ILSVRC2012_img_train.tar", tar_of("n01440764.tar", _CLASS_TAR), "imagenet-train"),
        ("n01440764.tar", _CLASS_TAR, "imagenet-train"),
        ("other.tar", _CLASS_TAR, "webdataset"),
        ("ILSVRC2012_img_val.tar", _VALIDATION, "imagenet-val"),
    ],
)
def test_files_are_recognised_by_their_first_bytes(
    here: Path, name: str, data: bytes, kind: str
) -> None:
    put(here, {name: data})
    spec = recognise(name)
    assert (spec.kind, spec.location, containers(spec, here)) == (kind, name, [name])


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("file", b"", "give a folder of images, or tar, TFRecord, Parquet or LMDB files; it is em"),
        ("flipped", b"b" + _TAR[1:], "of no known format"),
        ("x.jpg", JPEG, "x.jpg is one image: give the folder that holds the images"),
        ("x.csv", b"file,label\n", "x.csv is a file of labels: give the folder that holds"),
        ("x.zip", b"PK\x03\x04", "a zip archive: unzip it"),
        ("x.tar.xz", b"\xfd7zXZ\x00", "compressed by xz: unpack it"),
        ("x.gz", gzip.compress(b"text", mtime=0), "compressed, but neither a tar nor TFRecords"),
        ("bad.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 40, "compressed, but neither"),
        ("x.arrow", b"ARROW1\x00\x00", "an Arrow file: write it as Parquet"),
        ("x.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file: read it in Python"),
        ("x.jpg", b"version https://git-lfs.github.com", "a Git LFS pointer and no image"),
    ],
)
def test_other_files_are_refused_by_what_they_are(
    here: Path, name: str, data: bytes, problem: str
) -> None:
    put(here, {name: data})
    with pytest.raises(DatasetError, match=problem) as caught:
        recognise(name)
    assert "\n" not in str(caught.value)


_CSV = b"file,label\na.jpg,1\n"


@pytest.mark.parametrize(
    ("files", "kind", "found"),
    [
        ({"b/x.jpg": JPEG, "a/x.jpg": JPEG}, "class-folder", "."),
        ({"b/x.jpg": JPEG, "stats.csv": b"a,b\n1,2\n"}, "class-folder", "."),
        ({}, "class-folder", "."),
        ({"train/x.jpg": JPEG, "cat/x.jpg": JPEG}, "class-folder", "."),
        ({"a.jpg": JPEG, "labels.csv": _CSV, "notes.txt": b""}, "labelled-folder", "."),
        ({"a.jpg": JPEG, "m.csv": _CSV, "dataset_info.json": b"{}"}, "labelled-folder", "."),
        ({"d/a.jpg": JPEG, "m.csv": b"d/a.jpg,1\n"}, "labelled-folder", "."),
        ({"2.tar": _TAR, "10.tar": _TAR, "README.md": b""}, "webdataset", "10.tar 2.tar"),
        ({"0.tar.gz": _ZIPPED_TAR, "1.tar": _TAR}, "webdataset", "0.tar.gz 1.tar"),
        ({"t-00000-of-00001": _RECORDS, "x.idx": b""}, "tfrecord", "t-00000-of-00001"),
        ({"train-0.parquet": b"PAR1", "dataset_info.json": b"{}"}, "parquet", "train-0.parquet"),
        ({"data.mdb": _LMDB, "lock.mdb": b"."}, "lmdb", "data.mdb"),
        ({"a.lmdb": _LMDB, "b.lmdb": _LMDB, "b.lmdb-lock": b""}, "lmdb", "a.lmdb b.lmdb"),
        ({"n01440764.tar": _CLASS_TAR, ".x.tar": b""}, "imagenet-train", "n01440764.tar"),
    ],
)
def test_folders_are_recognised_by_what_they_hold(
    here: Path, files: dict[str, bytes], kind: str, found: str
) -> None:
    source = put(here / "source", files)
    spec = recognise("source")
    assert (spec.kind, containers(spec, source)) == (kind, found.split())
    labels = [str(source / name) for name in files if name.endswith(("csv", "jsonl"))]
    assert spec.labels_file == (labels[0] if kind == "labelled-folder" else "")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.jpg": JPEG}, "holds images without labels: name the file .*--labels"),
        ({"a.jpg": JPEG, "t.csv": _CSV, "v.json": b""}, "holds t.csv, v.json: choose the file tha"),
        ({"1.tar": _TAR, "2.parquet": b"PAR1"}, "1.tar is a tar, 2.parquet is a Parquet file: giv"),
        ({"1.tar": _TAR, "a/x.jpg": b""}, "holds 1 folder and 1 tar file: give the"),
        ({"1.tar": b"no tar"}, "1.tar is a file: give .* it is of no known format"),
        ({"data/x.parquet": b"PAR1"}, "no images, and .*source/data has 1 Parquet file: give one"),
        ({"data/data.mdb": _LMDB}, "no images, and .*source/data has 1 LMDB file: give one"),
        ({"data.mdb": b"...", "lock.mdb": b"."}, "data.mdb is a file: give .* of no known format"),
        ({"shard.00000.mds": b"..", "index.json": b"{}"}, "mds is a shard of Mosaic"),
        (
            {"data-00000-of-00001.arrow": b"\xff" * 4, "state.json": b"{}"},
            "source is what save_to_disk of Hugging Face's datasets wrote: load it in Python with",
        ),
        ({"images.zip": b"PK\x03\x04"}, "holds no images; images.zip is a zip archive"),
        ({"manifest.json": b'{"format": "feeder-dataset"}'}, "source is a packed dataset already"),
    ],
)
def test_folders_that_may_be_several_things_are_refused(
    here: Path, files: dict[str, bytes], problem: str
) -> None:
    put(here / "source", files)
    with pytest.raises(FeederError, match=problem) as caught:
        recognise("source")
    assert "\n" not in str(caught.value)


def test_labels_make_any_folder_of_images_a_labelled_one(here: Path) -> None:
    put(here / "source", {"d/a.jpg": JPEG, "e/a.jpg": JPEG, "x.csv": _CSV, "y.csv": _CSV})
    spec = recognise("source", labels_file="source/y.csv", label="label", label_base=1)
    assert (spec.kind, spec.labels_file) == ("labelled-folder", str(here / "source/y.csv"))
    assert (spec.label, spec.label_base) == ("label", 1)
    for name, problem in (
        ("gone.csv", "gone.csv cannot be read"),
        ("hf://b/x", "hf:// is not sup"),
    ):
        with pytest.raises(ConfigError, match=f"--labels {problem}|{problem}"):
            recognise("source", labels_file=name)
    put(here / "source", "b.jpg")
    spec = recognise("source", label_kind="none")
    assert (spec.kind, spec.labels_file) == ("labelled-folder", "")


def test_a_kind_that_is_named_is_not_looked_for(here: Path) -> None:
    put(here, {"x.bin": b"12345", "d/a.jpg": JPEG, "d/x.csv": _CSV, "d/s/x.jpg": JPEG})
    put(here, {"t/train-0.tar": _TAR, "t/train-1.tar": _TAR, "t/x.parquet": b"", "train/x": b""})
    assert recognise("x.bin", kind="tfrecord").kind == "tfrecord"
    assert recognise("d", kind="class-folder").kind == "class-folder"
    assert recognise("d", kind="labelled-folder").labels_file == str(here / "d/x.csv")
    spec = recognise("t", kind="webdataset")
    assert containers(spec, here) == ["t/train-0.tar", "t/train-1.tar"]
    assert recognise("x.bin", kind="class-folder").kind == "class-folder"  # its reader refuses it
    with pytest.raises(ConfigError, match="d holds no tar files by their names: give them by a"):
        recognise("d", kind="webdataset")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("class-folder", "image label labels label-base label-kind"),
        ("labelled-folder", ""),
        *((kind, "labels") for kind in ("webdataset", "tfrecord", "parquet")),
        ("lmdb", "image label labels"),
        ("imagenet-train", "image label labels"),
        ("imagenet-val", "image label"),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(here: Path, kind: str, options: str) -> None:
    values = {"image": "x", "label": "x", "labels": "x", "label-base": 1, "label-kind": "float"}
    needed = {"labels_file": "x"} if kind in ("labelled-folder", "imagenet-val") else {}
    for option, value in values.items():
        field = option.replace("-", "_") + ("_file" if option == "labels" else "")
        spec = spec_of(kind, here, **{**needed, field: value})
        if option in options.split():
            with pytest.raises(ConfigError, match=f"^--{option}( float)? has no meaning for --s"):
                open_source(spec, str(here))
        elif kind != "imagenet-val" or option == "labels":
            open_source(spec, str(here)).close()


def test_options_without_a_meaning_are_refused(here: Path) -> None:
    put(here, {"d/a/x.jpg": JPEG, "x.csv": _CSV, "y.csv": _CSV})
    with pytest.raises(ConfigError, match="--source zip: must be class-folder, labelled-folder, w"):
        recognise("d", kind="zip")
    with pytest.raises(ConfigError, match="is 2 files: --source class-folder is for one folder"):
        open_source(recognise("{x.csv,y.csv}", kind="class-folder"), str(here))


def test_a_pipe_is_what_the_user_says_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.tar"
    os.mkfifo(pipe)
    assert recognise(str(pipe), kind="webdataset").containers == (str(pipe),)
    for kind in (None, "parquet"):
        with pytest.raises(ConfigError, match=r"is a pipe, .* --source webdataset or tfrecord"):
            recognise(str(pipe), kind=kind)


@pytest.mark.parametrize(
    ("kind", "data", "package", "extra", "module"),
    [
        ("webdataset", b"\x28\xb5\x2f\xfd", "zstandard", "zstd", "zstandard"),
        ("parquet", b"PAR1", "pyarrow", "parquet", "feeder.source.parquet_rows"),
        ("lmdb", _LMDB, "lmdb>=3", "lmdb", "lmdb"),
        ("imagenet-val", _VALIDATION, "scipy", "imagenet", "scipy.io"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    data: bytes,
    package: str,
    extra: str,
    module: str,
) -> None:
    put(here, {"x": data, GROUND_TRUTH: "1\n", "meta.mat": "x"})
    monkeypatch.setitem(sys.modules, module, None)
    labels = str(here / GROUND_TRUTH) if extra == "imagenet" else ""
    with pytest.raises(ResourceError) as caught:
        list_one(kind, here / "x", labels_file=labels)
    command = f"`{sys.executable} -m pip install '{package}'` (the extra {extra})"
    assert str(caught.value).endswith(
        f" needs the package {package}, which is not installed: {command}"
    )
