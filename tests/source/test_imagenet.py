"""ImageNet's archives: the training tar of tars; the validation tar, with labels of each form."""

import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.source.imagenet import GROUND_TRUTH
from tests.source.listings import Listed, list_one, put, read_one
from tests.source.tar_writer import tar_bytes

# The first ILSVRC2012 ids; their order is not the synsets'.
SYNSETS = ("n02119789", "n02100735", "n02110185", "n02096294")
IMAGES = {
    synset: {f"{synset}_{n}.JPEG": os.urandom(300 + 70 * n) for n in range(count)}
    for synset, count in (("n01440764", 3), ("n01443537", 1), ("n15075141", 2))
}
TRAINING = {f"{synset}.tar": tar_bytes(images) for synset, images in IMAGES.items()}
LISTED = {f"{synset}/{name}": synset for synset, images in IMAGES.items() for name in images}
VALIDATION = {f"ILSVRC2012_val_{n:08d}.JPEG": os.urandom(200 + n) for n in (3, 1, 2, 5, 4)}
IDS = (4, 1, 2, 2, 3)


def list_training(folder: Path, data: bytes) -> Listed:
    return list_one("imagenet-train", put(folder, {"train.tar": data}) / "train.tar")


# --- Training -----------------------------------------------------------------------------------


def test_images_of_tars_in_the_training_tar_are_read_in_place(tmp_path: Path) -> None:
    data = tar_bytes(TRAINING)
    for stored in (data, gzip.compress(data)):
        listed = list_training(tmp_path, stored)
        assert listed.labels == LISTED
        assert (listed.facts.texts, listed.facts.by_name) == (tuple(IMAGES), True)
        assert (listed.rejected, listed.facts.notes) == ({}, ())
        assert (listed.facts.spilled_bytes > 0) == (stored is not data)
        expected = [data for images in IMAGES.values() for data in images.values()]
        assert read_one("imagenet-train", tmp_path / "train.tar", listed) == expected


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (tar_bytes({"a.jpg": b"x"}), "is not ILSVRC2012_img_train.tar: it has a.jpg"),
        (tar_bytes({"n01440764.tar": b"x" * 600}), "n01440764.tar in .* is no tar file"),
        (
            tar_bytes({"n01440764.tar": TRAINING["n01440764.tar"] * 2}),
            r"n01440764.tar in .* goes on after its end-of-archive marker, at byte \d+",
        ),
    ],
)
def test_a_damaged_or_foreign_training_tar_is_an_error(
    tmp_path: Path, data: bytes, what: str
) -> None:
    with pytest.raises(DatasetError, match=what) as raised:
        list_training(tmp_path, data)
    assert "\n" not in str(raised.value)


# --- Validation ---------------------------------------------------------------------------------


def meta(synsets: tuple[str, ...] = SYNSETS, first: int = 1) -> bytes:
    """Return a meta.mat with the fields of ILSVRC2012's; synsets above the classes come last."""
    rows = np.empty(len(synsets) + 2, [(name, object) for name in _META_FIELDS])
    for number, synset in enumerate((*synsets, "n00001740", "n00001930")):
        children = 0 if number < len(synsets) else 2
        rows[number] = (
            *(float(number + first), synset, "words, more words", "a gloss", float(children)),
            *(np.zeros(children), 0.0, 1300.0),
        )
    file = io.BytesIO()
    io_of = pytest.importorskip("scipy.io", reason="make test installs scipy")
    io_of.savemat(file, {"synsets": rows.reshape(-1, 1)}, do_compression=True)
    return file.getvalue()


_META_FIELDS = (
    *("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height"),
    "num_train_images",
)
_IDS_TEXT = "".join(f"{number}\n" for number in IDS).encode()
_SYNSETS_TEXT = "\r\n".join(SYNSETS[number - 1] for number in IDS).encode()
EXPECTED = {f"ILSVRC2012_val_{n:08d}.JPEG": SYNSETS[IDS[n - 1] - 1] for n in (3, 1, 2, 5, 4)}
_KIT = {
    "ILSVRC2012_devkit_t12/data/" + GROUND_TRUTH: _IDS_TEXT,
    "ILSVRC2012_devkit_t12/data/meta.mat": meta(),
    "ILSVRC2012_devkit_t12/COPYING": b"x",
}


def list_validation(folder: Path, **options: Any) -> Listed:
    path = put(folder, {"val.tar": tar_bytes(VALIDATION)}) / "val.tar"
    return list_one("imagenet-val", path, **options)


_FORMS: dict[str, dict[str, bytes]] = {
    "val.txt": {"val.txt": _SYNSETS_TEXT},
    "truth.txt": {"truth.txt": _IDS_TEXT, "names.txt": "\n".join(SYNSETS).encode()},
    GROUND_TRUTH: {GROUND_TRUTH: _IDS_TEXT, "meta.mat": meta()},
    "kit.tar.gz": {"kit.tar.gz": gzip.compress(tar_bytes(_KIT))},
    "kit": {"kit": tar_bytes(_KIT)},
    "ILSVRC2012_devkit_t12": _KIT,
    "ILSVRC2012_devkit_t12/data": _KIT,
}
"""Files with the labels in each of their forms, by which of them --labels names."""


@pytest.mark.parametrize("name", _FORMS)
def test_every_form_of_the_ground_truth_gives_the_same_synsets(tmp_path: Path, name: str) -> None:
    options = {"labels_file": str(put(tmp_path, _FORMS[name]) / name)}
    if "names.txt" in _FORMS[name]:
        options["class_names_file"] = str(tmp_path / "names.txt")
    listed = list_validation(tmp_path, **options)
    assert listed.labels == EXPECTED
    assert (listed.rejected, listed.facts.by_name) == ({}, True)
    images = read_one("imagenet-val", tmp_path / "val.tar", listed, **options)
    assert dict(zip(listed.items, images, strict=True)) == VALIDATION
    if name != "val.txt":  # then all classes are known
        assert listed.facts.texts == SYNSETS


def test_images_without_a_label_are_rejected(tmp_path: Path) -> None:
    tar = tar_bytes(VALIDATION | {"readme.txt": b"x"})
    put(tmp_path, {"val.txt": b"n1\nn2\nn1\n\n", "val.tar": tar})
    labels = str(tmp_path / "val.txt")
    listed = list_one("imagenet-val", tmp_path / "val.tar", labels_file=labels)
    assert sorted(listed.labels.values(), key=str) == ["n1", "n1", "n2"]
    reason = "its name has no number of an image, 1 .. 3"
    unnumbered = [f"ILSVRC2012_val_{n:08d}.JPEG" for n in (5, 4)]
    expected = dict.fromkeys([*unnumbered, "readme.txt"], ("no-label", reason))
    assert listed.rejected == expected


def test_without_labels_none_are_needed(tmp_path: Path) -> None:
    listed = list_validation(tmp_path, label_kind="none")
    assert listed.labels == dict.fromkeys(VALIDATION)
    with pytest.raises(ConfigError, match="has no labels: give --labels ILSVRC2012_devkit"):
        list_validation(tmp_path)


@pytest.mark.parametrize(
    ("files", "error", "what"),
    [
        ({"v": b"1\n2\n"}, ConfigError, "has ILSVRC2012 ids but not their synsets: give the fol"),
        ({"v": b"1\n", "meta.mat": b"x" * 200}, DatasetError, "meta.mat of .* is damaged"),
        ({"v": b"1\n", "meta.mat": meta(first=2)}, DatasetError, "its ids are not 1, 2, 3"),
        (
            {"v": b"1\n5\n", "meta.mat": meta()},
            DatasetError,
            r"line 2 has the id 5; ids are 1 \.\. 4",
        ),
        ({"v": b"n1\n\nn2\n"}, DatasetError, "line 2 is empty"),
        (
            {"v": b"ILSVRC2012_val_00000001.JPEG 65\n"},
            DatasetError,
            "line 1 is ILSVRC2012_val_00000001.JPEG 65; line k",
        ),
        ({"v/x": b""}, DatasetError, f"{GROUND_TRUTH} cannot be read: No such file"),
    ],
)
def test_a_bad_ground_truth_is_an_error_of_one_line(
    tmp_path: Path, files: dict[str, bytes], error: type[Exception], what: str
) -> None:
    put(tmp_path, files)
    with pytest.raises(error, match=what) as raised:
        list_validation(tmp_path, labels_file=str(tmp_path / "v"))
    assert "\n" not in str(raised.value)


def test_class_names_in_alphabetic_order_are_not_those_of_the_ids(tmp_path: Path) -> None:
    names = b"".join(b"n%08d\n" % number for number in range(1000))
    put(tmp_path, {"v": _IDS_TEXT, "names": names})
    files = {"labels_file": str(tmp_path / "v"), "class_names_file": str(tmp_path / "names")}
    with pytest.raises(ConfigError, match="is in alphabetic order, which ILSVRC2012's ids are not"):
        list_validation(tmp_path, **files)
