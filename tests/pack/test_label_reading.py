"""What labels are, decided from all of them: tables, and what holds of any labels at all."""

import itertools
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, FeederError
from feeder.pack.classes import plan_classes
from feeder.pack.label_reading import Way, read_labels
from feeder.pack.merge import merge_lists
from feeder.source.source import SourceSpec
from tests.source.item_lists import make_list

_ANY = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Labels as they were read."""

    way: Way
    width: int
    classes: tuple[str, ...]
    labels: list[Any]
    """A class, the classes or the values of each item; or the reason why it has none."""
    rejected: int


def _read(
    labels: Sequence[Any],
    *,
    parts: Sequence[Sequence[int]] = (),
    uncertain: Any = "",
    **options: Any,
) -> _Read:
    """Read labels; ``parts`` are the places in ``labels`` that each container holds, in order."""
    parts = parts or [range(len(labels))]
    kind = options.pop("kind", None)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # a disk would take most of the time
        folder = Path(name)
        lists = [
            make_list(
                folder,
                [(str(at), labels[at]) for at in part],
                container=number,
                label_kind=kind,
                **options,
            )
            for number, part in enumerate(parts)
        ]
        items = merge_lists(folder, lists)
        spec = SourceSpec(
            kind="parquet",
            location="x",
            containers=("x",) * len(parts),
            label_kind=kind,
            uncertain=uncertain,
        )
        reading = read_labels(items, spec)
        plan = plan_classes(items, reading, spec, None)
        rows = np.array([row for row in range(len(items)) if row not in reading.bad], np.int64)
        found = dict.fromkeys(range(len(labels)))
        numbers = plan.labels_of(items, items.rows[rows])
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            record = items.rows[row]
            stored = plan.stored_row(
                items, int(record["container"]), int(record["form"]), int(record["label"])
            )
            value: Any = number
            if plan.labels.kind == "float":
                value = np.frombuffer(stored, "<f4").tolist()
            elif plan.labels.kind == "multi":
                bits = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")
                value = np.flatnonzero(bits).tolist()
            found[int(items.name(row))] = value
        found |= {int(items.name(row)): reason for row, reason in reading.bad.items()}
        found |= {int(each["path"]): each["reason"] for part in lists for each in part.rejected()}
        return _Read(
            way=reading.way,
            width=reading.width,
            classes=plan.classes,
            labels=list(found.values()),
            rejected=sum(part.listed.rejected for part in lists),
        )


def _check(labels: Sequence[Any], options: dict[str, Any], way: str, expected: list[Any]) -> None:
    """Check how labels are read; a text in ``expected`` begins the reason why it is bad."""
    read = _read(labels, **options)
    assert read.way == way
    assert len(read.labels) == len(expected)
    for found, label in zip(read.labels, expected, strict=True):
        assert found.startswith(label) if isinstance(label, str) else found == label, read.labels


TWELVE = [*range(12)]
NO_CLASS = "its label {} is no class number"
BELOW = "its label is {}, below the first class {} (--label-base; "


@pytest.mark.parametrize("missing", ["NA", "NaN", "?", "None", "null", "-", "n/a", math.nan])
@pytest.mark.parametrize("kind", [None, "index"])
@pytest.mark.parametrize("as_text", [False, True])
def test_numbers_with_a_few_that_are_none(missing: Any, kind: Any, as_text: bool) -> None:
    numbers = [str(number) if as_text else number for number in TWELVE]
    _check(
        [*numbers, missing], {"kind": kind}, "numbers", [*TWELVE, NO_CLASS.format(repr(missing))]
    )


@pytest.mark.parametrize(
    ("labels", "options", "way", "expected"),
    [
        # Numbers, by number.
        ([3, 0], {}, "numbers", [3, 0]),
        (["3", 0, " 1"], {}, "numbers", [3, 0, 1]),
        ([True, False], {}, "numbers", [1, 0]),
        ([*TWELVE, "", None], {}, "numbers", [*TWELVE, "it has no label", "it has no label"]),
        ([*TWELVE, "cat"], {}, "numbers", [*TWELVE, NO_CLASS.format("'cat'")]),
        ([*TWELVE, "007"], {}, "numbers", [*TWELVE, NO_CLASS.format("'007'")]),
        ([*TWELVE, [3, 4]], {}, "numbers", [*TWELVE, "its label is a list of 2, unlike the oth"]),
        ([*TWELVE, "+3"], {"kind": "index"}, "numbers", [*TWELVE, 3]),
        (
            ["1.0", "0.", 2.0, "NA"],
            {"kind": "index"},
            "numbers",
            [1, 0, 2, NO_CLASS.format("'NA'")],
        ),
        ([1, 2, 0.5], {"kind": "index"}, "numbers", [1, 2, NO_CLASS.format("0.5")]),
        ([1, 2, "0.5"], {"kind": "index"}, "numbers", [1, 2, NO_CLASS.format("'0.5'")]),
        ([1, 2, "a", "b"], {"kind": "index"}, "names", [0, 1, 2, 3]),  # as many names as numbers
        ([1, 2, 3, "a"], {"kind": "index"}, "numbers", [1, 2, 3, NO_CLASS.format("'a'")]),
        # The first class has the number of the base.
        ([1, 3, "2"], {"base": 1}, "numbers", [0, 2, 1]),
        ([1, 0], {"base": 1}, "numbers", [0, BELOW.format(0, 1)]),
        ([0, -1], {}, "numbers", [0, BELOW.format(-1, 0)]),
        (["1.0", "0.0"], {"base": 1, "kind": "index"}, "numbers", [0, BELOW.format(0, 1)]),
        ([[1, 3], [2]], {"base": 1}, "lists", [[0, 2], [1]]),
        ([[1], [2, 3, 0]], {"base": 1, "kind": "multi"}, "lists", [[0], BELOW.format(0, 1)]),
        ([1.5, 1], {"base": 1}, "floats", [[1.5], [1.0]]),
        ([[1, 0, 0], [0, 0, 1]], {"base": 1}, "one-hot", [0, 2]),
        # Names.
        (["cat", "ant", "cat"], {}, "names", [1, 0, 1]),
        (["cat", "ant", "7", "07"], {}, "names", [3, 2, 1, 0]),
        (["cat", "dog", "0.5"], {}, "names", [1, 2, 0]),
        (["cat", "dog", 0.5], {}, "names", [0, 1, "its label 0.5 is no name of a class"]),
        (["cat", "NA", "NA"], {}, "names", [1, 0, 0]),
        (["NA", "NA"], {}, "names", [0, 0]),
        (["10", "9", 8], {"kind": "name"}, "names", [0, 2, 1]),
        (["10", "9"], {"by_name": True}, "names", [0, 1]),
        (["-1", "?", "2.0"], {"by_name": True, "kind": "index"}, "names", [0, 2, 1]),
        (["007", "011"], {}, "names", [0, 1]),
        (["007", "110", "111"], {}, "names", [0, 1, 2]),
        (["00", "01", "10", "11"], {"kind": "index"}, "names", [0, 1, 2, 3]),
        # Values.
        ([0.5, 2, "1.5"], {}, "floats", [[0.5], [2.0], [1.5]]),
        ([0.5, math.nan], {}, "floats", [[0.5], "its label nan is not a finite 32-bit number"]),
        ([0.5, "NA"], {}, "floats", [[0.5], "its label 'NA' is no number"]),
        ([0.5, 1e39], {}, "floats", [[0.5], "its label 1e+39 is not a finite 32-bit number"]),
        ([0.5, "1" * 50], {}, "floats", [[0.5], "its label 1.11111e+49 is not a finite 32-bit"]),
        ([*[0.5] * 9, "cat"], {}, "floats", [*[[0.5]] * 9, "its label 'cat' is no number"]),
        ([3, "1", "1e2"], {"kind": "float"}, "floats", [[3.0], [1.0], [100.0]]),
        ([-1, 0, 1], {"kind": "float"}, "floats", [[-1.0], [0.0], [1.0]]),
        ([[0.5, 1], [2, 3]], {}, "floats", [[0.5, 1.0], [2.0, 3.0]]),
        ([[1.0, 2.0], [3.0, 4.0]], {}, "floats", [[1.0, 2.0], [3.0, 4.0]]),
        ([[1, 0], [0, 1]], {"kind": "float"}, "floats", [[1.0, 0.0], [0.0, 1.0]]),
        ([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], {}, "floats", [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]),
        ([["1", "0.5"], [1, 2]], {"kind": "float"}, "floats", [[1.0, 0.5], [1.0, 2.0]]),
        ([[0.5, 1.0], [0.5, None]], {}, "floats", [[0.5, 1.0], "its label nan is not a finite"]),
        (
            [[0.5, 1.0], [0.5, 1.0], [0.5], 0.5],
            {"kind": "float"},
            "floats",
            [*[[0.5, 1.0]] * 2, *["its label has 1 values, the others 2"] * 2],
        ),
        # Nothing.
        ([], {}, "none", []),
        ([None, 3, "x", [1]], {"kind": "none"}, "none", [0] * 4),
    ],
)
def test_single_labels_and_values(
    labels: list[Any], options: dict[str, Any], way: str, expected: list[Any]
) -> None:
    _check(labels, options, way, expected)


NO, YES, OUT = ({"uncertain": each} for each in ("no", "yes", "leave-out"))
ROWS = [[1, 0, 0, 1, 0], [0, 0, 1, 1, 0], [0, 1, 1, 1, 0]]
SETS = [[0, 3], [2, 3], [1, 2, 3]]
ONES = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
FEW_ROWS = 3 * ROWS  # and one more is one in ten
FEW_SETS = 3 * SETS
VALUES = "its label has {} values, the others {}"


@pytest.mark.parametrize(
    ("labels", "options", "way", "expected"),
    [
        # Classes.
        ([[3, 5], [4]], {}, "lists", [[3, 5], [4]]),
        ([[3, 5], [4, 1]], {}, "lists", [[3, 5], [1, 4]]),
        ([[5, 5, 3], [4]], {"kind": "multi"}, "lists", [[3, 5], [4]]),  # an object each
        (
            [*[[3, 4]] * 9, [5, 5]],
            {},
            "lists",
            [*[[3, 4]] * 9, "its label [5, 5] has a class twice"],
        ),
        ([[3], [0], []], {}, "lists", [[3], [0], []]),
        ([["a"], ["b", "a"], []], {}, "lists", [[0], [0, 1], []]),
        ([["a"], ["3", "a"], [3]], {}, "lists", [[1], [0, 1], [0]]),
        ([["10"], ["9", "8"]], {"kind": "name"}, "lists", [[0], [1, 2]]),
        ([[10], [9, 8]], {"kind": "name"}, "lists", [[0], [1, 2]]),
        ([[0, 1], [1, 0]], {"kind": "name"}, "lists", [[0, 1], [0, 1]]),
        ([[1, 0, 0]], {"kind": "name"}, "lists", [[0, 1]]),
        ([3, [4]], {"kind": "multi"}, "lists", [[3], [4]]),
        (["a", ["b", "a"]], {"kind": "multi"}, "lists", [[0], [0, 1]]),
        ([3, 4.0, "5.0"], {"kind": "multi"}, "lists", [[3], [4], [5]]),
        (["a;b", "b", "a"], {"kind": "multi"}, "lists", [[0, 1], [1], [0]]),
        (["a;b", "b"], {"kind": "multi", "by_name": True}, "lists", [[0], [1]]),
        (["a;b", "b"], {"kind": "name"}, "names", [0, 1]),
        # Of a column for each class, the names of those that have a 1.
        (
            [["b"], ["a", "b"], []],
            {"kind": "multi-hot", "by_name": True, **NO},
            "lists",
            [[1], [0, 1], []],
        ),
        (["b", "a"], {"kind": "one-hot", "by_name": True, **YES}, "names", [1, 0]),
        ([[3, 3], [4, 5]], {"kind": "multi"}, "lists", [[3], [4, 5]]),
        ([[3, 0.5], [4, 5]], {"kind": "multi"}, "lists", [NO_CLASS.format("0.5"), [4, 5]]),
        ([[3, None], [4]], {"kind": "multi"}, "lists", [NO_CLASS.format("nothing"), [4]]),
        ([*[[3, 4]] * 9, 3], {}, "lists", [*[[3, 4]] * 9, [3]]),
        ([*[[3, 4]] * 9, ["x"]], {}, "lists", [*[[3, 4]] * 9, NO_CLASS.format("'x'")]),
        ([*[[3], [4, 5]] * 5, [0.5]], {}, "lists", [*[[3], [4, 5]] * 5, NO_CLASS.format("0.5")]),
        ([*[["x"]] * 9, [0.5]], {}, "lists", [*[[0]] * 9, "its label 0.5 is no name of a class"]),
        # A row of 0 and 1 for each image: several classes, or one.
        (ROWS, {}, "multi-hot", SETS),
        (ROWS, {"kind": "multi"}, "multi-hot", SETS),
        ([[str(value) for value in row] for row in ROWS], {}, "multi-hot", SETS),
        ([[True, False, False], [True, True, False]], {}, "multi-hot", [[0], [0, 1]]),
        ([[0, 0, 0], [1, 1, 0]], {}, "multi-hot", [[], [0, 1]]),
        ([[0, 0], [1, 1]], {}, "multi-hot", [[], [0, 1]]),
        (ONES, {}, "one-hot", [1, 2, 0]),
        (ONES, {"kind": "index"}, "one-hot", [1, 2, 0]),
        (["0 1 0", "0,0,1"], {"kind": "one-hot"}, "one-hot", [1, 2]),
        (["0 1 0", "1 0 1"], {"kind": "multi"}, "multi-hot", [[1], [0, 2]]),
        (
            ["0|1|0", "1|0|-1"],
            {"kind": "multi-hot", "uncertain": "yes"},
            "multi-hot",
            [[1], [0, 2]],
        ),
        (ONES, {"kind": "multi"}, "multi-hot", [[1], [2], [0]]),
        (ONES, {"kind": "multi-hot"}, "multi-hot", [[1], [2], [0]]),
        (ONES, {"kind": "float"}, "floats", [list(map(float, row)) for row in ONES]),
        ([*ONES, [1, 1, 0]], {}, "multi-hot", [[1], [2], [0], [0, 1]]),
        ([*ONES, [1, 1, 0]], {"kind": "index"}, "one-hot", [1, 2, 0, "its row of 0 and 1 has 2"]),
        ([*ONES, [0, 0, 0]], {"kind": "one-hot"}, "one-hot", [1, 2, 0, "its row of 0 and 1 has 0"]),
        ([*ONES, [0, 0, 0]], {"kind": "multi-hot"}, "multi-hot", [[1], [2], [0], []]),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], {"kind": "one-hot"}, "one-hot", [0, 2]),
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], {"kind": "multi"}, "multi-hot", [[0], [1, 2]]),
        # Of width 2, they may be two classes each.
        ([[0, 1], [1, 0]], {"kind": "one-hot"}, "one-hot", [1, 0]),
        ([[0, 1], [1, 0]], {"kind": "index"}, "one-hot", [1, 0]),
        ([[0, 1], [1, 1]], {"kind": "multi-hot"}, "multi-hot", [[1], [0, 1]]),
        ([[0, 1], [1, 0]], {"kind": "multi"}, "lists", [[0, 1], [0, 1]]),
        ([[0, 1], [1, 1]], {"kind": "multi"}, "lists", [[0, 1], [1]]),
        # A few that are no such rows are bad; none of them makes all others lists of classes.
        ([*FEW_ROWS, [1, 0, 0, 1]], {}, "multi-hot", [*FEW_SETS, VALUES.format(4, 5)]),
        ([*FEW_ROWS, []], {}, "multi-hot", [*FEW_SETS, VALUES.format(0, 5)]),
        ([*FEW_ROWS, [3, 4]], {}, "multi-hot", [*FEW_SETS, VALUES.format(2, 5)]),
        ([*FEW_ROWS, ["x", "y"]], {}, "multi-hot", [*FEW_SETS, VALUES.format(2, 5)]),
        ([*FEW_ROWS, [1, 0, 2, 0, 1]], {}, "multi-hot", [*FEW_SETS, "its row of 0 and 1 has 2"]),
        (
            [*FEW_ROWS, [1, 0, 0, 0, 0.5]],
            {},
            "multi-hot",
            [*FEW_SETS, "its row of 0 and 1 has 0.5"],
        ),
        ([*FEW_ROWS, 3], {}, "multi-hot", [*FEW_SETS, "its label 3 is no row of 0 and 1"]),
        ([*FEW_ROWS, "x"], {}, "multi-hot", [*FEW_SETS, "its label 'x' is no row of 0 and 1"]),
        ([*3 * ONES, [1, 0]], {}, "one-hot", [*[1, 2, 0] * 3, VALUES.format(2, 3)]),
        ([*3 * ONES, 2], {}, "one-hot", [*[1, 2, 0] * 3, "its label 2 is no row of 0 and 1"]),
    ],
)
def test_lists(labels: list[Any], options: dict[str, Any], way: str, expected: list[Any]) -> None:
    _check(labels, options, way, expected)


HAS = "its row of 0 and 1 has {} (--uncertain)"


@pytest.mark.parametrize(
    ("labels", "options", "way", "expected"),
    [
        # Without a 0, -1 is in its place.
        ([[1, -1, -1], [-1, 1, 1]], {}, "multi-hot", [[0], [1, 2]]),
        ([[1, -1, -1], [-1, 1, -1]], {}, "one-hot", [0, 1]),
        ([[1, -1, -1], [-1, 1, 1]], YES, "multi-hot", [[0], [1, 2]]),
        # Beside 0, and missing values anywhere.
        ([[1, 1, -1], [0, 1, 1]], NO, "multi-hot", [[0, 1], [1, 2]]),
        ([[1, 1, -1], [0, 1, 1]], YES, "multi-hot", [[0, 1, 2], [1, 2]]),
        ([[1, 1, -1], [0, 1, 1]], OUT, "multi-hot", [HAS.format(-1), [1, 2]]),
        ([[1, 1, None], [0, 1, 1]], NO, "multi-hot", [[0, 1], [1, 2]]),
        ([[1, 1, None], [0, 1, 1]], YES, "multi-hot", [[0, 1, 2], [1, 2]]),
        ([[1, 1, None], [0, 1, 1]], OUT, "multi-hot", [HAS.format("nothing"), [1, 2]]),
        ([[1, -1, None], [1, 1, -1]], YES, "multi-hot", [[0, 2], [0, 1]]),
        ([[1, 0, -1], [0, 0, 1]], NO, "one-hot", [0, 2]),
        ([[1, 0, -1], [0, 0, 1]], YES, "multi-hot", [[0, 2], [2]]),
        ([[0, 0, -1], [0, 1, 0]], YES, "multi-hot", [[2], [1]]),
        ([[1, 0, -1], [0, 0, 1]], OUT, "one-hot", [HAS.format(-1), 2]),
        (
            [[1, 0, -1], [0, 0, 1]],
            {"kind": "one-hot", **YES},
            "one-hot",
            ["its row of 0 and 1 has 2 ones", 2],
        ),
        (
            [[1.0, 0.0, math.nan], [0.0, 1.0, 1.0]],
            {"kind": "multi-hot", **YES},
            "multi-hot",
            [[0, 2], [1, 2]],
        ),
        (
            [[1.0, 0.0, None], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]],
            {"kind": "multi-hot", **OUT},
            "multi-hot",
            [HAS.format("nan"), HAS.format("-1.0"), [2]],
        ),
    ],
)
def test_uncertain_places_in_rows(
    labels: list[Any], options: dict[str, Any], way: str, expected: list[Any]
) -> None:
    _check(labels, options, way, expected)


BOTH = "labels can be read in two ways: "
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    # Numbers that may be values, or names.
    (
        ["0.0", "1.0"],
        {},
        r"whole numbers written as decimals \(such as '0.0' of 0\): .*index .*flo",
    ),
    (
        [0.0, 1.0, "NA"],
        {},
        r"whole numbers written as decimals \(such as 0.0 of 0\): .*index .*flo",
    ),
    (
        [*TWELVE, 4.0],
        {},
        r"whole numbers written as decimals \(such as 4.0 of 12\): .*index .*float",
    ),
    ([*TWELVE, 0.5], {}, "12 are whole numbers, 1 are not.*0.5 of 12.* float if .*, index if"),
    ([*TWELVE, "a", "b"], {}, "12 are numbers, 2 are not.*'a' of 12.* name if all .*, or index if"),
    (["007", "8", "110"], {}, "2 are numbers, 1 are not.*'007' of 0.* name if all .*, or index if"),
    (["a;b", "a", "b"], {}, "a;b may be one label or several: .*multi .*name if it is one"),
    (["1 0 0", "0 1 -1"], {}, "0 1 -1 may be one label or several: .*multi .*name if it is one"),
    # Lists beside what is none, of numbers and of names.
    ([3, [4]], {}, r"1 are lists \(such as \[4\] of 1\), 1 are not: give --label-kind multi if"),
    ([[3], [4], [5], ["x"]], {}, "3 have numbers, 1 have names: give --label-kind name if all"),
    (
        [["0.5", "1.5"]],
        {},
        r"texts that are numbers \(such as \['0.5', '1.5'\] of 0\): .*float .*name",
    ),
    ([["1.0"], ["2.0"]], {"kind": "multi"}, "texts that are numbers .*float if .*, name if"),
    # Lists that may be rows, values or classes.
    (
        [[0, 1], [1, 0]],
        {},
        r"lists of 2 numbers that are 0 or 1.* multi if .*one-hot or multi-hot if",
    ),
    (
        [[0, 1], [1, 1]],
        {},
        r"lists of 2 numbers that are 0 or 1.* multi if .*one-hot or multi-hot if",
    ),
    (
        [[0, 1], [1, 0], [0, 0]],
        {},
        "lists of 2 numbers that are 0 or 1.* multi if .*one-hot or mul",
    ),
    ([[1.0, 0.0], [0.0, 1.0]], {}, "rows of 0.0 and 1.0 .* float if .* one-hot or multi-hot if"),
    (
        [[1.0, 0.0, 0.0]],
        {},
        "rows of 0.0 and 1.0 .* float if they are values, one-hot or multi-hot",
    ),
    (
        [*ONES, [0, 0, 0]],
        {},
        "have one 1 each, but for 1 that have none: .* one-hot to .* multi-hot",
    ),
    (
        [[3, 3], [4, 5]],
        {},
        "1 of 2 lists of numbers do not name.* float if .*, multi if they are cl",
    ),
    (
        [[3, -1], [4, 5]],
        {},
        "1 of 2 lists of numbers do not name.* float if .*, multi if they are c",
    ),
    ([*[[1, 2]] * 9, [0.5, 1]], {}, "1 of 10 lists of numbers do not name.* float if .*, multi if"),
    (
        [*ROWS, [1, 0, 0, 1]],
        {},
        "4 of \\d+ lists of numbers do not name .* float .* multi .* one-hot or multi-hot if",
    ),
    (
        [*ROWS, [], []],
        {},
        "3 of \\d+ lists of numbers do not name .* float .* multi .* one-hot or multi-hot if",
    ),
    (
        [*ROWS, [5, 5, 5, 5, 5]],
        {},
        "4 of \\d+ lists of numbers do not name .* float .* multi .* one-hot or multi-hot if",
    ),
    (
        [*6 * ROWS, *[["a"]] * 3],
        {},
        "18 of 21 lists of numbers do not name .* multi .* one-hot or multi-hot if",
    ),
    (
        [[0, 1, 1], [1], [0, 0]],
        {},
        "2 of \\d+ lists of numbers do not name .* float .* multi .* one-hot or multi-hot if",
    ),
]


@pytest.mark.parametrize(("labels", "options", "message"), REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_until_an_option_decides(
    labels: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{BOTH}.*{message}") as caught:
        _read(labels, **options)
    for kind in _advised(str(caught.value)):
        assert _outcome(labels, {"kind": kind}) != _outcome(labels, options)


def _advised(message: str) -> set[str]:
    """Return the kinds of labels that a message advises to give."""
    advice = message.rpartition("--label-kind")[2]
    return set(
        re.findall(r"\b(?:index|name(?! another)|one-hot|multi-hot|multi(?!-)|float)\b", advice)
    )


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (
            [[1, 1, -1], [0, 1, 1]],
            {},
            r"rows of labels have -1 beside 0 and 1 \(such as \[1, 1, -1\]",
        ),
        ([[1, 1, -1], [0, 1, 1]], {"kind": "multi"}, "have -1 beside 0 and 1"),
        ([[1, 1, -1], [0, 1, 1]], {"kind": "multi-hot"}, "have -1 beside 0 and 1"),
        ([[1, 0, -1], [0, 0, 1]], {"kind": "one-hot"}, "have -1 beside 0 and 1"),
        ([[1, 1, None], [1, 1, 1]], {}, "have missing values"),
        ([[1, -1, None], [1, 1, -1]], {}, "have missing values"),
        ([[1, 0, math.nan]], {"kind": "multi-hot"}, "have missing values"),
    ],
)
def test_uncertain_places_are_refused_until_the_user_decides(
    labels: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*: give --uncertain no, yes or leave-out"):
        _read(labels, **options)
    for uncertain in ("no", "yes"):
        _read(labels, **options, uncertain=uncertain)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (
            [2**70],
            {},
            "too large for classes .*: choose another field with --label, or --label-kind",
        ),
        (["1", "9" * 30], {}, "too large for classes"),
        ([2**20], {}, "class number 1,048,576 is too large; the most is 1,048,575: choose another"),
        ([10**18 + 1] * 3, {}, "class number 1,000,000,000,000,000,001 is too large"),
        ([[2**40]], {}, "class number 1,099,511,627,776 is too large"),
        (["a", "b"], {"kind": "one-hot"}, "no label is a list of 0 and 1 .*: leave it out, or"),
        ([[3, 4]], {"kind": "multi-hot"}, "no label is a list of 0 and 1"),
        (
            [[3, 4], [5]],
            {"kind": "index"},
            "no image has a label",
        ),
        (
            [["a"], ["b"]],
            {"kind": "index"},
            "no image has a label",
        ),
        ([[0.5, 1]], {"kind": "index"}, "no image has a label"),
        (
            [3, 4],
            {"uncertain": "no"},
            "--uncertain no: labels are no rows of 0 and 1: leave it out",
        ),
        (
            [-1, -1],
            {},
            "no image has a label: choose another field with --label, or give --label-k",
        ),
        ([[], []], {}, "no image has a label"),
        ([0.5], {"kind": "index"}, "no image has a label"),
    ],
)
def test_labels_that_cannot_be_what_they_were_said_to_be(
    labels: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeederError, match=message):
        _read(labels, **options)


def test_messages_name_the_field_and_are_short() -> None:
    with pytest.raises(ConfigError, match=r"^labels \(column x\) can be read in two ways"):
        _read([0.0, 1.0], field="column x")
    with pytest.raises(ConfigError) as caught:
        _read([3, 4, 5, "x" * 1000])
    assert len(str(caught.value)) < 400
    read = _read([3, *TWELVE, "\n" * 500 + "x" * 500])
    assert len(read.labels[-1]) < 150
    assert read.labels[-1].isprintable()
    for reason in _read([0.5, 10**400, "x" * 500], kind="float").labels[1:]:
        assert len(reason) < 150


_MAIN = [
    [0, 1, 2],
    ["0", "1", 2],
    ["cat", "dog"],
    ["cat", "dog", 3],
    ["007", "011", "110"],
    [0.5, 1.5, 2],
    ["0.0", "1.0"],
    [[3, 5], [4]],
    [[3, 3], [4, 5]],
    [["a"], ["b", "a"]],
    ROWS,
    ONES,
    [[1, -1, 0], [0, 1, 1]],
    [[0, 1], [1, 0]],
    [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]],
    [[0.5, 1.0], [1.5, 2.0]],
]
_ODD = [
    *["NA", "cat", "7", -1, 3.0, 0.25, 2**70, "a;b", math.nan],
    *[[], [1], [1, 0], [0, 0, 0], [1, 0, None], ["a"], ["1.0"], [0.5, 1], [9, 8, 7], [2, 2]],
]
_KINDS = [None, "index", "name", "one-hot", "multi", "multi-hot", "float"]


@st.composite
def _sources(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
    """Return many labels of one kind with some of others, and options."""
    main = draw(st.sampled_from(_MAIN))
    labels = [main[at % len(main)] for at in range(draw(st.integers(1, 24)))]
    labels += draw(st.lists(st.sampled_from(_ODD), max_size=3))
    options = {
        "kind": draw(st.sampled_from(_KINDS)),
        "uncertain": draw(st.sampled_from(["", "no", "yes", "leave-out"])),
    }
    return labels, options


def _outcome(labels: Sequence[Any], options: dict[str, Any], parts: Sequence[Any] = ()) -> Any:
    try:
        return _read(labels, parts=parts, **options)
    except FeederError as error:
        message = re.sub(r" \(such as .*? of \d+\)", "", str(error))  # the first that there is
        return type(error), message


@given(_sources(), st.randoms(use_true_random=False), st.lists(st.integers(0, 30), max_size=3))
def test_a_reading_depends_neither_on_the_order_of_items_nor_on_their_containers(
    source: tuple[list[Any], dict[str, Any]], random: Any, cuts: list[int]
) -> None:
    labels, options = source
    order = [*range(len(labels))]
    random.shuffle(order)
    edges = [0, *sorted(cuts), len(order)]
    parts = [order[first:end] for first, end in itertools.pairwise(edges)]
    assert _outcome(labels, options, parts) == _outcome(labels, options)


@given(_sources())
def test_advice_can_be_followed(source: tuple[list[Any], dict[str, Any]]) -> None:
    """Whoever gives a kind that an error advises does not get that error again."""
    labels, options = source
    outcome = _outcome(labels, options)
    if isinstance(outcome, tuple) and outcome[1].startswith(BOTH):
        advised = _advised(outcome[1])
        assert advised
        assert options["kind"] not in advised
        for kind in advised:
            assert _outcome(labels, {**options, "kind": kind}) != outcome


@given(_sources())
def test_a_row_of_0_and_1_is_never_taken_for_classes_silently(
    source: tuple[list[Any], dict[str, Any]],
) -> None:
    """Whatever a few other labels are: [1, 0, 0, 1, 0] is no "classes 0 and 1" unless asked for."""
    labels, options = source
    outcome = _outcome([*labels, *ROWS * 20], {"uncertain": options["uncertain"]})
    if isinstance(outcome, _Read):
        assert outcome.way == "multi-hot"
        assert outcome.labels[-3:] == SETS
