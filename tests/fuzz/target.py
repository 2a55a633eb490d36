"""What a fuzz target is: how to make an input from a seed, what must hold, and within which bounds.

An input is a function of the target's name and the seed alone. ``check`` returns whether the input
was accepted; False is for an input that was refused by exactly the error that is documented.
Whatever else is raised is a finding.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def show(value: Any, characters_max: int = 3000) -> str:
    """Return an input as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return "an input that is nested too deeply, or holds too long a number, to be written"
    return text if len(text) <= characters_max else f"{text[:characters_max]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One way into Feeder."""

    name: str
    make: Callable[[random.Random], Any]
    check: Callable[[Any], bool]
    inputs: int
    """How many the longer run has."""
    native: bool = False
    """Whether to run C code of ours, and so with the sanitizers where there are some."""
    slow_s: float = 1.0
    """CPU time that one input may take; a tenth more than the worst that is in order."""
    memory_bytes: int = 64 << 20
    """What the process may grow by, at its highest, over what it has before the first input."""
    growth_bytes: int = 24 << 20
    """What the process may have kept at the end of a batch over what it has early in it."""

    def input_of(self, seed: int) -> Any:
        """Return the input of a seed."""
        return self.make(random.Random(f"{self.name}:{seed}"))
