"""What labels are, decided from all of them: tables of what is read and what is left out."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.pack.labels_read import read_them


def _check(labels: Sequence[Any], options: dict[str, Any], way: str, expected: list[Any]) -> None:
    """Check how labels are read; a text in ``expected`` begins the reason why it is bad."""
    read = read_them(labels, **options)
    assert read.way == way
    assert len(read.labels) == len(expected)
    for found, label in zip(read.labels, expected, strict=True):
        assert found.startswith(label) if isinstance(label, str) else found == label, read.labels


TWELVE = [*range(12)]
INDEX, NAME, FLOAT, MULTI, ONE_HOT, MULTI_HOT = (
    {"kind": kind} for kind in ("index", "name", "float", "multi", "one-hot", "multi-hot")
)
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
        ([*TWELVE, "+3"], INDEX, "numbers", [*TWELVE, 3]),
        (["1.0", "0.", 2, "NA"], INDEX, "numbers", [1, 0, 2, NO_CLASS.format("'NA'")]),
        ([1, 2, 0.5], INDEX, "numbers", [1, 2, NO_CLASS.format("0.5")]),
        ([1, 2, "0.5"], INDEX, "numbers", [1, 2, NO_CLASS.format("'0.5'")]),
        ([1, 2, "a", "b"], INDEX, "names", [0, 1, 2, 3]),  # as many names as numbers
        ([1, 2, 3, "a"], INDEX, "numbers", [1, 2, 3, NO_CLASS.format("'a'")]),
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
        (["10", "9", 8], NAME, "names", [0, 2, 1]),
        (["10", "9"], {"by_name": True}, "names", [0, 1]),
        (["-1", "?", "2.0"], {"by_name": True, "kind": "index"}, "names", [0, 2, 1]),
        (["007", "011"], {}, "names", [0, 1]),
        (["007", "110", "111"], {}, "names", [0, 1, 2]),
        (["00", "01", "10", "11"], INDEX, "names", [0, 1, 2, 3]),
        # Values.
        ([0.5, 2, "1.5"], {}, "floats", [[0.5], [2.0], [1.5]]),
        ([0.5, math.nan], {}, "floats", [[0.5], "its label nan is not a finite 32-bit number"]),
        ([0.5, "NA"], {}, "floats", [[0.5], "its label 'NA' is no number"]),
        ([0.5, 1e39], {}, "floats", [[0.5], "its label 1e+39 is not a finite 32-bit number"]),
        ([0.5, "1" * 50], {}, "floats", [[0.5], "its label 1.11111e+49 is not a finite 32-bit"]),
        ([*[0.5] * 9, "cat"], {}, "floats", [*[[0.5]] * 9, "its label 'cat' is no number"]),
        ([3, "1", "1e2"], FLOAT, "floats", [[3.0], [1.0], [100.0]]),
        ([-1, 0, 1], FLOAT, "floats", [[-1.0], [0.0], [1.0]]),
        ([[0.5, 1], [2, 3]], {}, "floats", [[0.5, 1.0], [2.0, 3.0]]),
        ([[1.0, 2.0], [3.0, 4.0]], {}, "floats", [[1.0, 2.0], [3.0, 4.0]]),
        ([[1, 0], [0, 1]], FLOAT, "floats", [[1.0, 0.0], [0.0, 1.0]]),
        ([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], {}, "floats", [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]),
        ([["1", "0.5"], [1, 2]], FLOAT, "floats", [[1.0, 0.5], [1.0, 2.0]]),
        ([[0.5, 1.0], [0.5, None]], {}, "floats", [[0.5, 1.0], "its label nan is not a finite"]),
        (
            [[0.5, 1.0], [0.5, 1.0], [0.5], 0.5],
            FLOAT,
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
        ([[5, 5, 3], [4]], MULTI, "lists", [[3, 5], [4]]),  # an object each
        (
            [*[[3, 4]] * 9, [5, 5]],
            {},
            "lists",
            [*[[3, 4]] * 9, "its label [5, 5] has a class twice"],
        ),
        ([[3], [0], []], {}, "lists", [[3], [0], []]),
        ([["a"], ["b", "a"], []], {}, "lists", [[0], [0, 1], []]),
        ([["a"], ["3", "a"], [3]], {}, "lists", [[1], [0, 1], [0]]),
        ([["10"], ["9", "8"]], NAME, "lists", [[0], [1, 2]]),
        ([[10], [9, 8]], NAME, "lists", [[0], [1, 2]]),
        ([[0, 1], [1, 0]], NAME, "lists", [[0, 1], [0, 1]]),
        ([[1, 0, 0]], NAME, "lists", [[0, 1]]),
        ([3, [4]], MULTI, "lists", [[3], [4]]),
        (["a", ["b", "a"]], MULTI, "lists", [[0], [0, 1]]),
        ([3, 4.0, "5.0"], MULTI, "lists", [[3], [4], [5]]),
        (["a;b", "b", "a"], MULTI, "lists", [[0, 1], [1], [0]]),
        (["a;b", "b"], {"kind": "multi", "by_name": True}, "lists", [[0], [1]]),
        (["a;b", "b"], NAME, "names", [0, 1]),
        # Of a column for each class, the names of those that have a 1.
        (
            [["b"], ["a", "b"], []],
            {"kind": "multi-hot", "by_name": True, **NO},
            "lists",
            [[1], [0, 1], []],
        ),
        (["b", "a"], {"kind": "one-hot", "by_name": True, **YES}, "names", [1, 0]),
        ([[3, 3], [4, 5]], MULTI, "lists", [[3], [4, 5]]),
        ([[3, 0.5], [4, 5]], MULTI, "lists", [NO_CLASS.format("0.5"), [4, 5]]),
        ([[3, None], [4]], MULTI, "lists", [NO_CLASS.format("nothing"), [4]]),
        ([*[[3, 4]] * 9, 3], {}, "lists", [*[[3, 4]] * 9, [3]]),
        ([*[[3, 4]] * 9, ["x"]], {}, "lists", [*[[3, 4]] * 9, NO_CLASS.format("'x'")]),
        ([*[[3], [4, 5]] * 5, [0.5]], {}, "lists", [*[[3], [4, 5]] * 5, NO_CLASS.format("0.5")]),
        ([*[["x"]] * 9, [0.5]], {}, "lists", [*[[0]] * 9, "its label 0.5 is no name of a class"]),
        # A row of 0 and 1 for each image: several classes, or one.
        (ROWS, {}, "multi-hot", SETS),
        (ROWS, MULTI, "multi-hot", SETS),
        ([[str(value) for value in row] for row in ROWS], {}, "multi-hot", SETS),
        ([[True, False, False], [True, True, False]], {}, "multi-hot", [[0], [0, 1]]),
        ([[0, 0, 0], [1, 1, 0]], {}, "multi-hot", [[], [0, 1]]),
        ([[0, 0], [1, 1]], {}, "multi-hot", [[], [0, 1]]),
        (ONES, {}, "one-hot", [1, 2, 0]),
        (ONES, INDEX, "one-hot", [1, 2, 0]),
        (["0 1 0", "0,0,1"], ONE_HOT, "one-hot", [1, 2]),
        (["0 1 0", "1 0 1"], MULTI, "multi-hot", [[1], [0, 2]]),
        (
            ["0|1|0", "1|0|-1"],
            {"kind": "multi-hot", "uncertain": "yes"},
            "multi-hot",
            [[1], [0, 2]],
        ),
        (ONES, MULTI, "multi-hot", [[1], [2], [0]]),
        (ONES, MULTI_HOT, "multi-hot", [[1], [2], [0]]),
        (ONES, FLOAT, "floats", [list(map(float, row)) for row in ONES]),
        ([*ONES, [1, 1, 0]], {}, "multi-hot", [[1], [2], [0], [0, 1]]),
        ([*ONES, [1, 1, 0]], INDEX, "one-hot", [1, 2, 0, "its row of 0 and 1 has 2"]),
        ([*ONES, [0, 0, 0]], ONE_HOT, "one-hot", [1, 2, 0, "its row of 0 and 1 has 0"]),
        ([*ONES, [0, 0, 0]], MULTI_HOT, "multi-hot", [[1], [2], [0], []]),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], ONE_HOT, "one-hot", [0, 2]),
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], MULTI, "multi-hot", [[0], [1, 2]]),
        # Of width 2, they may be two classes each.
        ([[0, 1], [1, 0]], ONE_HOT, "one-hot", [1, 0]),
        ([[0, 1], [1, 0]], INDEX, "one-hot", [1, 0]),
        ([[0, 1], [1, 1]], MULTI_HOT, "multi-hot", [[1], [0, 1]]),
        ([[0, 1], [1, 0]], MULTI, "lists", [[0, 1], [0, 1]]),
        ([[0, 1], [1, 1]], MULTI, "lists", [[0, 1], [1]]),
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
