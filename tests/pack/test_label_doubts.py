"""Labels that could be read in two ways, or not as asked for; and what holds of any labels."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, FeederError
from tests.pack.labels_read import BOTH, LabelsRead, advised_kinds, read_or_refuse, read_them
from tests.pack.test_label_reading import ONES, ROWS, SETS, TWELVE

_FLOAT_OR_INDEX = "whole numbers written as decimals .such as {}.: .*index .*float"
_ROWS_OF_TWO = "lists of 2 numbers that are 0 or 1.* multi if .*one-hot or multi-hot if"
_NAMES_OR_FAULTS = "numbers .{}. and others .{}..*{}.* name if all .*, index if"
_NO_CLASSES = r"{} of \d+ lists of numbers do not name .* float if .*, multi if they are classes"
_NO_ROWS = _NO_CLASSES + ", one-hot or multi-hot if"
REFUSED: list[tuple[list[Any], str]] = [
    # Numbers that may be values, or names.
    (["0.0", "1.0"], _FLOAT_OR_INDEX.format("'0.0' of 0")),
    ([0.0, 1.0, "NA"], _FLOAT_OR_INDEX.format("0.0 of 0")),
    ([*TWELVE, 4.0], _FLOAT_OR_INDEX.format("4.0 of 12")),
    ([*TWELVE, 0.5], "whole numbers .12. and others .1..*0.5 of 12.* float if .*, index if"),
    ([*TWELVE, "a", "b"], _NAMES_OR_FAULTS.format(12, 2, "'a' of 12")),
    (["007", "8", "110"], _NAMES_OR_FAULTS.format(2, 1, "'007' of 0")),
    (["a;b", "a", "b"], "a;b may be one label or several: .*multi .*name if it is one"),
    (["1 0 0", "0 1 -1"], "0 1 -1 may be one label or several: .*multi .*name if it is one"),
    # Lists beside what is none, of numbers and of names.
    ([3, [4]], r"1 are lists \(such as \[4\] of 1\), 1 are not: give --label-kind multi if"),
    ([[3], [4], [5], ["x"]], "3 have numbers, 1 have names: give --label-kind name if all"),
    ([["0.5", "1.5"]], r"texts that are numbers .*\['0.5', '1.5'\] of 0\): .*float .*name"),
    # Lists that may be rows, values or classes.
    ([[0, 1], [1, 0]], _ROWS_OF_TWO),
    ([[0, 1], [1, 1]], _ROWS_OF_TWO),
    ([[0, 1], [1, 0], [0, 0]], _ROWS_OF_TWO),
    ([[1.0, 0.0], [0.0, 1.0]], "rows of 0.0 and 1.0 .* float if .* one-hot or multi-hot if"),
    ([[1.0, 0.0, 0.0]], "rows of 0.0 and 1.0 .* float if they are values, one-hot or multi-hot"),
    ([*ONES, [0, 0, 0]], "have one 1 each, but for 1 that have none: .* one-hot to .* multi-hot"),
    ([[3, 3], [4, 5]], _NO_CLASSES.format(1)),
    ([[3, -1], [4, 5]], _NO_CLASSES.format(1)),
    ([*[[1, 2]] * 9, [0.5, 1]], _NO_CLASSES.format(1)),
    ([*ROWS, [1, 0, 0, 1]], _NO_ROWS.format(4)),
    ([*ROWS, [], []], _NO_ROWS.format(3)),
    ([*ROWS, [5, 5, 5, 5, 5]], _NO_ROWS.format(4)),
    ([*6 * ROWS, *[["a"]] * 3], _NO_ROWS.format(18)),
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


def test_uncertain_places_are_refused_until_the_user_decides() -> None:
    minus, missing = "have -1 beside 0 and 1", "have missing values"
    for labels, kind, message in (
        ([[1, 1, -1], [0, 1, 1]], None, f"rows of labels {minus} .such as .1, 1, -1."),
        ([[1, 1, -1], [0, 1, 1]], "multi", minus),
        ([[1, 1, -1], [0, 1, 1]], "multi-hot", minus),
        ([[1, 0, -1], [0, 0, 1]], "one-hot", minus),
        ([[1, 1, None], [1, 1, 1]], None, missing),
        ([[1, -1, None], [1, 1, -1]], None, missing),
        ([[1, 0, math.nan]], "multi-hot", missing),
    ):
        advice = f"{message}.*: give --uncertain no, yes or leave-out"
        with pytest.raises(ConfigError, match=advice):
            read_them(labels, kind=kind)  # type: ignore[arg-type]
        for uncertain in ("no", "yes"):
            read_them(labels, kind=kind, uncertain=uncertain)  # type: ignore[arg-type]


_LARGE = "too large for classes .*: choose another field with --label, or give --label-kind"
_NONE = "no image has a label: choose another field with --label, or give --label-k"
_NO_ROW = "no label is a list of 0 and 1 .*: leave it out, or"


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([2**70], {}, _LARGE),
        (["1", "9" * 30], {}, _LARGE),
        ([2**20], {}, "class number 1,048,576 is too large; the most is 1,048,575: choose another"),
        ([10**18 + 1] * 3, {}, "class number 1,000,000,000,000,000,001 is too large"),
        ([[2**40]], {}, "class number 1,099,511,627,776 is too large"),
        ([["1.0"], ["2.0"]], {"kind": "multi"}, "texts that are numbers .*float if .*, name if"),
        (["a", "b"], {"kind": "one-hot"}, _NO_ROW),
        ([[3, 4]], {"kind": "multi-hot"}, _NO_ROW),
        ([[3, 4], [5]], {"kind": "index"}, _NONE),
        ([["a"], ["b"]], {"kind": "index"}, _NONE),
        ([[0.5, 1]], {"kind": "index"}, _NONE),
        ([0.5], {"kind": "index"}, _NONE),
        ([-1, -1], {}, _NONE),
        ([[], []], {}, _NONE),
        ([3, 4], {"uncertain": "no"}, "--uncertain no: labels are no rows of 0 and 1: leave it"),
    ],
)
def test_labels_that_cannot_be_what_they_were_said_to_be(
    labels: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeederError, match=message):
        read_them(labels, **options)


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
