"""What the labels of a source are, decided once from all of them: the rule of ``feeder pack``.

    names        classes, by their names                        "cat"; folders; --label-kind name
    numbers      classes, by number; also numbers in texts      3, "3"
    lists        several classes a sample                       [3, 5], ["cat", "dog"]
    one-hot      one class a sample, as a row of 0 and 1        [0, 0, 1]
    multi-hot    several classes, as a row of 0 and 1           [1, 0, 1]
    floats       numbers as they are                            0.5, [0.5, 1.5]

The few labels that do not fit what all others are belong to bad images. What could be read in two
ways is never decided here: it is an error that names ``--label-kind`` or ``--uncertain``.
"""

import enum
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.pack.items import SourceItems
from feeder.process.path_text import printable
from feeder.source.raw_labels import (
    BadLabel,
    Form,
    LabelFacts,
    check_float,
    decode_values,
    is_missing_word,
    is_whole,
    number_of,
    parse_decimal,
    show_label,
    split_joined,
)
from feeder.source.source import SourceSpec

Way = Literal["none", "names", "numbers", "lists", "one-hot", "multi-hot", "floats"]
_SHOWN_CHARACTERS: Final = 80
_CHUNK: Final = 1 << 16
_FEW: Final = 10  # at most one label in ten may be of another kind than the others


class Look(enum.IntEnum):
    """What a label looks like by itself."""

    NONE = 0
    NUMBER = 1
    WHOLE = 2
    """A whole number that is written as a decimal: 1.0."""
    DECIMAL = 3
    MISSING = 4
    NAME = 5
    LIST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReading:
    """How the labels of a source are read, and which of its items have one that does not fit."""

    way: Way
    width: int
    """Of rows of 0 and 1, and of floats; else 1."""
    is_named: bool
    """Whether a class is known by its name, also where that is a number."""
    is_distinct: bool
    """Whether a list may not have a class twice: it would be something else than the others."""
    base: int
    """The number of the first class."""
    uncertain: int | None
    """What -1 and a missing value in a row of 0 and 1 are: 0 or 1; None: a fault."""
    facts: LabelFacts
    bad: dict[int, str]
    """Rows and reasons."""
    keys: dict[str | int, int]
    """The names, or numbers from 0, of the classes that labels have; each has a number."""
    key_of: NDArray[np.int32]
    """The number in ``keys`` of each item of one class, (n,)."""

    def read(self, items: SourceItems, container: int, form: int, label: int) -> list[Any]:
        """Return names or numbers (from 0) of a label's classes, or its floats; else BadLabel."""
        raw = _raw_values(items, container, form, label)
        is_list = form >= Form.NUMBERS
        if self.way in ("one-hot", "multi-hot") and not is_list:
            raise BadLabel(f"its label {_show(raw[0])} is no row of 0 and 1")
        if self.way in ("names", "numbers") and is_list:
            raise BadLabel(f"its label is a list of {len(raw)}, unlike the others")
        if self.way in ("floats", "one-hot", "multi-hot"):
            if len(raw) != self.width:
                raise BadLabel(f"its label has {len(raw)} values, the others {self.width}")
            return [*map(_float, raw)] if self.way == "floats" else self._positions(raw)
        if self.is_named:
            return [*map(_name, raw)]
        numbers = [*map(self._number, raw)]
        if self.is_distinct and len(set(numbers)) < len(numbers):
            raise BadLabel(f"its label {_show(raw)} has a class twice, unlike the others")
        return numbers

    def _number(self, value: str | float | None) -> int:
        number = number_of(value)
        if number is None or not float(number).is_integer():
            raise BadLabel(f"its label {_show(value)} is no class number")
        if number < self.base:
            raise BadLabel(
                f"its label is {number:g}, below the first class {self.base} (--label-base; "
                "--label-kind none where there are no labels)"
            )
        return int(number) - self.base

    def _positions(self, raw: list[Any]) -> list[int]:
        """The places of a row of 0 and 1 that have a 1."""
        ones: list[int] = []
        for at, value in enumerate(raw):
            is_minus = value == -1 and self.facts.zero > 0  # else it is in the place of 0
            if is_minus or value is None or value != value:
                if self.uncertain is None:
                    raise BadLabel(f"its row of 0 and 1 has {_show(value)} (--uncertain)")
                value = self.uncertain
            if value not in (0, 1, -1):
                raise BadLabel(f"its row of 0 and 1 has {_show(value)}")
            if value == 1:
                ones.append(at)
        if self.way == "one-hot" and len(ones) != 1:
            raise BadLabel(f"its row of 0 and 1 has {len(ones)} ones, not one")
        return ones


def read_labels(items: SourceItems, spec: SourceSpec) -> LabelReading:
    """Decide what the labels of a source are; ConfigError where they could be two things."""
    listed = [each.listed for each in items.lists]
    facts = LabelFacts()
    for each in listed:
        facts.add(each.facts)
    reader = _Reader(items, spec, facts)
    way, width = reader.choose()
    may_have_rows = ("multi", "one-hot", "multi-hot")  # a column for each class is one, too
    if spec.uncertain and way not in may_have_rows and spec.label_kind not in may_have_rows:
        raise ConfigError(
            f"--uncertain {spec.uncertain}: labels are no rows of 0 and 1: leave it out"
        )
    reading = LabelReading(
        way=way,
        width=width,
        is_named=way == "names" or (way == "lists" and reader.lists_are_named()),
        is_distinct=way == "lists" and spec.label_kind is None,
        base=next((each.base for each in listed if each.items), 0),
        uncertain={"no": 0, "yes": 1}.get(spec.uncertain),
        facts=facts,
        bad={},
        keys={},
        key_of=np.zeros(len(items), np.int32),
    )
    if way != "none":
        _read_all(items, reading)
    return reading


def _read_all(items: SourceItems, reading: LabelReading) -> None:
    """Read the label of every item; fill in ``reading``."""
    shared: dict[tuple[int, int, int], int | str] = {}  # what many items have is read once
    for start in range(0, len(items), _CHUNK):
        labels = items.rows[start : start + _CHUNK][["container", "form", "label"]].tolist()
        numbers = []
        for row, label in enumerate(labels, start):
            outcome = shared.get(label)
            if outcome is None:
                outcome = _read_one(items, reading, *label)
                if label[1] in (Form.NUMBER, Form.TEXT):
                    shared[label] = outcome
            if isinstance(outcome, str):
                reading.bad[row] = outcome
                outcome = 0
            numbers.append(outcome)
        reading.key_of[start : start + len(numbers)] = numbers
    if reading.is_named:
        for text in items.texts:  # also classes that no item has
            reading.keys.setdefault(text, len(reading.keys))


def _read_one(
    items: SourceItems, reading: LabelReading, container: int, form: int, label: int
) -> int | str:
    """Return the number of a label's first key, or why it is bad."""
    try:
        keys = reading.read(items, container, form, label)
    except BadLabel as error:
        return str(error)
    if reading.way == "floats":
        return 0
    numbers = [reading.keys.setdefault(key, len(reading.keys)) for key in keys]
    return numbers[0] if numbers else 0


class _Reader:
    """Decides what labels are."""

    def __init__(self, items: SourceItems, spec: SourceSpec, facts: LabelFacts) -> None:
        self._items = items
        self._facts = facts
        self._kind = spec.label_kind
        self._uncertain = spec.uncertain
        self._text_looks = np.array(
            [
                Look.NAME if each.listed.by_name else _look_at_text(text)
                for each in items.lists
                for text in each.listed.texts
            ],
            np.uint8,
        )
        self._looks = _look_at(items, self._text_looks)
        self._count: list[int] = np.bincount(self._looks, minlength=8).tolist()
        self._forms: list[int] = np.bincount(items.rows["form"], minlength=8).tolist()
        self._by_name = all(each.listed.by_name for each in items.lists if each.listed.items)
        self._where = items.fields(" and ", 2)

    def choose(self) -> tuple[Way, int]:
        """Return what the labels are, and their width."""
        kind, labels = self._kind, len(self._looks)
        lists = self._count[Look.LIST]
        if kind == "none" or not labels:
            return "none", 1
        if kind not in ("multi", "float") and not _are_few(min(lists, labels - lists), labels):
            self._refuse(
                f"{labels - lists:,} are no lists, {lists:,} are",
                "give --label-kind multi if a list holds the classes of an image, or name another "
                "field with --label",
                Look.LIST,
            )
        is_list = lists >= labels - lists or kind == "multi"
        if self._by_name and kind != "float":
            return ("lists" if is_list else "names"), 1
        if is_list or kind in ("one-hot", "multi-hot"):
            return self._choose_lists(lists)
        return self._choose_scalars()

    def _choose_scalars(self) -> tuple[Way, int]:
        count, decimals, names = self._count, self._count[Look.DECIMAL], self._count[Look.NAME]
        if self._kind == "float":
            return "floats", 1
        numeric = count[Look.NUMBER] + count[Look.WHOLE] + decimals
        if not numeric + names or self._are_padded(numeric, names):
            return "names", 1
        are_names_few = _are_few(names, numeric + names)
        if self._kind is None and not are_names_few:
            self._check_joined()
        if names >= numeric:
            return "names", 1
        if self._kind is None:
            if not are_names_few:
                self._refuse(
                    f"numbers ({numeric:,}) and others ({names:,})",
                    "give --label-kind name if all are names of classes, index if the others are "
                    "faults",
                    Look.NAME,
                )
            if decimals and not _are_few(decimals, numeric):
                return "floats", 1
            if decimals:
                self._refuse(
                    f"whole numbers ({numeric - decimals:,}) and others ({decimals:,})",
                    "give --label-kind float if they are values, index if they are classes and "
                    "the others are faults",
                    Look.DECIMAL,
                )
            if count[Look.WHOLE]:
                self._refuse(
                    "they are whole numbers written as decimals",
                    "give --label-kind index if they are classes, float if they are values",
                    Look.WHOLE,
                )
        return "numbers", 1

    def _are_padded(self, numeric: int, names: int) -> bool:
        """Whether all labels are digits of one length, as 007: names, in any reading."""
        texts = self._items.texts
        lengths = {len(text) for text in texts}
        if not names or len(lengths) != 1 or not all(text.isdecimal() for text in texts):
            return False
        (length,) = lengths
        numbers = self._items.rows["label"][self._items.rows["form"] == Form.NUMBER]
        is_long = (numbers >= 10 ** (length - 1)) & (numbers < 10**length)
        return numeric == len(numbers) and bool(is_long.all())

    def _check_joined(self) -> None:
        """Raise ConfigError for texts that are lists of labels, as "cat;dog" and "1 0 0"."""
        texts = {*self._items.texts}
        joined = {text: split for text in texts if len(split := split_joined(text)) > 1}
        parts = {part for split in joined.values() for part in split}
        are_digits = all(part.removeprefix("-").isdecimal() for part in parts)
        if parts & (texts - joined.keys()) or (joined and joined.keys() == texts and are_digits):
            shown = printable(min(joined)[:_SHOWN_CHARACTERS])
            self._refuse(
                f"{shown} may be one label or several",
                "give --label-kind multi (or multi-hot for rows of 0 and 1) if it is several, "
                "name if it is one",
            )

    def _choose_lists(self, lists: int) -> tuple[Way, int]:
        facts, kind, reals = self._facts, self._kind, self._forms[Form.REALS]
        width = max(facts.widths, key=lambda each: (facts.widths[each], each), default=1)
        if kind == "float":
            return "floats", max(width, 1)
        is_hot_kind = kind in ("one-hot", "multi-hot")
        if is_hot_kind and not facts.switches:
            raise ConfigError(
                f"--label-kind {kind}: no label{self._where} is a list of 0 and 1"
                f"{self._such_as(Look.LIST)}: leave it out, or choose another field with --label"
            )
        is_even = width > 1 and _are_few(lists - facts.widths[width], lists)
        if is_hot_kind or (is_even and _are_few(lists - facts.switches, lists)):
            return self._choose_rows(lists, width)
        if kind == "multi":
            return "lists", 1
        if kind == "index":  # a list that is no row of 0 and 1 is a fault
            return "numbers", 1
        are_rows_few = _are_few(facts.switches, lists)
        if _are_few(lists - reals, lists) or (are_rows_few and not _are_few(reals, lists)):
            return "floats", width
        odd = lists - self._forms[Form.TEXTS] - facts.classes
        if not _are_few(odd, lists) or (odd and reals and is_even):
            rows = ", one-hot or multi-hot if they are rows of 0 and 1" if facts.switches else ""
            self._refuse(
                f"{odd:,} of {lists:,} lists of numbers do not name different classes",
                f"give --label-kind float if they are values, multi if they are classes{rows}",
                Look.LIST,
            )
        return "lists", 1

    def _choose_rows(self, lists: int, width: int) -> tuple[Way, int]:
        """Return what lists of 0 and 1 are."""
        facts, kind = self._facts, self._kind
        may_be_classes = width == 2 and facts.classes > 0  # [0, 1]; a longer row repeats a number
        if kind == "multi" and may_be_classes:
            return "lists", 1
        if kind is None and not _are_few(self._forms[Form.REALS], lists):
            self._refuse(
                "they are rows of 0.0 and 1.0",
                "give --label-kind float if they are values, one-hot or multi-hot if they are "
                "classes",
                Look.LIST,
            )
        if kind is None and may_be_classes:
            self._refuse(
                f"they are lists of {width} numbers that are 0 or 1",
                "give --label-kind multi if they are lists of classes, one-hot or multi-hot if "
                "they are a row of 0 and 1 for each image",
                Look.LIST,
            )
        is_minus_uncertain = facts.minus > 0 and facts.zero > 0
        is_uncertain = is_minus_uncertain or facts.nulls > 0
        if is_uncertain and not self._uncertain:
            what = "-1 beside 0 and 1" if is_minus_uncertain else "missing values"
            raise ConfigError(
                f"rows of labels{self._where} have {what}{self._such_as(Look.LIST)}: give "
                "--uncertain no, yes or leave-out"
            )
        if kind in ("one-hot", "index"):
            return "one-hot", width
        may_have_more = is_uncertain and self._uncertain == "yes"
        if kind is None and not may_have_more:
            if facts.one == facts.switches:
                return "one-hot", width
            if facts.one and facts.one + facts.none == facts.switches:
                self._refuse(
                    f"their rows of 0 and 1 have one 1 each, but for {facts.none:,} that have none",
                    "give --label-kind one-hot to leave those images out, multi-hot to keep them "
                    "without a class",
                )
        return "multi-hot", width

    def lists_are_named(self) -> bool:
        """Return whether the classes in lists are names; ConfigError if both are common."""
        if self._by_name:
            return True
        count, forms = self._count, self._forms
        named = count[Look.NAME] + forms[Form.TEXTS]
        numbered = count[Look.NUMBER] + count[Look.WHOLE] + count[Look.DECIMAL]
        numbered += forms[Form.NUMBERS] + forms[Form.REALS]
        numbered -= self._facts.widths.get(0, 0)  # lists without a class fit both
        if named > numbered and not (self._text_looks == Look.NAME).any():
            self._refuse(
                "they are lists of texts that are numbers",
                "give --label-kind float if they are values, name if they are names of classes",
                Look.LIST,
            )
        are_few = _are_few(named, named + numbered)
        if not are_few and named < numbered:
            self._refuse(
                f"{numbered:,} have numbers, {named:,} have names",
                "give --label-kind name if all are names of classes",
            )
        return not are_few

    def _refuse(self, what: str, remedy: str, look: Look | None = None) -> NoReturn:
        """Raise ConfigError, with an example of a look."""
        such_as = "" if look is None else self._such_as(look)
        raise ConfigError(f"labels{self._where} can be read in two ways: {what}{such_as}: {remedy}")

    def _such_as(self, look: Look) -> str:
        row = int(np.argmax(self._looks == look))
        container, form, label = self._items.rows[row][["container", "form", "label"]].tolist()
        raw = _raw_values(self._items, container, form, label)
        example = show_label(raw if form >= Form.NUMBERS else raw[0])
        return f" (such as {example} of {printable(self._items.name(row))})"


def _are_few(part: int, whole: int) -> bool:
    return part * _FEW <= whole


def _look_at_text(text: str) -> Look:
    if is_missing_word(text):
        return Look.MISSING
    if is_whole(text):
        return Look.NUMBER  # too large a one
    value = parse_decimal(text)
    if value is None:
        return Look.NAME
    return Look.WHOLE if value.is_integer() else Look.DECIMAL


def _look_at(items: SourceItems, text_looks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What each item's label looks like by itself, (n,)."""
    by_form = np.array([0, Look.NUMBER, 0, 0, Look.LIST, Look.LIST, Look.LIST], np.uint8)
    forms = np.array(items.rows["form"])
    looks: NDArray[np.uint8] = by_form[forms]
    reals = np.flatnonzero(forms == Form.REAL)
    values = items.rows["label"][reals].view(np.float64)
    whole = np.where(values == np.floor(values), Look.WHOLE, Look.DECIMAL)
    looks[reals] = np.where(np.isfinite(values), whole, Look.MISSING)
    rows = np.flatnonzero(forms == Form.TEXT)
    looks[rows] = text_looks[items.rows["label"][rows]]
    return looks


def _raw_values(items: SourceItems, container: int, form: int, label: int) -> list[Any]:
    """The values of a label as the source has it; one unless it is a list."""
    if form == Form.TEXT:
        return [items.texts[label]]
    if form == Form.REAL:
        return [float(np.int64(label).view(np.float64))]
    if form < Form.NUMBERS:
        return [label]
    values = decode_values(items.text, label, form)
    if form == Form.TEXTS:
        return [items.texts[items.first_text[container] + value] for value in values]
    return values


def _name(value: object) -> str:
    if isinstance(value, float) or value is None:
        raise BadLabel(f"its label {_show(value)} is no name of a class")
    return str(value)


def _float(value: str | float | None) -> float:
    number = number_of(value)
    if number is None:
        raise BadLabel(f"its label {_show(value)} is no number")
    return check_float(float(number))


def _show(value: object) -> str:
    return "nothing" if value is None else show_label(value)
