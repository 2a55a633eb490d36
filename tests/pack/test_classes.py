"""The classes of a source, from texts or numbers in any of its containers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from feeder.dataset.manifest import Manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.classes import ClassPlan, plan_classes
from feeder.pack.items import merge_lists
from feeder.pack.label_reading import read_labels
from feeder.plan.labels import LabelChoice, LabelSpec
from feeder.source.listing import ListedItems
from feeder.source.source import SourceSpec
from tests.source.item_lists import make_list, make_lists

_SPEC = SourceSpec(kind="webdataset", location="x", containers=("/somewhere/0.tar",))


def _lists(
    folder: Path, *containers: Sequence[Any], kind: LabelChoice | None = None
) -> list[ListedItems]:
    return make_lists(folder, containers, label_kind=kind)


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


def _named(path: Path, *names: str) -> SourceSpec:
    path.write_text("".join(f"{name}\n" for name in names))
    return SourceSpec(
        kind="webdataset", location="x", containers=("c",), class_names_file=str(path)
    )


def _plan(
    folder: Path,
    lists: list[ListedItems],
    spec: SourceSpec,
    known: Manifest | None,
    kind: LabelChoice | None = None,
) -> ClassPlan:
    items = merge_lists(folder, lists)
    spec = replace(spec, label_kind=kind or spec.label_kind)
    return plan_classes(items, read_labels(items, spec), spec, known)


def _labels(folder: Path, plan: ClassPlan, lists: list[ListedItems]) -> list[int]:
    items = merge_lists(folder, lists)
    return plan.labels_of(items, items.rows).tolist()


def _stored(folder: Path, plan: ClassPlan, lists: list[ListedItems]) -> list[bytes]:
    items = merge_lists(folder, lists)
    return [
        plan.stored_row(items, int(row["container"]), int(row["form"]), int(row["label"]))
        for row in items.rows
    ]


def test_texts_are_classes_in_sorted_order_over_all_containers(tmp_path: Path) -> None:
    lists = _lists(tmp_path, ["cat", "ant"], ["bee", "cat"], [])
    plan = _plan(tmp_path, lists, _SPEC, None)
    assert plan.classes == ("ant", "bee", "cat")
    assert plan.labels == LabelSpec()
    assert _labels(tmp_path, plan, lists) == [2, 0, 1, 2]


def test_numbers_without_names_are_their_own_names(tmp_path: Path) -> None:
    lists = _lists(tmp_path, [3, 0], [1])
    plan = _plan(tmp_path, lists, _SPEC, None)
    assert plan.classes == ("0", "1", "2", "3")
    assert _labels(tmp_path, plan, lists) == [3, 0, 1]


def test_names_come_from_the_source_or_from_a_file(tmp_path: Path) -> None:
    named = make_list(tmp_path, [("x", 0)], names={0: "tench", 2: "shark"})
    assert _plan(tmp_path, [named], _SPEC, None).classes == ("tench", "1", "shark")
    lists = _lists(tmp_path / "lists", [1, 0])
    spec = _named(tmp_path / "names.txt", "one", "two", "three")
    assert _plan(tmp_path, lists, spec, None).classes == ("one", "two", "three")
    with pytest.raises(ConfigError, match="class 3 has no name: --class-names names 3 classes"):
        _plan(tmp_path, _lists(tmp_path / "more", [3]), spec, None)
    texts = _lists(tmp_path / "texts", ["two", "one"])
    assert _labels(tmp_path, _plan(tmp_path, texts, spec, None), texts) == [1, 0]
    with pytest.raises(ConfigError, match="class four is not among the 3 names of --class-names"):
        _plan(tmp_path, _lists(tmp_path / "other", ["four"]), spec, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n\nb\n", "has an empty line 2"),
        (b"a\nb\na\n", "has a in lines 1 and 3"),
        (b"a\n\xff\n", "is not UTF-8 at byte 2"),
        (b"\n", "names no class"),
    ],
)
def test_bad_lists_of_names_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    spec = _named(tmp_path / "names.txt")
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        _plan(tmp_path, _lists(tmp_path / "lists", [0]), spec, None)


def test_containers_must_agree_on_names(tmp_path: Path) -> None:
    one = make_list(tmp_path, [("x", 0)], container=0, names={0: "a"})
    two = make_list(tmp_path, [("y", 0)], container=1, names={0: "b"})
    with pytest.raises(DatasetError, match=r"class 0 is called a and b in /somewhere/1.tar"):
        _plan(tmp_path, [one, two], _SPEC, None)
    twice = make_list(tmp_path / "twice", [("x", 0)], names={0: "a", 1: "a"})
    with pytest.raises(DatasetError, match="two classes are called a"):
        _plan(tmp_path, [twice], _SPEC, None)


def test_classes_of_another_dataset_are_found_by_name(tmp_path: Path) -> None:
    known = _known("ant", "bee", "cat")
    texts = _lists(tmp_path / "texts", ["cat", "ant"])
    assert _labels(tmp_path, _plan(tmp_path, texts, _SPEC, known), texts) == [2, 0]
    named = make_list(tmp_path / "named", [("x", 0), ("y", 1)], names={0: "cat", 1: "bee"})
    assert _labels(tmp_path, _plan(tmp_path, [named], _SPEC, known), [named]) == [2, 1]
    numbers = _lists(tmp_path / "numbers", [2, 1])
    plan = _plan(tmp_path, numbers, _SPEC, known)
    assert (plan.classes, _labels(tmp_path, plan, numbers)) == (known.classes, [2, 1])


def test_classes_that_the_other_dataset_lacks_are_refused(tmp_path: Path) -> None:
    known = _known("ant", "bee")
    with pytest.raises(ConfigError, match=r"class dog is not among the 2 classes .*, nor are 2"):
        _plan(tmp_path, _lists(tmp_path / "a", ["ant", "dog", "eel", "fox"]), _SPEC, known)
    with pytest.raises(ConfigError, match="class 2 is not among the 2 classes"):
        _plan(tmp_path, _lists(tmp_path / "b", [2]), _SPEC, known)
    named = make_list(tmp_path / "c", [("x", 0)], names={0: "cow"})
    with pytest.raises(ConfigError, match="class 0, cow, is not among the 2 classes"):
        _plan(tmp_path, [named], _SPEC, known)
    with pytest.raises(ConfigError, match=r"labels are of kind index, these are of kind float"):
        _plan(tmp_path, _lists(tmp_path / "d", [0.5]), _SPEC, known)


def test_several_labels_are_bits_of_all_classes(tmp_path: Path) -> None:
    lists = _lists(tmp_path, [["cat", "ant"], ["bee"]], [["dog", "ant"]])
    plan = _plan(tmp_path, lists, _SPEC, None)
    assert plan.classes == ("ant", "bee", "cat", "dog")
    assert plan.labels == LabelSpec(kind="multi", width=4)
    assert _stored(tmp_path, plan, lists) == [bytes([0b0101]), bytes([0b0010]), bytes([0b1001])]


def test_several_numbers_reach_to_the_largest(tmp_path: Path) -> None:
    lists = _lists(tmp_path, [[1, 9], []], kind="multi")
    plan = _plan(tmp_path, lists, _SPEC, None, "multi")
    assert plan.labels == LabelSpec(kind="multi", width=10)
    assert _stored(tmp_path, plan, lists) == [bytes([0b10, 0b10]), bytes(2)]


def test_floats_and_nothing_have_no_classes(tmp_path: Path) -> None:
    lists = _lists(tmp_path / "floats", [[0.5, 1.5]], [(2.0, 3)])
    plan = _plan(tmp_path, lists, _SPEC, None)
    assert (plan.labels, plan.classes) == (LabelSpec(kind="float", width=2), ())
    rows = [np.frombuffer(row, "<f4").tolist() for row in _stored(tmp_path, plan, lists)]
    assert rows == [[0.5, 1.5], [2.0, 3.0]]
    none = _lists(tmp_path / "none", [None, 7], kind="none")
    plan = _plan(tmp_path, none, _SPEC, None, "none")
    assert (plan.labels, _labels(tmp_path, plan, none)) == (LabelSpec(kind="none"), [0, 0])


def test_class_numbers_beyond_what_clients_accept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="class number 1,048,576 is too large"):
        _plan(tmp_path, _lists(tmp_path, [2**20]), _SPEC, None)


def test_lists_without_a_class_fit_numbers_and_texts(tmp_path: Path) -> None:
    for number, others in enumerate((["cat"], [2, 0])):
        folder = tmp_path / str(number)
        lists = _lists(folder, [others, []], [[], []], [[]])
        plan = _plan(folder, lists, _SPEC, None)
        assert plan.labels == LabelSpec(kind="multi", width=len(plan.classes))
        rows = _stored(folder, plan, lists)
        assert rows[0] != bytes(1)
        assert rows[1:] == [bytes(1)] * 4


def test_lists_without_any_class_are_no_labels(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no image has a label: choose another field"):
        _plan(tmp_path, _lists(tmp_path, [[], []]), _SPEC, None)


def test_classes_that_no_item_has_need_not_be_known(tmp_path: Path) -> None:
    known = _known("ant", "bee", "cat", "dog")
    named = make_list(tmp_path, [("x", 1), ("y", 3)], names={1: "dog", 3: "ant", 4: "eel"})
    assert _labels(tmp_path, _plan(tmp_path, [named], _SPEC, known), [named]) == [3, 0]


def test_floats_have_as_many_values_as_in_the_other_dataset(tmp_path: Path) -> None:
    known = _known(labels=LabelSpec(kind="float", width=4))
    with pytest.raises(ConfigError, match="have 4 values each, these 2"):
        _plan(tmp_path, _lists(tmp_path, [[0.5, 1.0]]), _SPEC, known)


@pytest.mark.parametrize(
    ("containers", "kind", "classes", "labels"),
    [
        ([["b", "a"], ["a", "c"]], None, "abc", [1, 0, 0, 2]),
        ([["b", "7"], [7, "a"]], None, "7ab", [2, 0, 0, 1]),
        ([["3", 0], ["1", "0"]], None, "0123", [3, 0, 1, 0]),
        ([["3.0", 0], [1.0, "1.0"]], "index", "0123", [3, 0, 1, 1]),
        ([["10", 9], [10]], "name", ("10", "9"), [0, 1, 0]),
        ([[[0, 0, 1], [0, 1, 0]], [[1, 0, 0]]], None, "012", [2, 1, 0]),
    ],
)
def test_one_class_has_one_number_whatever_its_form_and_its_container(
    tmp_path: Path,
    containers: list[list[Any]],
    kind: LabelChoice | None,
    classes: str | tuple[str, ...],
    labels: list[int],
) -> None:
    lists = _lists(tmp_path, *containers, kind=kind)
    plan = _plan(tmp_path, lists, _SPEC, None, kind)
    assert (plan.classes, plan.labels) == (tuple(classes), LabelSpec())
    assert _labels(tmp_path, plan, lists) == labels
    assert set(_stored(tmp_path, plan, lists)) == {b""}


def test_names_of_a_source_are_by_its_own_numbers(tmp_path: Path) -> None:
    """A class below the first one, as ImageNet's "background", is none."""
    items = [("x", 1), ("y", 3)]
    named = make_list(tmp_path, items, names={0: "background", 1: "a", 3: "c"}, base=1)
    plan = _plan(tmp_path, [named], _SPEC, None)
    assert (plan.classes, _labels(tmp_path, plan, [named])) == (("a", "1", "c"), [0, 2])
    known = _known("c", "a")
    assert _labels(tmp_path, _plan(tmp_path, [named], _SPEC, known), [named]) == [1, 0]


def test_the_classes_of_rows_are_their_places(tmp_path: Path) -> None:
    rows = [[1, 0, 0, 0], [0, 0, 1, 0]]
    lists = _lists(tmp_path, rows)
    plan = _plan(tmp_path, lists, _SPEC, None)
    assert plan.classes == ("0", "1", "2", "3")  # also those that no image has
    assert _labels(tmp_path, plan, lists) == [0, 2]
    spec = _named(tmp_path / "names.txt", "a", "b", "c", "d")
    assert _plan(tmp_path, lists, spec, None).classes == ("a", "b", "c", "d")
    spec = _named(tmp_path / "names.txt", *"abcde")
    with pytest.raises(ConfigError, match="names 5 classes, rows of 0 and 1 are of 4: name each"):
        _plan(tmp_path, lists, spec, None)
    named = make_list(tmp_path / "b", [("x", rows[1])] * 2, names={0: "w", 2: "y"}, base=1)
    plan = _plan(tmp_path, [named], _SPEC, None)
    assert (plan.classes, _labels(tmp_path, plan, [named])) == (("w", "1", "y", "3"), [2, 2])


def test_a_class_that_the_source_does_not_declare_is_an_error(tmp_path: Path) -> None:
    items = [("x", 0), ("y", 5), ("z", "NA"), *((str(n), 1) for n in range(20))]
    names = {0: "cat", 1: "dog", 2: "fox"}
    declared = make_list(tmp_path, items, names=names, is_declared=True)
    with pytest.raises(DatasetError, match=r"class 5 is not among the 3 classes .*cat, dog, fox"):
        _plan(tmp_path, [declared], _SPEC, None)
    spec = _named(tmp_path / "names.txt", *"abcdef")
    assert _plan(tmp_path, [declared], spec, None).classes == tuple("abcdef")
    undeclared = make_list(tmp_path / "b", items, names=names)
    plan = _plan(tmp_path, [undeclared], _SPEC, None)
    assert plan.classes == ("cat", "dog", "fox", "3", "4", "5")
    good = make_list(tmp_path / "c", [("x", 0), ("y", 0)], names=names, is_declared=True)
    assert _plan(tmp_path, [good], _SPEC, None).classes == ("cat", "dog", "fox")


def test_numbers_that_are_names_of_other_classes_are_read_as_the_user_says(tmp_path: Path) -> None:
    names = ("10", "0", "1")
    spec = _named(tmp_path / "names.txt", *names)
    lists = _lists(tmp_path, [0, 1])
    by_name = _lists(tmp_path / "b", [0, 1], kind="name")
    for given, known in ((spec, None), (_SPEC, _known(*names))):
        with pytest.raises(ConfigError, match=r"read in two ways: 0 is .* class 1 of .* class 10:"):
            _plan(tmp_path, lists, given, known)
        with pytest.raises(ConfigError, match=r"label 10 is the name of class 0 .*-kind name"):
            _plan(tmp_path, _lists(tmp_path / "c", [10, 10]), given, known)
        plan = _plan(tmp_path, lists, given, known, "index")
        assert _labels(tmp_path, plan, lists) == [0, 1]
        plan = _plan(tmp_path, by_name, given, known, "name")
        assert _labels(tmp_path, plan, by_name) == [1, 2]
    same = _known("0", "1", "2")
    assert _labels(tmp_path, _plan(tmp_path, lists, _SPEC, same), lists) == [0, 1]


def test_items_whose_labels_do_not_fit_add_no_class(tmp_path: Path) -> None:
    lists = _lists(tmp_path, [*[0, 1] * 20, "NA", "cat", -1, 2.5])
    with pytest.raises(ConfigError, match=r"whole numbers .41. and others .1."):
        _plan(tmp_path, lists, _SPEC, None)
    assert _plan(tmp_path, lists, _SPEC, None, "index").classes == ("0", "1")


def test_the_digest_tells_classes_and_what_labels_are_apart(tmp_path: Path) -> None:
    plans = [
        _plan(tmp_path / str(at), _lists(tmp_path / str(at), labels), _SPEC, None)
        for at, labels in enumerate(([0, 1], [1, 2], ["0", "a", "b"], [[0], [1, 0]], [0.5]))
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)
