"""One finding, and the order of findings."""

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad a finding is; the worst is the greatest."""

    NOTE = 0
    """Nothing to mend for Feeder's sake, but good to know."""
    WARNING = 1
    """Feeder works, slower or for fewer clients than the machine could."""
    ERROR = 2
    """``feeder serve`` would not start, or batches would differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, what follows from it, and the exact lines that mend it."""

    name: str
    """A stable name for programs, such as "cpu-governor"."""
    severity: Severity
    what: str
    """A clause without a final stop."""
    detail: str
    """Sentences: what it costs, with the source of each figure; empty where nothing is known."""
    mend: tuple[str, ...] = ()
    """Lines to type into a shell, or for a file, which a comment names; none for a unit, where a
    comment after a value is part of it. Empty for a note."""
