"""A fuzz target: how to make an input from a seed, what must hold, and its time and memory limits.

An input is a function of the target's name and the seed alone. ``check`` returns whether the input
was accepted; False means that it was refused with the documented error. Any other exception is a
finding.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def show(value: Any, characters_max: int = 3000) -> str:
    """Return the repr of an input, shortened to ``characters_max``."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return "an input that is nested too deeply, or has too long a number, to be printed"
    return text if len(text) <= characters_max else f"{text[:characters_max]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One entry point for input from outside."""

    name: str
    make: Callable[[random.Random], Any]
    check: Callable[[Any], bool]
    inputs: int
    """Their number in `make fuzz`."""
    native: bool = False
    """Whether it runs our C code, and so uses the sanitized build if there is one."""
    slow_s: float = 1.0
    """Limit of CPU time for one input; a tenth above the worst legitimate case."""
    memory_bytes: int = 64 << 20
    """Limit of peak memory above that before the first input."""
    growth_bytes: int = 24 << 20
    """Limit of growth between the warm-up and the end of a batch."""

    def input_of(self, seed: int) -> Any:
        """Return the input of a seed."""
        return self.make(random.Random(f"{self.name}:{seed}"))
