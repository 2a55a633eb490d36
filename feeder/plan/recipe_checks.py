"""The checks of a recipe's fields: type and range; numbers are normalised.

Each takes the field's name and value and returns the normalised value, or raises ConfigError with
the name, the allowed range and the value.
"""

import difflib
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, SupportsIndex, TypeGuard

from feeder.errors import ConfigError
from feeder.plan.permutation import MAX_SIZE

MAX_FACTOR: Final = 10.0  # of brightness, contrast, saturation
MAX_BYTES: Final = 2**60
MAX_HUE: Final = 0.5  # half a turn of the colour circle; further turns repeat

_BRIEF: Final = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxlong, _BRIEF.maxother = 3, 80, 500, 80


def hint_at_nearest(
    name: str, known: Iterable[str], otherwise: str = "", show: Callable[[str], str] = repr
) -> str:
    """Return the end of a sentence about an unknown name: the known one that resembles it.

    ``otherwise`` is the end where none does, since a far-fetched one would mislead.
    """
    alike = difflib.get_close_matches(name, [*known], n=1)
    return f"; nearest is {show(alike[0])}" if alike else otherwise


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check that ``value`` is one of ``choices``, in type too."""
    # 1 == True, so the type must match too; isinstance accepts LastBatch.DROP for "drop".
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return
    names = " or ".join(str(choice).lower() for choice in choices)
    raise ConfigError(f"recipe: {name} must be {names}, got {show(value)}")


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number low .. high."""
    allowed = f"a whole number {low} .. {high}"
    if type(value) is not int and (  # which is quickly known
        isinstance(value, bool) or not isinstance(value, SupportsIndex)
    ):
        raise ConfigError(f"recipe: {name} must be {allowed}, got {show(value)}")
    number = operator.index(value)
    if not low <= number <= high:
        raise ConfigError(f"recipe: {name} must be {allowed}, got {show(value)}")
    return number


def check_working_set(name: str, value: object) -> int | tuple[int, int]:
    """Return bytes, a whole number, or two: samples and samples a piece."""
    if isinstance(value, tuple | list) and len(value) == 2:
        samples, piece = (check_integer(name, each, 1, MAX_SIZE) for each in value)
        return samples, piece
    return check_integer(name, value, 0, MAX_BYTES)


def check_probability(name: str, value: object) -> float:
    """Return a number 0 .. 1."""
    if not (type(value) is float or _is_number(value)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"recipe: {name} must be a number 0 .. 1, got {show(value)}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def check_interval(name: str, value: object, low: float, high: float) -> tuple[float, float]:
    """Return two numbers (least, greatest) within low .. high."""
    if isinstance(value, tuple | list) and len(value) == 2:
        least, greatest = value
        are_floats = type(least) is type(greatest) is float  # as from a recipe that was checked
        if (are_floats or all(map(_is_number, value))) and low <= least <= greatest <= high:
            return float(least) + 0.0, float(greatest) + 0.0
    raise ConfigError(
        f"recipe: {name} must be two numbers (least, greatest) with "
        f"{low:g} <= least <= greatest <= {high:g}, got {show(value)}"
    )


def check_factors(name: str, value: object) -> tuple[float, float]:
    """Return the factors (least, greatest) of a jitter; a number b means (1 - b, 1 + b)."""
    if isinstance(value, tuple | list):
        return check_interval(name, value, 0.0, MAX_FACTOR)
    if not (_is_number(value) and 0.0 <= value <= MAX_FACTOR - 1.0):
        raise ConfigError(
            f"recipe: {name} must be a number 0 .. {MAX_FACTOR - 1.0:g} or two factors "
            f"(least, greatest), got {show(value)}"
        )
    return max(0.0, 1.0 - value), 1.0 + value


def check_hue(name: str, value: object) -> tuple[float, float]:
    """Return the turns (least, greatest) of the hue; a number h means (-h, h)."""
    if isinstance(value, tuple | list):
        return check_interval(name, value, -MAX_HUE, MAX_HUE)
    if not (_is_number(value) and 0.0 <= value <= MAX_HUE):
        raise ConfigError(
            f"recipe: {name} must be a number 0 .. {MAX_HUE:g} or two turns (least, greatest), "
            f"got {show(value)}"
        )
    return 0.0 - value, 0.0 + value


def check_colour(name: str, value: object) -> tuple[int, int, int]:
    """Return three levels 0 .. 255."""
    if isinstance(value, tuple | list) and len(value) == 3:
        red, green, blue = [check_integer(name, level, 0, 255) for level in value]
        return red, green, blue
    raise ConfigError(
        f"recipe: {name} must be three levels (red, green, blue) 0 .. 255, got {show(value)}"
    )


def show(value: object) -> str:
    """Return a value's repr, shortened where it is long or nested."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # Python converts at most 4300 digits
        return "a number of too many digits"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
