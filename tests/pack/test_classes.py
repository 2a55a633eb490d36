"""The classes of a source, from texts or numbers in any of its containers, or another dataset's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.manifest import Manifest, load_manifest
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError, FeederError
from feeder.plan.labels import LabelSpec
from tests.pack.labels_read import read_them
from tests.support.sources import (
    call_feeder,
    encoded,
    error_line,
    file_tree,
    image,
    pack,
    run_inline,
)


def _known(*classes: str, labels: LabelSpec | None = None) -> Manifest:
    return Manifest(
        samples=1,
        classes=classes,
        tile_width_px=32,
        seed=0,
        options={},
        odd={},
        subsampling={},
        quarantined=0,
        quarantine_xxh3="",
        source_bytes=1,
        shards=(),
        content="0" * 32,
        labels=labels or LabelSpec(),
    )


ROWS = [[1, 0, 0, 0], [0, 0, 1, 0]]
_PAIRS: dict[str, Any] = {"parts": ([0, 1], [2, 3])}
_TWO_AND_ONE: dict[str, Any] = {"parts": ([0, 1], [2])}
_THREE = {"known": _known("ant", "bee", "cat")}


@pytest.mark.parametrize(
    ("given", "options", "classes", "labels"),
    [
        # names: sorted as text over all containers; a class has one number, whatever its form
        (["cat", "ant", "bee", "cat"], _PAIRS, "ant bee cat", [2, 0, 1, 2]),
        (["b", "7", 7, "a"], _PAIRS, "7 a b", [2, 0, 0, 1]),
        (["b"], {"declared": ["c", "a"], "by_name": True}, "a b c", [1]),  # without images
        (["3.0", 0, 1.0, "1.0"], {**_PAIRS, "kind": "index"}, "0 1 2 3", [3, 0, 1, 1]),
        ([[0, 0, 1], [0, 1, 0], [1, 0, 0]], _TWO_AND_ONE, "0 1 2", [2, 1, 0]),
        # names of numbers: the source's own, by its own numbers; what is below the first is none
        ([1, 3], {"names": [{0: "no", 1: "a", 3: "c"}], "base": 1}, "a 1 c", [0, 2]),
        # the classes of rows are their places, also those that no image has
        (ROWS, {}, "0 1 2 3", [0, 2]),
        # the classes of another dataset, by name; by number where the source has no names
        (["cat", "ant"], _THREE, "ant bee cat", [2, 0]),
        ([2, 1], _THREE, "ant bee cat", [2, 1]),
        ([1, 3], {**_THREE, "names": [{1: "cat", 3: "ant", 4: "eel"}]}, "ant bee cat", [2, 0]),
    ],
)
def test_classes_and_labels(
    given: list[Any], options: dict[str, Any], classes: str, labels: list[Any]
) -> None:
    read = read_them(given, **options)
    assert (read.classes, read.labels, read.spec) == (tuple(classes.split()), labels, LabelSpec())


def test_several_labels_are_of_all_classes_and_values_of_none() -> None:
    read = read_them([["cat", "ant"], ["bee"], ["dog", "ant"]], **_TWO_AND_ONE)
    assert read.labels == [[0, 2], [1], [0, 3]]
    assert (read.classes, read.spec.width) == (("ant", "bee", "cat", "dog"), 4)
    read = read_them([[1, 9], []], kind="multi")
    assert (read.labels, read.spec) == ([[1, 9], []], LabelSpec(kind="multi", width=10))
    for given in (["cat"], [2, 0]):  # lists without a class fit texts and numbers
        assert read_them([given, [], []], **_TWO_AND_ONE).labels[1:] == [[], []]
    read = read_them([[0.5, 1.5], (2.0, 3)], parts=([0], [1]))
    assert (read.classes, read.spec) == ((), LabelSpec(kind="float", width=2))
    assert read.labels == [[0.5, 1.5], [2.0, 3.0]]
    read = read_them([None, 7], kind="none")
    assert (read.labels, read.spec) == ([0, 0], LabelSpec(kind="none"))
    read = read_them([*[0, 1] * 20, 2.5], kind="index")  # what does not fit adds no class
    assert (read.classes, read.labels[-1]) == (("0", "1"), "its label 2.5 is no class number")


_LACKS = "is not among the 3 classes"
_FOUR_FLOATS = {"known": _known(labels=LabelSpec(kind="float", width=4))}


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0], {"names": [{0: "a", 1: "a"}]}, "two classes are called a"),
        (["ant", "dog", "eel", "fox"], _THREE, f"class dog {_LACKS} .*, nor are 2"),
        ([0], {**_THREE, "names": [{0: "cow"}]}, f"class 0, cow, {_LACKS}"),
        ([3], _THREE, f"class 3 {_LACKS}"),
        ([0.5], _THREE, r"labels are of kind index, these are of kind float"),
        ([[0.5, 1.0]], _FOUR_FLOATS, "have 4 values each, these 2"),
        ([0, 0, 0], {**_TWO_AND_ONE, "names": [{0: "a"}, {0: "b"}]}, "is called a and b in /somew"),
        ([2**20], {}, "labels reach 1,048,577 classes, the most is 1,048,576: choose another"),
    ],
)
def test_labels_that_fit_no_classes(
    labels: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeederError, match=message):
        read_them(labels, **options)


@pytest.fixture
def names(tmp_path: Path) -> Any:
    """Write a file of class names."""

    def write(text: str) -> Path:
        (tmp_path / "names.txt").write_text(text.replace(" ", "\n"), "latin1")
        return tmp_path / "names.txt"

    return write


@pytest.mark.parametrize(
    ("lines", "labels", "result"),
    [
        ("one two three", [1, 0], [1, 0]),
        ("one two three ", ["two", "one"], [1, 0]),
        ("a b c d", ROWS, [0, 2]),
        ("one two three", [3], "class 3 is not among the 3 names of --class-names"),
        ("one two three", ["four"], "class four is not among the 3 names of --class-names"),
        ("a b c d e", ROWS, "names 5 classes, rows of 0 and 1 are of 4: name each"),
        ("a  b", [0], "has an empty line 2"),
        ("a b a", [0], "has a in lines 1 and 3"),
        ("a \xff", [0], "line 2 of .*names.txt is not UTF-8"),
    ],
)
def test_names_come_from_a_file(names: Any, lines: str, labels: Any, result: Any) -> None:
    path = names(lines)
    if isinstance(result, str):
        with pytest.raises(ConfigError, match=result):
            read_them(labels, class_names=path)
        return
    read = read_them(labels, class_names=path)
    assert (read.classes, read.labels) == (tuple(lines.split()), result)


def test_a_class_that_the_source_does_not_declare_is_an_error(names: Any) -> None:
    labels = [0, 5, "NA", *[1] * 20]
    declared = {"names": [{0: "cat", 1: "dog", 2: "fox"}], "is_declared": True}
    with pytest.raises(DatasetError, match=r"class 5 is not among the 3 classes .*cat, dog, fox"):
        read_them(labels, **declared)
    assert read_them(labels, **declared, class_names=names("a b c d e f")).classes == tuple(
        "abcdef"
    )
    undeclared = read_them(labels, names=declared["names"])
    assert undeclared.classes == ("cat", "dog", "fox", "3", "4", "5")
    assert read_them([0, 0], **declared).classes == ("cat", "dog", "fox")


def test_numbers_that_are_names_of_other_classes_are_read_as_the_user_says(names: Any) -> None:
    classes = ("10", "0", "1")
    for options in ({"class_names": names("10 0 1")}, {"known": _known(*classes)}):
        with pytest.raises(ConfigError, match=r"read in two ways: 0 is .* class 1 of .* class 10:"):
            read_them([0, 1], **options)
        with pytest.raises(
            ConfigError, match=r"10 is the name of class 0 .* the number of no class: .*-kind name$"
        ):
            read_them([10, 10], **options)
        assert read_them([0, 1], **options, kind="index").labels == [0, 1]
        assert read_them([0, 1], **options, kind="name").labels == [1, 2]


# --classes-of: a validation set with the labels of its training set


CLASSES = ("ant", "bee", "cat", "dog", "eel")


def _images(root: Path, classes: tuple[str, ...], each: int = 3) -> Path:
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(each):
            data = encoded(image(40 + number, 30), quality=90)
            (root / name / f"{number}.jpg").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    pack(_images(folder / "images", CLASSES), folder / "packed")
    return folder / "packed"


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.verify", "pack.unpack")


def _labels_by_class(dataset: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    with Dataset.open(dataset) as opened:
        labels = opened.read_records(np.arange(opened.layout.samples))["label"]
        for number, label in enumerate(labels.tolist()):
            found.setdefault(str(opened.name_of(number)).split("/")[0], set()).add(label)
    return found


def test_labels_are_those_of_the_other_dataset(train: Path, tmp_path: Path, inline: None) -> None:
    source, dataset = _images(tmp_path / "val", ("bee", "eel")), tmp_path / "packed"
    (source / "cat").mkdir()  # a known class may be empty
    packed = call_feeder("pack", source, dataset, "--classes-of", train)
    assert packed.returncode == 0, packed.stderr
    assert "packed 6 images of 5 classes" in packed.stdout
    assert "3 classes have no images, and keep their labels" in packed.stdout
    assert "warning" not in packed.stdout
    assert load_manifest(dataset).classes == CLASSES
    assert _labels_by_class(dataset) == {"bee": {1}, "eel": {4}}
    preview = ["preview", dataset, "--images", "4", "--out", tmp_path / "preview.png"]
    for command in (["verify", dataset], ["unpack", dataset, tmp_path / "out"], preview):
        assert call_feeder(*command).returncode == 0
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"bee", "eel"}
    same = _images(tmp_path / "same", CLASSES, each=4)
    for name, options in (("plain", {}), ("known", {"classes_of": train})):
        pack(same, tmp_path / name, **options)
    assert file_tree(tmp_path / "plain") == file_tree(tmp_path / "known")


def test_what_cannot_have_its_classes_is_one_line_before_anything_is_written(
    train: Path, tmp_path: Path
) -> None:
    one = _images(tmp_path / "one", ("bee", "fox"))
    more = _images(tmp_path / "more", ("bee", "fox", "gnu", "hen"))
    (tmp_path / "empty" / "bee").mkdir(parents=True)
    for source, known, message in (
        (one, train, f"class folder {one}/fox is not among the 5 classes of the dataset that "),
        (more, train, "--classes-of names, nor are 2 others: rename class folders"),
        (tmp_path / "empty", train, "holds no images: put some into the class folders"),
        (one, one, f"--classes-of: {one} is not a dataset"),
    ):
        line = error_line(call_feeder("pack", source, tmp_path / "packed", "--classes-of", known))
        assert message in line
        assert not (tmp_path / "packed").exists()
