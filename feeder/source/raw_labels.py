"""Labels as sources have them, numbers, names, lists or nothing, brought to one form.

A dataset's labels are all of one kind: a class, several classes, floats or none. It is the one that
the user asked for or, where none was, the one that the first label suggests.
"""

import numbers
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from feeder.plan.labels import LabelKind

RawLabel = int | str | float | None | Sequence[int] | Sequence[str] | Sequence[float]
"""A class's number or name, a value, several of either, or nothing; numpy's types count too."""

LabelForm = Literal["number", "text", "numbers", "texts", "floats", "none"]
"""The form of a container's labels: a class as number or text, several as either, floats, none."""

KIND_OF_FORM: Final[dict[LabelForm, LabelKind]] = {
    "number": "index",
    "text": "index",
    "numbers": "multi",
    "texts": "multi",
    "floats": "float",
    "none": "none",
}
FORMS_IN_TEXT: Final[tuple[LabelForm, ...]] = ("numbers", "texts", "floats")
"""Forms of several values, which lists keep with their names."""

NormalLabel = int | str | list[int] | list[str] | list[float] | None

_SEVERAL: Final[tuple[LabelForm, ...]] = ("numbers", "texts")
_NUMBER_MAX: Final = 2**31
_SHOWN_CHARACTERS: Final = 80
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)


class BadLabel(ValueError):  # noqa: N818 -- names what happened
    """Raised for a label that has no meaning as its dataset's kind; the message is the reason."""


@dataclass(slots=True)
class CommonForm:
    """The form that all labels of a list have: that of its first one."""

    form: LabelForm | None = None
    """None until a label has a value."""
    values: int = 0
    """Floats in each label; 0 where labels are something else."""
    has_empty: bool = False
    """Whether a label is an empty list: no class, whether classes are numbers or texts."""

    def check(self, form: LabelForm, value: NormalLabel) -> None:
        """Raise BadLabel for a label that is not like the first one, which this may be."""
        values = len(value) if form == "floats" and isinstance(value, list) else 0
        is_empty = form == "numbers" and value == []
        known = self.form or ("numbers" if self.has_empty else None)
        fits = _SEVERAL if is_empty or self.form is None else (self.form,)
        if known is not None and (known if is_empty else form) not in fits:
            raise BadLabel(f"its label is of another form than the first ({form}, {known})")
        if is_empty:
            self.has_empty = True
            return
        if self.form is None:
            self.form, self.values = form, values
        if values != self.values:
            raise BadLabel(f"its label has {values} values, the first has {self.values}")


def normalise_label(raw: object, kind: LabelKind | None) -> tuple[LabelForm, NormalLabel]:
    """Return the form of a label and its value in plain Python types.

    ``kind`` is the kind to read it as; None for the one that it suggests: an integer or a text is a
    class, a list of these several classes, a float or a list with one is a vector of floats. Raises
    BadLabel.
    """
    if kind == "none":
        return "none", None
    raw = raw.tolist() if isinstance(raw, np.ndarray) else _plain(raw)
    if isinstance(raw, (list, tuple, set, frozenset)):
        values = _sorted(raw) if isinstance(raw, (set, frozenset)) else list(raw)
        return _several([_plain(value) for value in values], kind)
    if raw is None:
        raise BadLabel("it has no label")
    if kind in ("multi", "float"):
        return _several([raw], kind)
    if isinstance(raw, str):
        return "text", _text(raw)
    if isinstance(raw, numbers.Integral):
        return "number", _number(raw)
    if isinstance(raw, numbers.Real):
        if kind is None:
            return "floats", [_float(raw)]
        if float(raw).is_integer():
            return "number", _number(int(float(raw)))
        raise BadLabel(f"its label is {float(raw):g}, which is no class (--label-kind float?)")
    raise BadLabel(f"its label is of the type {type(raw).__name__}")


def _plain(value: object) -> object:
    """Return a scalar of numpy's as Python's type: np.bool_ is none of the numbers."""
    return value.item() if isinstance(value, np.generic) else value


def _sorted(values: Set[Any]) -> list[object]:
    try:
        return sorted(values)
    except TypeError:
        raise BadLabel("its label mixes numbers and texts") from None


def _several(values: list[object], kind: LabelKind | None) -> tuple[LabelForm, NormalLabel]:
    if kind == "index":
        raise BadLabel(f"its label has {len(values)} values, not one (--label-kind multi or float)")
    if kind is None:
        is_float = any(
            isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
            for value in values
        )
        kind = "float" if is_float else "multi"
    if kind == "float":
        if not values:
            raise BadLabel("its label has no values")
        return "floats", [_float(value) for value in values]
    if all(isinstance(value, str) for value in values) and values:
        return "texts", [_text(str(value)) for value in values]
    return "numbers", [_number(value) for value in values]


def _text(value: str) -> str:
    if not value:
        raise BadLabel("its label is empty")
    return value


def _number(value: object) -> int:
    if isinstance(value, numbers.Integral):
        if not 0 <= int(value) < _NUMBER_MAX:
            raise BadLabel(f"its label {_show(value)} is not within 0 .. {_NUMBER_MAX - 1}")
        return int(value)
    raise BadLabel(f"its label {_show(value)} is no class number")


def _float(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadLabel(f"its label {_show(value)} is no number") from None
    except OverflowError:  # an integer of hundreds of digits
        raise BadLabel(f"its label {_show(value)} is not a finite 32-bit number") from None
    if not abs(number) <= _FLOAT_MAX:  # nor is NaN
        raise BadLabel(f"its label {number:g} is not a finite 32-bit number")
    return number


def _show(value: object) -> str:
    """Return a value for a reason, shortened: it may be a text or a number of any length."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of over 4,300 digits
        return "of thousands of digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
