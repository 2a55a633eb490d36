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
    decode_values,
    encode_values,
    parse_decimal,
    read_raw,
)

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
        *((number, str(number)) for number in (2**63, -(2**63))),  # the latter is MISSING in lists
        (str(2**63), str(2**63)),
    ],
    Form.REAL: [(0.5, 0.5), (3.0, 3.0), (np.float32(0.5), 0.5), (1e300, 1e300), (math.inf,) * 2],
    Form.NUMBERS: [
        *(([], []), ([1, 0, 1, 1], [1, 0, 1, 1]), (["1", 2], [1, 2]), ([1, None], [1, MISSING])),
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
        ([10**5000], "a number of thousands of digits"),
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


_INT64 = st.integers(-200, 200) | st.integers(-_MAX, _MAX) | st.just(MISSING)
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
