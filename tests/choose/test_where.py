"""Conditions on records: those that parse hold of what they say, all others are one line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.choose.where import parse_where
from feeder.dataset.format import RECORD, Oddity
from feeder.errors import ConfigError


def records() -> np.ndarray:
    """Widths 10 .. 60, heights 60 .. 10, sizes 100 .. 600; the second is CMYK, the third both."""
    table = np.zeros(6, RECORD)
    table["width"] = np.arange(10, 70, 10)
    table["height"] = table["width"][::-1]
    table["blob_bytes"] = 10 * table["width"].astype(np.uint32)
    table["flags"][1] = Oddity.CMYK
    table["flags"][2] = Oddity.CMYK | Oddity.WRONG_SUFFIX
    return table


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("width >= 30", [2, 3, 4, 5]),
        ("30 <= width", [2, 3, 4, 5]),
        ("width >= 30 and bytes < 5e2", [2, 3]),
        ("width < 20 or width > 50", [0, 5]),
        ("width < 20 or width > 20 and width != 30", [0, 3, 4, 5]),
        ("(width < 20 or width > 20) and width != 30", [0, 3, 4, 5]),
        ("not (width < 20 or width > 30)", [1, 2]),
        ("not not cmyk", [1, 2]),
        ("cmyk and not wrong-suffix", [1]),
        ("width/height < 0.5", [0, 1]),
        ("width * height == 1200", [2, 3]),
        ("width == height", []),
        (" width>.5e1 ", [0, 1, 2, 3, 4, 5]),
        ("width / 0 > 1", [0, 1, 2, 3, 4, 5]),
        ("1 < 2", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_condition_holds_of_the_records_that_it_says(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(parse_where(text)(records())).tolist() == rows


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a number or a field is missing before 'the end' (character 1)"),
        ("widht > 3", "there is no field or flag 'widht'; nearest is width (character 1)"),
        ("xyz > 3", "there is no field or flag 'xyz'; known are width, height, bytes, progressive"),
        ("width", "one of < <= > >= == != is missing before 'the end' (character 6)"),
        ("width >", "a number or a field is missing before 'the end'"),
        ("width = 3", "'=' has no meaning (character 7)"),
        ("width > 3 height < 4", "'height' is not expected there (character 11)"),
        ("(width > 3", "a ) is missing before 'the end'"),
        ("width > 3)", "')' is not expected there"),
        ("cmyk > 3", "'>' is not expected there (character 6)"),
        ("width > cmyk", "cmyk is a flag, which cannot be compared"),
        ("width > and", "missing before 'and'"),
        ("__import__('os')", "'_' has no meaning"),
        ("width > 3; x", "';' has no meaning (character 10)"),
        ("(" * 70 + "cmyk" + ")" * 70, "parentheses are nested too deeply"),
        ("cmyk and " * 600, "it has 5400 characters, 1000 are allowed"),
    ],
)
def test_what_is_no_condition_is_one_line_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"^--where ") as caught:
        parse_where(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


WORDS = """width height bytes cmyk png and or not ( ) < <= > >= == != * / 3 0.5 1e400 x é"""
words = st.sampled_from([*WORDS.split(), "\n", ""])


@given(st.lists(words, max_size=12).map(" ".join))
def test_any_words_are_a_condition_or_one_line(text: str) -> None:
    message = ""
    try:
        holds = parse_where(text)(records())
    except ConfigError as error:
        message = str(error)
    assert (holds.shape, holds.dtype) == ((6,), np.bool_) if not message else "\n" not in message
