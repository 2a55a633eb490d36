"""Lists of items: what is written is read again, and what is unfinished leaves nothing."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.source.listing import ItemListing, ListedItems, list_path, read_listed
from tests.source.item_lists import make_list, name_of

_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(st.dictionaries(_NAMES, st.lists(st.floats(width=32, allow_nan=False), max_size=3)))
def test_items_are_read_as_they_were_added(
    tmp_path_factory: pytest.TempPathFactory, items: dict[str, list[float]]
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    with ItemListing(folder, 3, label_kind="float") as listing:
        added = []
        for at, (name, values) in enumerate(items.items()):
            finite = [value if abs(value) < 1e30 else 0.0 for value in (*values, *[0.0] * 3)][:3]
            listing.add(name, finite, offset=7 * at, size_bytes=at, stamp=at + 1)
            added.append((name, finite, 7 * at, at, at + 1))
        listed = listing.finish("x", (1, 2))
    assert read_listed(folder, 3) == listed
    read = ListedItems(folder, 3, listed)
    found = [
        (
            name_of(read, row),
            read.text.label_values(int(record["label"]), listed.form).tolist(),
            int(record["offset"]),
            int(record["size_bytes"]),
            int(record["stamp"]),
        )
        for row, record in enumerate(read.rows)
    ]
    assert found == added
    assert listed.bytes == sum(range(len(items)))


def test_faults_of_items_are_rejected_and_listed(tmp_path: Path) -> None:
    long = "x" * 70_000
    items: list[tuple[str, Any]] = [("a", 1), ("b", "text"), ("c", None), (long, 1), ("d", 2)]
    listed = make_list(tmp_path, items)
    assert [name_of(listed, row) for row in range(2)] == ["a", "d"]
    assert [(each["path"][:1], each["kind"]) for each in listed.rejected()] == [
        ("b", "bad-label"),
        ("c", "bad-label"),
        ("x", "bad-label"),
    ]
    assert (listed.listed.items, listed.listed.rejected) == (2, 3)


def test_labels_with_another_number_of_values_are_rejected(tmp_path: Path) -> None:
    listed = make_list(tmp_path, [("a", [0.5, 1.0]), ("b", [0.5]), ("c", [1.0, 2.0])])
    assert [each["reason"] for each in listed.rejected()] == [
        "its label has 1 values, the first has 2"
    ]


def _fail_while_listing(folder: Path) -> None:
    with ItemListing(folder, 0) as listing:
        listing.add("a", 0, offset=listing.spill(b"data"), size_bytes=4)
        listing.reject("b", "no-label", "it has none")
        raise KeyError


def test_an_unfinished_list_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        _fail_while_listing(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_listed(tmp_path, 0) is None


def test_a_list_without_its_last_file_counts_as_missing(tmp_path: Path) -> None:
    make_list(tmp_path, [("a", 0)])
    assert read_listed(tmp_path, 0) is not None
    path = list_path(tmp_path, 0, "json")
    path.write_bytes(path.read_bytes()[:-5])
    assert read_listed(tmp_path, 0) is None


def test_a_class_has_one_name(tmp_path: Path) -> None:
    with ItemListing(tmp_path, 1) as listing:
        listing.name_class(3, "a")
        listing.name_class(3, "a")
        with pytest.raises(DatasetError, match="class 3 is called a and b"):
            listing.name_class(3, "b")


def test_too_many_different_texts_are_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.source.listing.CLASSES_MAX", 3)
    with pytest.raises(ConfigError, match="over 3 different labels, such as 3"):
        make_list(tmp_path, [(str(number), str(number)) for number in range(9)])


def test_a_spill_that_cannot_fit_is_refused_before_it_begins(tmp_path: Path) -> None:
    with ItemListing(tmp_path, 0) as listing:
        listing.expect_spill(1)
        with pytest.raises(ResourceError, match=r"GB free, and a copy .* takes about 10000000"):
            listing.expect_spill(10**19)


@pytest.mark.parametrize(
    ("labels", "rejected"),
    [
        ([3, [], 4], 1),
        ([[], 3, []], 1),
        (["a", []], 1),
        ([[0.5], [], [1.0]], 1),
        ([["a"], [], ["b"]], 0),
        ([[], ["a"], [1]], 1),
        ([[], [0.5]], 1),
    ],
)
def test_an_empty_list_is_a_label_only_among_lists_of_classes(
    tmp_path: Path, labels: list[Any], rejected: int
) -> None:
    listed = make_list(tmp_path, [(str(number), label) for number, label in enumerate(labels)])
    assert listed.listed.rejected == rejected
    assert listed.listed.items == len(labels) - rejected


@pytest.mark.parametrize("suffix", ["items", "spill"])
def test_a_list_with_a_lost_file_counts_as_missing(tmp_path: Path, suffix: str) -> None:
    with ItemListing(tmp_path, 0) as listing:
        listing.add("a", 0, offset=listing.spill(b"data"), size_bytes=4)
        listing.finish("x", (1, 1))
    assert read_listed(tmp_path, 0) is not None
    list_path(tmp_path, 0, suffix).unlink()
    assert read_listed(tmp_path, 0) is None
