"""Lists of items and their labels: what is written is read again, an unfinished list is gone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, ResourceError
from feeder.source.listing import ItemListing, ListedItems, list_path, read_listed
from feeder.source.raw_labels import (
    BadLabel,
    Form,
    parse_decimal,
    read_raw,
)
from tests.source.item_lists import label_of, make_list, name_of

_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
_SINGLE = st.floats(width=32, allow_infinity=False)
_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(
    lambda text: text == text.strip() and read_raw(text)[0] == Form.TEXT
)
_LABELS = st.one_of(
    _INT64,
    _TEXTS,
    st.floats(),
    st.lists(_INT64 | st.none(), max_size=9),
    st.lists(_TEXTS, min_size=1, max_size=9),
    st.tuples(_SINGLE, st.lists(_SINGLE, max_size=4)).map(lambda each: [each[0], *each[1]]),
)


def _is_same(found: Any, given: Any) -> bool:
    """Return whether two labels are equal, NaN to NaN."""
    return type(found) is type(given) and ascii(found) == ascii(given)


@given(st.dictionaries(_NAMES, _LABELS))
def test_items_are_read_as_they_were_added(
    tmp_path_factory: pytest.TempPathFactory, items: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    with ItemListing(folder, 3) as listing:
        for at, (name, label) in enumerate(items.items()):
            listing.add(name, label, offset=7 * at, size_bytes=at, stamp=at + 1)
        listed = listing.finish("x", (1, 2))
    assert read_listed(folder, 3) == listed
    assert (listed.items, listed.rejected) == (len(items), 0)
    read = ListedItems(folder, 3, listed)
    for at, (name, label) in enumerate(items.items()):
        record = read.rows[at]
        assert name_of(read, at) == name
        assert _is_same(label_of(read, at), label), label
        assert record[["offset", "size_bytes", "stamp"]].item() == (7 * at, at, at + 1)
    assert listed.bytes == sum(range(len(items)))
    lists = [label for label in items.values() if isinstance(label, list)]
    assert sum(listed.facts.widths.values()) == len(lists)


def test_faults_of_items_are_rejected_and_listed(tmp_path: Path) -> None:
    long = "x" * 70_000
    items: list[tuple[str, Any]] = [
        *[("a", 1), ("b", b"bytes"), ("c", None), (long, 1), ("d", "text"), ("e", " ")],
        *[("f", ["x", 1]), ("g", [[1]]), ("h", [1e39]), ("i", [0.5, None])],
    ]
    listed = make_list(tmp_path, items)
    assert [name_of(listed, row) for row in range(3)] == ["a", "d", "i"]
    assert [(each["path"][:1], each["kind"]) for each in listed.rejected()] == [
        *[("b", "bad-label"), ("c", "no-label"), ("x", "bad-label"), ("e", "no-label")],
        *[("f", "bad-label"), ("g", "bad-label"), ("h", "bad-label")],
    ]
    assert (listed.listed.items, listed.listed.rejected) == (3, 7)


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


def test_too_many_different_texts_are_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.source.listing.CLASSES_MAX", 3)
    with pytest.raises(ConfigError, match="over 3 different labels, such as c3"):
        make_list(tmp_path, [(str(number), f"c{number}") for number in range(9)])
    with pytest.raises(ConfigError, match=r"over 3 different labels, such as 3\.5"):
        make_list(tmp_path, [(str(n), f"{n}.5") for n in range(9)], label_kind="name")


def test_a_spill_that_cannot_fit_is_refused_before_it_begins(tmp_path: Path) -> None:
    with ItemListing(tmp_path, 0) as listing:
        listing.expect_spill(1)
        with pytest.raises(ResourceError, match=r"GB free, and a copy .* takes about 10000000"):
            listing.expect_spill(10**19)


@pytest.mark.parametrize("suffix", ["items", "spill"])
def test_a_list_with_a_lost_file_counts_as_missing(tmp_path: Path, suffix: str) -> None:
    with ItemListing(tmp_path, 0) as listing:
        listing.add("a", 0, offset=listing.spill(b"data"), size_bytes=4)
        listing.finish("x", (1, 1))
    assert read_listed(tmp_path, 0) is not None
    list_path(tmp_path, 0, suffix).unlink()
    assert read_listed(tmp_path, 0) is None


# Labels as sources have them


_MAX = 2**63 - 1
_FORMS: dict[Form, list[tuple[Any, Any]]] = {
    Form.NUMBER: [
        *((3, 3), (-1, -1), (True, 1), (np.int64(3), 3), (np.uint64(_MAX), _MAX), (-_MAX, -_MAX)),
        *((np.bool_(True), 1), ("3", 3), ("0", 0), ("-17", -17), (" 3\r\n", 3), (str(_MAX), _MAX)),
    ],
    # A text that writes no whole number in its one way stays what it is.
    Form.TEXT: [
        *((text, text) for text in ("007", "00", "-0", "+3", "3.0", "1e3", "1_000", "٣", "NA")),
        *((" a cat\n", "a cat"), (np.str_("cat"), "cat"), ("9" * 5000, "9" * 5000)),
        *((number, str(number)) for number in (2**63, -(2**63))),
        (str(2**63), str(2**63)),
    ],
    Form.REAL: [(0.5, 0.5), (3.0, 3.0), (np.float32(0.5), 0.5), (1e300, 1e300), (math.inf,) * 2],
    Form.NUMBERS: [
        *(([], []), ([1, 0, 1, 1], [1, 0, 1, 1]), (["1", 2], [1, 2]), ([1, None], [1, None])),
        *(([np.bool_(True), np.bool_(False)], [1, 0]), (np.array([1, 0], np.uint8), [1, 0])),
        *(((3,), [3]), ({3, 1}, [1, 3])),
    ],
    Form.TEXTS: [(("b", "a"), ["b", "a"]), (["b ", "3"], ["b", "3"]), ({"b", "a"}, ["a", "b"])],
    Form.REALS: [
        *(([1, 2.5], [1.0, 2.5]), (["1", 2.5], [1.0, 2.5])),
        (np.array([1, 0], np.float32), [1.0, 0.0]),
    ],
    # Nothing is no label; whether one is needed, the listing decides.
    Form.NONE: [(None, None), ("", None), (" \n", None)],
}


@pytest.mark.parametrize("form", _FORMS)
def test_labels_keep_what_they_are(form: Form) -> None:
    for raw, value in _FORMS[form]:
        found = read_raw(raw)
        assert (found, type(found[1])) == ((form, value), type(value)), raw
        if isinstance(value, list):
            assert [*map(type, found[1])] == [*map(type, value)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (["a", 1], "mixes numbers and texts"),
        (["a", None], "mixes numbers and texts"),
        (np.array([[1, 0]]), "is a list that has a list in it"),
        (["a", ""], "is a list that has an empty text in it"),
        ([0.5, math.inf] * 1000, "… is not of finite 32-bit numbers"),
        (b"cat", "of the type bytes"),
        (["\ud800"], "characters that are none"),
    ],
)
def test_what_is_no_label_is_refused_with_the_reason(raw: Any, reason: str) -> None:
    with pytest.raises(BadLabel, match=reason) as caught:
        read_raw(raw)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_texts_that_write_numbers() -> None:
    numbers = {"0": 0.0, "3": 3.0, "-1": -1.0, "+2": 2.0, "1.": 1.0, ".5": 0.5, "0.5": 0.5}
    numbers |= {"1e3": 1000.0, "-1.5E-1": -0.15, "0e9": 0.0}
    names = ("007", "-01", "00.5", "1_0", "0x1", "nan", "inf", "", "1 2", "NA", "1,5", "٣", "1e")
    for text, value in {**numbers, **dict.fromkeys((*names, ".", "--1"))}.items():
        assert parse_decimal(text) == value, text
