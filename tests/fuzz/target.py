"""A fuzz target: how to make an input from a seed, what must hold, and its time and memory limits.

An input is a function of the target's name and the seed alone. ``check`` returns whether the input
was accepted; False means that it was refused with the documented error. Any other exception is a
finding.
"""

import os
import random
import tempfile
from collections.abc import Callable, Container
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
        return self.make(random.Random(f"{self.name}:{seed}"))


def reads(
    read: Callable[[Any], Any],
    refuses: Errors,
    holds: Callable[[Any, Any], bool | None] | None = None,
    line_max: int | None = None,
) -> Callable[[Any], bool]:
    """A check: ``read`` accepts an input, or raises a documented error of one printable line.

    ``holds`` gets what was read and the input, and asserts the rest; if it returns False, the input
    counts as refused. An error of ``refuses`` raised by ``holds`` is a finding.
    """

    def check(given: Any) -> bool:
        try:
            value = read(given)
        except refuses as error:
            return refusal(error, given, line_max)
        return holds is None or holds(value, given) is not False

    return check


def refusal(
    error: Exception | str,
    given: object = "",
    line_max: int | None = None,
    *,
    kinds: Container[str] | None = None,
) -> bool:
    """Check that an error, or its text, is one printable line of a known kind; return False.

    It may quote its input twice, unless ``line_max`` limits its characters.
    """
    assert kinds is None or getattr(error, "kind", None) in kinds
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
