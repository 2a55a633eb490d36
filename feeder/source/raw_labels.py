"""Labels as a source has them: stored as they are, before it is known what they mean.

    3, "3", True     NUMBER     a whole number; also one that is written as text
    "cat", "007"     TEXT       any other text
    0.5              REAL
    [3, None], ["3"] NUMBERS    null counts as one
    ["cat", "3"]     TEXTS
    [0.5, 1]         REALS
    nothing          NONE       no label, or none is wanted

One label shows little: 1 may be a class or a value, [0, 1] two classes or the second of two. What
all labels of a source are is decided once, from the forms and ``LabelFacts``
(feeder.pack.label_reading).
"""

import enum
import math
import numbers
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from feeder.source.label_files.columns import BadLabel as BadLabel
from feeder.source.label_files.columns import is_missing_word as is_missing_word
from feeder.source.label_files.columns import parse_decimal as parse_decimal

RawLabel = int | str | float | None | Sequence[int] | Sequence[str] | Sequence[float]
"""A class's number or name, a value, several of either, or nothing; numpy's types count too."""

Value = int | str | float | list[int | None] | list[str] | list[float] | None

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_SEPARATOR: Final = re.compile(r"[;|]")
_DIGITS: Final = re.compile(r"-?\d+(?:[\s,;|]+-?\d+)+", re.ASCII)
_DIGITS_SEPARATOR: Final = re.compile(r"[\s,;|]+")
_INT64_MAX: Final = 2**63 - 1
_INT64_DIGITS: Final = 20
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_SHOWN_CHARACTERS: Final = 80
_SWITCHES: Final = frozenset({0, 1, -1, None})


class Form(enum.IntEnum):
    """The form of a label; from NUMBERS on it is a list, which lies in the list's text."""

    NONE = 0
    NUMBER = 1
    TEXT = 2
    REAL = 3
    NUMBERS = 4
    TEXTS = 5
    REALS = 6


class LabelFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the labels of a container that are lists have in common, as counts of lists."""

    widths: dict[int, int] = {}
    """Lists by their length."""
    classes: int = 0
    """Lists that can name classes: whole numbers from ``base`` on, none of them twice."""
    switches: int = 0
    """Lists of 0 and 1 only, of -1 and nothing, too."""
    one: int = 0
    """Of these, lists with exactly one 1."""
    none: int = 0
    """Of these, lists without a 1."""
    zero: int = 0
    """Of these, lists with a 0."""
    minus: int = 0
    """Of these, lists with -1."""
    nulls: int = 0
    """Of these, lists with null or NaN."""

    def observe(self, form: Form, values: Sequence[Any], base: int) -> None:
        """Count a list."""
        self.widths[len(values)] = self.widths.get(len(values), 0) + 1
        if form == Form.TEXTS:
            return
        distinct = {None if value != value else value for value in values}
        if len(distinct) == len(values) and None not in distinct:
            self.classes += all(value >= base and value == int(value) for value in values)
        if len(values) > 1 and distinct <= _SWITCHES:
            ones = values.count(1)
            self.switches += 1
            self.one += ones == 1
            self.none += ones == 0
            self.zero += 0 in distinct
            self.minus += -1 in distinct
            self.nulls += None in distinct

    def add(self, other: "LabelFacts") -> None:
        """Add the counts of another container."""
        for width, count in other.widths.items():
            self.widths[width] = self.widths.get(width, 0) + count
        for name in self.__struct_fields__[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def read_raw(raw: object, *, is_name: bool = False) -> tuple[Form, Value]:
    """Return the form of a label and its value in plain Python types; BadLabel if it is none.

    ``is_name``: a text is a name even if it is a number.
    """
    raw = raw.tolist() if isinstance(raw, np.ndarray) else _plain(raw)
    if isinstance(raw, (set, frozenset)):
        raw = _sorted(raw)
    if isinstance(raw, (list, tuple)):
        return _read_list([_plain(value) for value in raw], is_name)
    if raw is None:
        return Form.NONE, None
    if isinstance(raw, str):
        return _read_text(raw, is_name)
    if isinstance(raw, numbers.Integral):
        number = int(raw)
        return (Form.NUMBER, number) if abs(number) <= _INT64_MAX else (Form.TEXT, str(number))
    if isinstance(raw, numbers.Real):
        return Form.REAL, float(raw)
    raise BadLabel(f"its label is of the type {type(raw).__name__}")


def split_joined(text: str) -> list[str]:
    """Return the parts of a text that may be several labels, as "cat;dog" and "1 0 0"."""
    separator = _DIGITS_SEPARATOR if _DIGITS.fullmatch(text) else _SEPARATOR
    return [part for part in map(str.strip, separator.split(text)) if part]


def number_of(value: str | float | None) -> float | None:
    """Return the number in a value of a label; None for a name, and for nothing."""
    return parse_decimal(value) if isinstance(value, str) else value


def check_float(value: float) -> float:
    """Return a value that float32 has; BadLabel for others, and for NaN."""
    if not abs(value) <= _FLOAT_MAX:
        raise BadLabel(f"its label {value:g} is not a finite 32-bit number")
    return value


def show_label(value: object) -> str:
    """Return a label for a reason, shortened: it may be a text or a number of any length."""
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def encode_values(form: Form, values: Sequence[Any]) -> bytes:
    """Return a list as ``decode_values`` reads it: its size in bytes, then float32 or msgpack."""
    is_real = form == Form.REALS
    data = np.asarray(values, "<f4").tobytes() if is_real else msgspec.msgpack.encode(values)
    return len(data).to_bytes(4, "little") + data


def stored_values(data: Any, at: int) -> bytes:
    """Return the bytes of the list at an offset of ``data``; of REALS, these are float32."""
    return bytes(data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4], "little")])


def decode_values(data: Any, at: int, form: int) -> list[Any]:
    """Return the list at an offset of ``data``: floats, integers and None, or numbers of texts."""
    stored = stored_values(data, at)
    is_real = form == Form.REALS
    values = np.frombuffer(stored, "<f4").tolist() if is_real else msgspec.msgpack.decode(stored)
    return list(values)


def _read_text(raw: str, is_name: bool) -> tuple[Form, Value]:
    text = raw if is_name else raw.strip()
    try:
        text.encode()
    except UnicodeEncodeError:
        if not is_name:  # the name of a folder may have bytes that are no UTF-8
            raise BadLabel("its label has characters that are none (lone surrogates)") from None
    if not text:
        return Form.NONE, None
    may_be_number = len(text) <= _INT64_DIGITS and not is_name and is_whole(text)
    if may_be_number and abs(int(text)) <= _INT64_MAX:
        return Form.NUMBER, int(text)
    return Form.TEXT, text


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number of any size, written without a point."""
    return _WHOLE.fullmatch(text) is not None


def _read_list(values: list[Any], is_name: bool) -> tuple[Form, Value]:
    forms: set[Form] = set()
    found: list[Any] = []
    for value in values:
        form, plain = (Form.NONE, None) if value is None else read_raw(value, is_name=is_name)
        if form > Form.REAL or (form == Form.NONE and value is not None):
            what = "a list" if form > Form.REAL else "an empty text"
            raise BadLabel(f"its label is a list that has {what} in it")
        forms.add(form)
        found.append(plain)
    if Form.TEXT in forms:
        if forms & {Form.NONE, Form.REAL} or not all(isinstance(value, str) for value in values):
            raise BadLabel("its label mixes numbers and texts")
        return Form.TEXTS, [value.strip() for value in values]
    if Form.REAL in forms:
        reals = [math.nan if value is None else float(value) for value in values]
        if any(abs(value) > _FLOAT_MAX for value in reals):
            raise BadLabel(f"its label {show_label(values)} is not of finite 32-bit numbers")
        return Form.REALS, reals
    return Form.NUMBERS, found


def _plain(value: object) -> object:
    """Return a scalar of numpy's as Python's type: np.bool_ is none of the numbers."""
    return value.item() if isinstance(value, np.generic) else value


def _sorted(values: Any) -> list[object]:
    try:
        return sorted(values)
    except TypeError:
        raise BadLabel("its label mixes numbers and texts") from None
