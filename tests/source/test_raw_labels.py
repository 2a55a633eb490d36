"""Labels as sources have them, brought to one form."""

from typing import Any

import numpy as np
import pytest

from feeder.plan.labels import LabelKind
from feeder.source.raw_labels import BadLabel, normalise_label


@pytest.mark.parametrize(
    ("raw", "kind", "form", "value"),
    [
        (3, None, "number", 3),
        (np.int64(3), None, "number", 3),
        (np.bool_(True), None, "number", 1),
        ([np.bool_(True), np.bool_(False)], None, "numbers", [1, 0]),
        (np.float32(0.5), None, "floats", [0.5]),
        (np.str_("cat"), None, "text", "cat"),
        (3.0, "index", "number", 3),
        ("cat", None, "text", "cat"),
        (0.5, None, "floats", [0.5]),
        (3, "float", "floats", [3.0]),
        ([1, 2], None, "numbers", [1, 2]),
        ([1, 2.5], None, "floats", [1.0, 2.5]),
        (np.array([1, 0], np.uint8), None, "numbers", [1, 0]),
        (np.array([1, 0], np.float32), None, "floats", [1.0, 0.0]),
        ([1, 0], "float", "floats", [1.0, 0.0]),
        (("b", "a"), None, "texts", ["b", "a"]),
        ({"b", "a"}, None, "texts", ["a", "b"]),
        (7, "multi", "numbers", [7]),
        ("cat", "multi", "texts", ["cat"]),
        ([], "multi", "numbers", []),
        ("anything", "none", "none", None),
        (None, "none", "none", None),
    ],
)
def test_labels_have_the_form_that_they_suggest_or_that_was_asked_for(
    raw: Any, kind: LabelKind | None, form: str, value: Any
) -> None:
    assert normalise_label(raw, kind) == (form, value)


@pytest.mark.parametrize(
    ("raw", "kind", "reason"),
    [
        (None, None, "it has no label"),
        (-1, None, "-1 is not within 0"),
        (2**31, None, "is not within 0"),
        ("", None, "is empty"),
        ([1, 2], "index", "2 values, not one"),
        (0.5, "index", "is no class"),
        ([0.5], "multi", "0.5 is no class number"),
        (["a", 1], "multi", "'a' is no class number"),
        ({"a", 1}, None, "its label mixes numbers and texts"),
        ("x", "float", "'x' is no number"),
        ([], "float", "has no values"),
        (float("nan"), None, "is not a finite 32-bit number"),
        ([1e39], "float", "is not a finite 32-bit number"),
        (b"cat", None, "of the type bytes"),
    ],
)
def test_labels_without_a_meaning_are_refused_with_the_reason(
    raw: Any, kind: LabelKind | None, reason: str
) -> None:
    with pytest.raises(BadLabel, match=reason):
        normalise_label(raw, kind)
