"""Labels as sources have them: their forms, the values that are stored, and what is none."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.source.raw_labels import (
    MISSING,
    BadLabel,
    Form,
    LabelFacts,
    decode_values,
    encode_values,
    is_huge_number,
    parse_decimal,
    read_raw,
    show_label,
)

_INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("raw", "form", "value"),
    [
        (3, Form.NUMBER, 3),
        (-1, Form.NUMBER, -1),
        (True, Form.NUMBER, 1),
        (np.int64(3), Form.NUMBER, 3),
        (np.uint64(_INT64_MAX), Form.NUMBER, _INT64_MAX),
        (np.bool_(True), Form.NUMBER, 1),
        (-_INT64_MAX, Form.NUMBER, -_INT64_MAX),
        ("3", Form.NUMBER, 3),
        ("0", Form.NUMBER, 0),
        ("-17", Form.NUMBER, -17),
        (" 3\r\n", Form.NUMBER, 3),
        (str(_INT64_MAX), Form.NUMBER, _INT64_MAX),
        # A text that writes no whole number in its one way stays what it is.
        ("007", Form.TEXT, "007"),
        ("00", Form.TEXT, "00"),
        ("-0", Form.TEXT, "-0"),
        ("+3", Form.TEXT, "+3"),
        ("3.0", Form.TEXT, "3.0"),
        ("1e3", Form.TEXT, "1e3"),
        ("1_000", Form.TEXT, "1_000"),
        ("٣", Form.TEXT, "٣"),
        ("NA", Form.TEXT, "NA"),
        (" a cat\n", Form.TEXT, "a cat"),
        (np.str_("cat"), Form.TEXT, "cat"),
        (2**63, Form.TEXT, str(2**63)),
        (-(2**63), Form.TEXT, str(-(2**63))),  # MISSING in a list
        (str(2**63), Form.TEXT, str(2**63)),
        pytest.param("9" * 5000, Form.TEXT, "9" * 5000, id="long"),
        (0.5, Form.REAL, 0.5),
        (3.0, Form.REAL, 3.0),
        (np.float32(0.5), Form.REAL, 0.5),
        (1e300, Form.REAL, 1e300),
        (math.inf, Form.REAL, math.inf),
        ([], Form.NUMBERS, []),
        ([1, 2], Form.NUMBERS, [1, 2]),
        ([1, 0, 1, 1], Form.NUMBERS, [1, 0, 1, 1]),
        (["1", 2], Form.NUMBERS, [1, 2]),
        ([1, None], Form.NUMBERS, [1, MISSING]),
        ([None], Form.NUMBERS, [MISSING]),
        ([np.bool_(True), np.bool_(False)], Form.NUMBERS, [1, 0]),
        (np.array([1, 0], np.uint8), Form.NUMBERS, [1, 0]),
        ((3,), Form.NUMBERS, [3]),
        ({3, 1}, Form.NUMBERS, [1, 3]),
        (("b", "a"), Form.TEXTS, ["b", "a"]),
        (["b ", "3"], Form.TEXTS, ["b", "3"]),
        (frozenset({"b", "a"}), Form.TEXTS, ["a", "b"]),
        ([1, 2.5], Form.REALS, [1.0, 2.5]),
        (["1", 2.5], Form.REALS, [1.0, 2.5]),
        (np.array([1, 0], np.float32), Form.REALS, [1.0, 0.0]),
        # Nothing is no label; whether one is needed, the listing decides.
        (None, Form.NONE, None),
        ("", Form.NONE, None),
        (" \n", Form.NONE, None),
    ],
)
def test_labels_keep_what_they_are(raw: Any, form: Form, value: Any) -> None:
    found_form, found = read_raw(raw)
    assert (found_form, found) == (form, value)
    assert type(found) is type(value)
    if isinstance(found, list):
        assert list(map(type, found)) == list(map(type, value))


def test_nothing_among_reals_is_nan() -> None:
    form, value = read_raw([1.5, None, math.nan])
    assert (form, str(value)) == (Form.REALS, "[1.5, nan, nan]")
    form, value = read_raw(math.nan)
    assert (form, str(value)) == (Form.REAL, "nan")


@pytest.mark.parametrize(
    ("raw", "form", "value"),
    [
        ("10", Form.TEXT, "10"),
        ("007", Form.TEXT, "007"),
        (" a", Form.TEXT, " a"),  # the name of a folder
        ("a\udcff", Form.TEXT, "a\udcff"),
        (10, Form.NUMBER, 10),
        (["10", "9"], Form.TEXTS, ["10", "9"]),
        ("", Form.NONE, None),
    ],
)
def test_names_are_texts_even_where_they_are_numbers(raw: Any, form: Form, value: Any) -> None:
    assert read_raw(raw, is_name=True) == (form, value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (["a", 1], "mixes numbers and texts"),
        (["a", 0.5], "mixes numbers and texts"),
        (["a", None], "mixes numbers and texts"),
        ({"a", 1}, "mixes numbers and texts"),
        ([[1]], "is a list that has a list in it"),
        (np.array([[1, 0]]), "is a list that has a list in it"),
        (["a", ""], "is a list that has an empty text in it"),
        ([1e39], "is not of finite 32-bit numbers"),
        ([0.5, math.inf], "is not of finite 32-bit numbers"),
        (b"cat", "of the type bytes"),
        ({"x": 1}, "of the type dict"),
        ([{"x": 1}], "of the type dict"),
        ("\ud800", "characters that are none"),
        (["\ud800"], "characters that are none"),
        ([10**5000], "a number of thousands of digits"),
    ],
)
def test_what_is_no_label_is_refused_with_the_reason(raw: Any, reason: str) -> None:
    with pytest.raises(BadLabel, match=reason) as caught:
        read_raw(raw)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0.0), ("3", 3.0), ("-1", -1.0), ("+2", 2.0), ("1.", 1.0), (".5", 0.5)),
        *(("0.5", 0.5), ("1e3", 1000.0), ("-1.5E-1", -0.15), ("0e9", 0.0)),
        *((name, None) for name in ("007", "-01", "00.5", "1_0", "0x1", "nan", "inf", "", "1 2")),
        *((name, None) for name in ("NA", "1,5", "٣", "1e", ".", "--1")),
    ],
)
def test_texts_that_write_numbers(text: str, value: float | None) -> None:
    assert parse_decimal(text) == value


@pytest.mark.parametrize(
    ("text", "is_huge"),
    [
        (str(_INT64_MAX), False),
        (str(2**63), True),
        (str(-(2**63)), True),
        pytest.param("9" * 5000, True, id="long"),
        ("0" + "9" * 30, False),
        ("9" * 30 + ".5", False),
        ("123", False),
    ],
)
def test_whole_numbers_beyond_64_bits_are_known_as_such(text: str, is_huge: bool) -> None:
    form, _ = read_raw(text)
    assert (form == Form.TEXT and is_huge_number(text)) == is_huge


def test_a_label_in_a_reason_is_short_and_printable() -> None:
    for value in ("x" * 1000, 10**5000, [0.5] * 1000, "\n\ud800é", None):
        assert len(show_label(value)) <= 81
        assert show_label(value).isprintable()


_INT64 = st.one_of(st.integers(-200, 200), st.integers(-_INT64_MAX, _INT64_MAX), st.just(MISSING))
_LISTS = st.one_of(
    st.tuples(st.just(Form.NUMBERS), st.lists(_INT64, max_size=9)),
    st.tuples(st.just(Form.TEXTS), st.lists(st.integers(0, 2**32 - 1), max_size=9)),
    st.tuples(st.just(Form.REALS), st.lists(st.floats(width=32), max_size=9)),
)


@given(st.lists(_LISTS, max_size=5))
def test_lists_are_decoded_as_they_were_encoded(lists: list[tuple[Form, list[Any]]]) -> None:
    data, offsets = b"", []
    for form, values in lists:
        offsets.append(len(data))
        data += encode_values(form, values)
    for (form, values), at in zip(lists, offsets, strict=True):
        decoded = decode_values(data, at, form)
        dtype = np.float32 if form == Form.REALS else np.int64
        assert decoded.astype(dtype).tobytes() == np.array(values, dtype).tobytes()


def test_small_numbers_take_a_byte_each() -> None:
    assert len(encode_values(Form.NUMBERS, [0, 1, -1, 127, -128])) == 5 + 5
    assert len(encode_values(Form.NUMBERS, [0, 128])) == 5 + 2 * 8


@pytest.mark.parametrize(
    ("lists", "base", "facts"),
    [
        ([[1, 2]], 0, LabelFacts(widths={2: 1}, classes=1)),
        ([[2, 2]], 0, LabelFacts(widths={2: 1})),
        ([[0, 3], [1, 3]], 1, LabelFacts(widths={2: 2}, classes=1)),
        ([[0.5, 1.5]], 0, LabelFacts(widths={2: 1})),
        ([[0, 1]], 0, LabelFacts(widths={2: 1}, classes=1, switches=1, one=1, zero=1)),
        ([[0, 1]], 1, LabelFacts(widths={2: 1}, switches=1, one=1, zero=1)),
        ([[0.0, 1.0]], 0, LabelFacts(widths={2: 1}, classes=1, switches=1, one=1, zero=1)),
        ([[1, 1, 0]], 0, LabelFacts(widths={3: 1}, switches=1, zero=1)),
        ([[0, 0, 0]], 0, LabelFacts(widths={3: 1}, switches=1, none=1, zero=1)),
        ([[1, -1, -1]], 0, LabelFacts(widths={3: 1}, switches=1, one=1, minus=1)),
        ([[1, MISSING]], 0, LabelFacts(widths={2: 1}, switches=1, one=1, missing=1)),
        (
            [[1.0, math.nan, 0.0]],
            0,
            LabelFacts(widths={3: 1}, switches=1, one=1, zero=1, missing=1),
        ),
        ([[math.nan, math.nan]], 0, LabelFacts(widths={2: 1}, switches=1, none=1, missing=1)),
        ([[1], [0], []], 0, LabelFacts(widths={1: 2, 0: 1}, classes=3)),
    ],
)
def test_lists_of_numbers_are_counted(
    lists: list[list[float]], base: int, facts: LabelFacts
) -> None:
    counted, other = LabelFacts(), LabelFacts()
    for values in lists:
        counted.observe(values, base)
    assert counted == facts
    other.add(counted)
    other.add(LabelFacts())
    assert other == facts
