"""How totals have grown between two snapshots."""

from collections.abc import Callable
from typing import Final

SHORTEST_S: Final = 1e-3
"""Over less time nothing has a rate, so that rates are finite."""


def growth(before: float, now: float) -> float:
    """Return by how much a total has grown; one that fell was replaced, and counts from zero."""
    return now - before if now >= before else now


def rates(seconds: float) -> Callable[[float, float], float]:
    """Return a function of two totals: their growth a second; 0 over no time."""
    is_long_enough = seconds >= SHORTEST_S
    return lambda before, now: growth(before, now) / seconds if is_long_enough else 0.0
