"""A fuzz target: how to make an input from a seed, what must hold, and its time and memory limits.

An input is a function of the target's name and the seed alone. It is accepted, or refused with a
documented error; any other exception is a finding.
"""

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_LINE_CHARACTERS_MAX = 600

Errors = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """One entry point for input from outside."""

    name: str
    make: Callable[[random.Random], Any]
    read: Callable[[Any], Any]
    """Accepts an input, or raises a documented error of one printable line."""
    inputs: int
    """Their number in `make fuzz`."""
    refuses: Errors = ()
    holds: Callable[[Any, Any], bool | None] | None = None
    """Gets what was read and the input, and asserts the rest; False if the input counts as refused.
    An error of ``refuses`` that it raises is a finding."""
    line_max: int | None = None
    """Limit of an error's characters; by default it may quote its input."""
    kinds: Sequence[str] = ()
    """The kinds that an error may have, if it has one."""
    native: bool = False
    """Whether it runs our C code, and so uses the sanitized build if there is one."""
    slow_s: float = 1.0
    """Limit of CPU time for one input; a tenth above the worst legitimate case."""
    memory_bytes: int = 64 << 20
    """Limit of peak memory above that before the first input."""
    growth_bytes: int = 24 << 20
    """Limit of growth between the warm-up and the end of a batch."""

    def input_of(self, seed: int) -> Any:
        return self.make(random.Random(f"{self.name}:{seed}"))

    def check(self, given: Any) -> bool:
        """Return whether an input is accepted; any exception is a finding."""
        try:
            value = self.read(given)
        except self.refuses as error:
            return refusal(error, given, self.line_max, self.kinds)
        return (self.holds(value, given) if self.holds else value) is not False


def refusal(
    error: Exception | str,
    given: object = "",
    line_max: int | None = None,
    kinds: Sequence[str] = (),
) -> bool:
    """Check that an error, or its text, is one printable line of a known kind; return False.

    It may quote its input twice, unless ``line_max`` limits its characters.
    """
    assert not kinds or getattr(error, "kind", "") in kinds
    text = getattr(error, "reason", str(error))
    assert text.isprintable(), repr(text[:500])
    if len(text) > (line_max or _LINE_CHARACTERS_MAX):
        assert line_max is None, len(text)
        assert len(text) <= _LINE_CHARACTERS_MAX + 2 * _characters(given), len(text)
    return False


def _characters(value: object) -> int:
    """The total length of a value's scalars as text; maps and lists may be nested deeply."""
    characters, remaining = 0, [value]
    while remaining:
        part = remaining.pop()
        if isinstance(part, dict):
            remaining += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            remaining += part
        else:
            characters += len(repr(part))
    return characters


@cache
def folder() -> Path:
    """This process's folder, inside the runner's temporary one."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("FEEDER_FUZZ_FOLDER")))


def written(data: bytes, name: str = "input") -> Path:
    """Write a file in this process's folder."""
    path = folder() / name
    path.write_bytes(data)
    return path


def show(value: Any, characters_max: int = 3000) -> str:
    """The repr of an input, shortened."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return "an input that is nested too deeply, or has too long a number, to be printed"
    return text if len(text) <= characters_max else f"{text[:characters_max]}…"
