"""What labels are, decided from all of them: what is read, left out, or asked about."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from tests.pack.labels_read import BOTH, LabelsRead, advised_kinds, read_or_refuse, read_them

TWELVE = [*range(12)]
INDEX, NAME, FLOAT, MULTI, ONE_HOT, MULTI_HOT = (
    {"kind": kind} for kind in ("index", "name", "float", "multi", "one-hot", "multi-hot")
)
NO_CLASS = "its label {} is no class number"
VALUES = "its label has {} values, the others {}"
BELOW = "its label is {}, below the first class {} (--label-base; "


NO, YES, OUT = ({"uncertain": each} for each in ("no", "yes", "leave-out"))
ROWS = [[1, 0, 0, 1, 0], [0, 0, 1, 1, 0], [0, 1, 1, 1, 0]]
SETS = [[0, 3], [2, 3], [1, 2, 3]]
ONES = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
FEW_ROWS = 3 * ROWS  # and one more is one in ten
FEW_SETS = 3 * SETS
HAS = "its row of 0 and 1 has {} (--uncertain)"


@pytest.mark.parametrize(
    ("labels", "options", "way", "expected"),
    [
        # Numbers, by number.
        (["3", 0, " 1"], {}, "numbers", [3, 0, 1]),
        ([*TWELVE, "", None], {}, "numbers", [*TWELVE, "it has no label", "it has no label"]),
        ([*TWELVE, [3, 4]], {}, "numbers", [*TWELVE, "its label is a list of 2, unlike the oth"]),
        ([*TWELVE, "+3"], INDEX, "numbers", [*TWELVE, 3]),
        (["1.0", "0.", 2, "NA"], INDEX, "numbers", [1, 0, 2, NO_CLASS.format("'NA'")]),
        ([1, 2, 0.5], INDEX, "numbers", [1, 2, NO_CLASS.format("0.5")]),
        ([1, 2, "a", "b"], INDEX, "names", [0, 1, 2, 3]),  # as many names as numbers
        # The first class has the number of the base.
        ([1, 0], {"base": 1}, "numbers", [0, BELOW.format(0, 1)]),
        ([0, -1], {}, "numbers", [0, BELOW.format(-1, 0)]),
        ([[1], [2, 3, 0]], {"base": 1, "kind": "multi"}, "lists", [[0], BELOW.format(0, 1)]),
        # Names.
        (["cat", "ant", "7", "07"], {}, "names", [3, 2, 1, 0]),
        (["cat", "dog", 0.5], {}, "names", [0, 1, "its label 0.5 is no name of a class"]),
        (["cat", "NA", "NA"], {}, "names", [1, 0, 0]),
        (["10", "9", 8], NAME, "names", [0, 2, 1]),
        (["-1", "?", "2.0"], {"by_name": True, "kind": "index"}, "names", [0, 2, 1]),
        (["007", "011"], {}, "names", [0, 1]),
        # Values.
        ([0.5, 2, "1.5"], {}, "floats", [[0.5], [2.0], [1.5]]),
        ([0.5, math.nan], {}, "floats", [[0.5], "its label nan is not a finite 32-bit number"]),
        ([0.5, "NA"], {}, "floats", [[0.5], "its label 'NA' is no number"]),
        ([3, "1", "1e2"], FLOAT, "floats", [[3.0], [1.0], [100.0]]),
        ([[0.5, 1], [2, 3]], {}, "floats", [[0.5, 1.0], [2.0, 3.0]]),
        ([[0.5, 1.0], [0.5, None]], {}, "floats", [[0.5, 1.0], "its label nan is not a finite"]),
        ([[0.5, 1.0], [0.5, 1.0], 0.5], FLOAT, "floats", [*[[0.5, 1.0]] * 2, VALUES.format(1, 2)]),
        # Nothing.
        ([], {}, "none", []),
        ([None, 3, "x", [1]], {"kind": "none"}, "none", [0] * 4),
        # Classes.
        ([[3, 5], [4]], {}, "lists", [[3, 5], [4]]),
        ([[5, 5, 3], [4]], MULTI, "lists", [[3, 5], [4]]),  # an object each
        ([[10], [9, 8]], NAME, "lists", [[0], [1, 2]]),
        ([3, [4]], MULTI, "lists", [[3], [4]]),
        (["a;b", "b", "a"], MULTI, "lists", [[0, 1], [1], [0]]),
        (["a;b", "b"], NAME, "names", [0, 1]),
        # Of a column for each class, the names of those that have a 1.
        ([["b"], ["a", "b"], []], {**MULTI_HOT, "by_name": True, **NO}, "lists", [[1], [0, 1], []]),
        (["b", "a"], {**ONE_HOT, "by_name": True, **YES}, "names", [1, 0]),
        ([[3, 0.5], [4, 5]], MULTI, "lists", [NO_CLASS.format("0.5"), [4, 5]]),
        ([*[[3, 4]] * 9, 3], {}, "lists", [*[[3, 4]] * 9, [3]]),
        ([*[[3], [4, 5]] * 5, [0.5]], {}, "lists", [*[[3], [4, 5]] * 5, NO_CLASS.format("0.5")]),
        # A row of 0 and 1 for each image: several classes, or one.
        (ROWS, {}, "multi-hot", SETS),
        (ROWS, MULTI, "multi-hot", SETS),
        ([[0, 0], [1, 1]], {}, "multi-hot", [[], [0, 1]]),
        (ONES, {}, "one-hot", [1, 2, 0]),
        (ONES, INDEX, "one-hot", [1, 2, 0]),
        (["0 1 0", "0,0,1"], ONE_HOT, "one-hot", [1, 2]),
        (["0 1 0", "1 0 1"], MULTI, "multi-hot", [[1], [0, 2]]),
        (ONES, FLOAT, "floats", [list(map(float, row)) for row in ONES]),
        ([*ONES, [1, 1, 0]], {}, "multi-hot", [[1], [2], [0], [0, 1]]),
        ([*ONES, [1, 1, 0]], INDEX, "one-hot", [1, 2, 0, "its row of 0 and 1 has 2"]),
        ([*ONES, [0, 0, 0]], ONE_HOT, "one-hot", [1, 2, 0, "its row of 0 and 1 has 0"]),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], ONE_HOT, "one-hot", [0, 2]),
        # Of width 2, they may be two classes each.
        ([[0, 1], [1, 0]], ONE_HOT, "one-hot", [1, 0]),
        ([[0, 1], [1, 0]], MULTI, "lists", [[0, 1], [0, 1]]),
        # A few that are no such rows are bad; none of them makes all others lists of classes.
        ([*FEW_ROWS, [1, 0, 0, 1]], {}, "multi-hot", [*FEW_SETS, VALUES.format(4, 5)]),
        ([*FEW_ROWS, [1, 0, 2, 0, 1]], {}, "multi-hot", [*FEW_SETS, "its row of 0 and 1 has 2"]),
        ([*FEW_ROWS, 3], {}, "multi-hot", [*FEW_SETS, "its label 3 is no row of 0 and 1"]),
        # Without a 0, -1 is in its place.
        ([[1, -1, -1], [-1, 1, 1]], {}, "multi-hot", [[0], [1, 2]]),
        # Beside 0, and missing values anywhere.
        ([[1, 1, -1], [0, 1, 1]], NO, "multi-hot", [[0, 1], [1, 2]]),
        ([[1, 1, -1], [0, 1, 1]], YES, "multi-hot", [[0, 1, 2], [1, 2]]),
        ([[1, 1, -1], [0, 1, 1]], OUT, "multi-hot", [HAS.format(-1), [1, 2]]),
        ([[1, -1, None], [1, 1, -1]], YES, "multi-hot", [[0, 2], [0, 1]]),
        ([[1, 0, -1], [0, 0, 1]], NO, "one-hot", [0, 2]),
        ([[1, 0, -1], [0, 0, 1]], YES, "multi-hot", [[0, 2], [2]]),
        (
            [[1, 0, -1], [0, 0, 1]],
            {**ONE_HOT, **YES},
            "one-hot",
            ["its row of 0 and 1 has 2 on", 2],
        ),
        (
            [[1.0, 0.0, None], [0.0, 0.0, 1.0]],
            {**MULTI_HOT, **OUT},
            "multi-hot",
            [HAS.format("nan"), [2]],
        ),
    ],
)
def test_labels_are_read_one_way_and_those_unlike_the_others_are_bad(
    labels: list[Any], options: dict[str, Any], way: str, expected: list[Any]
) -> None:
    """A text in ``expected`` begins the reason why a label is bad."""
    read = read_them(labels, **options)
    assert read.way == way
    for found, label in zip(read.labels, expected, strict=True):
        assert found.startswith(label) if isinstance(label, str) else found == label, read.labels


def test_missing_values_among_numbers_are_left_out() -> None:
    for missing in ("NA", "NaN", "?", "None", "null", "-", "n/a", math.nan):
        for numbers in (TWELVE, [*map(str, TWELVE)]):
            read = read_them([*numbers, missing])
            assert read.labels == [*TWELVE, NO_CLASS.format(repr(missing))]


# What could be read in two ways


_FLOAT_OR_INDEX = "whole numbers written as decimals .such as {}.: .*index .*float"
_ROWS_OF_TWO = "lists of 2 numbers that are 0 or 1.* multi if .*one-hot or multi-hot if"
_NAMES_OR_FAULTS = "numbers .{}. and others .{}..*{}.* name if all .*, index if"
_NO_CLASSES = r"{} of \d+ lists of numbers do not name .* float if .*, multi if they are classes"
_NO_ROWS = _NO_CLASSES + ", one-hot or multi-hot if"
REFUSED: list[tuple[list[Any], str]] = [
    # Numbers that may be values, or names.
    (["0.0", "1.0"], _FLOAT_OR_INDEX.format("'0.0' of 0")),
    ([*TWELVE, 0.5], "whole numbers .12. and others .1..*0.5 of 12.* float if .*, index if"),
    ([*TWELVE, "a", "b"], _NAMES_OR_FAULTS.format(12, 2, "'a' of 12")),
    (["a;b", "a", "b"], "a;b may be one label or several: .*multi .*name if it is one"),
    # Lists beside what is none, of numbers and of names.
    ([3, [4]], r"1 are no lists, 1 are \(such as \[4\] of 1\): give --label-kind multi if"),
    ([[3], [4], [5], ["x"]], "3 have numbers, 1 have names: give --label-kind name if all"),
    ([["0.5", "1.5"]], r"texts that are numbers .*\['0.5', '1.5'\] of 0\): .*float .*name"),
    # Lists that may be rows, values or classes.
    ([[0, 1], [1, 0]], _ROWS_OF_TWO),
    ([[1.0, 0.0], [0.0, 1.0]], "rows of 0.0 and 1.0 .* float if .* one-hot or multi-hot if"),
    ([*ONES, [0, 0, 0]], "have one 1 each, but for 1 that have none: .* one-hot to .* multi-hot"),
    ([[3, 3], [4, 5]], _NO_CLASSES.format(1)),
    ([*ROWS, [1, 0, 0, 1]], _NO_ROWS.format(4)),
    ([[0, 1, 1], [1], [0, 0]], _NO_ROWS.format(2)),
]


@pytest.mark.parametrize(("labels", "message"), REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_until_an_option_decides(
    labels: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{BOTH}.*{message}") as caught:
        read_them(labels)
    for kind in advised_kinds(str(caught.value)):
        assert read_or_refuse(labels, {"kind": kind}) != read_or_refuse(labels, {})


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (
            [[1, 1, -1], [0, 1, 1]],
            None,
            "rows of labels have -1 beside 0 and 1 .such as .1, 1, -1.",
        ),
        ([[1, 0, -1], [0, 0, 1]], "one-hot", "have -1 beside 0 and 1"),
        ([[1, 1, None], [1, 1, 1]], "multi", "have missing values"),
    ],
)
def test_uncertain_places_are_refused_until_the_user_decides(
    labels: list[Any], kind: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*: give --uncertain no, yes or leave-out"):
        read_them(labels, kind=kind)
    for uncertain in ("no", "yes"):
        read_them(labels, kind=kind, uncertain=uncertain)


def test_messages_name_the_field_and_are_short() -> None:
    with pytest.raises(ConfigError, match=r"^labels \(column x\) can be read in two ways"):
        read_them([0.0, 1.0], field="column x")
    with pytest.raises(ConfigError) as caught:
        read_them([3, 4, 5, "x" * 1000])
    assert len(str(caught.value)) < 400
    read = read_them([3, *TWELVE, "\n" * 500 + "x" * 500])
    assert len(read.labels[-1]) < 150
    assert read.labels[-1].isprintable()
    for reason in read_them([0.5, 10**400, "x" * 500], kind="float").labels[1:]:
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


@given(_sources(), st.randoms(use_true_random=False), st.lists(st.integers(0, 30), max_size=3))
def test_a_reading_depends_neither_on_the_order_of_items_nor_on_their_containers(
    source: tuple[list[Any], dict[str, Any]], random: Any, cuts: list[int]
) -> None:
    labels, options = source
    order = [*range(len(labels))]
    random.shuffle(order)
    edges = [0, *sorted(cuts), len(order)]
    parts = [order[first:end] for first, end in itertools.pairwise(edges)]
    assert read_or_refuse(labels, options, parts) == read_or_refuse(labels, options)


@given(_sources())
def test_advice_can_be_followed(source: tuple[list[Any], dict[str, Any]]) -> None:
    """Whoever gives a kind that an error advises does not get that error again."""
    labels, options = source
    outcome = read_or_refuse(labels, options)
    if not isinstance(outcome, LabelsRead) and outcome[1].startswith(BOTH):
        advised = advised_kinds(outcome[1])
        assert advised
        assert options["kind"] not in advised
        for kind in advised:
            assert read_or_refuse(labels, {**options, "kind": kind}) != outcome


@given(_sources())
def test_a_row_of_0_and_1_is_never_taken_for_classes_silently(
    source: tuple[list[Any], dict[str, Any]],
) -> None:
    """Whatever a few other labels are: [1, 0, 0, 1, 0] is no "classes 0 and 1" unless asked for."""
    labels, options = source
    outcome = read_or_refuse([*labels, *ROWS * 20], {"uncertain": options["uncertain"]})
    if isinstance(outcome, LabelsRead):
        assert outcome.way == "multi-hot"
        assert outcome.labels[-3:] == SETS
