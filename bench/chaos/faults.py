"""The kinds of faults, and their schedule, which depends on its seed only.

Every kind comes once before any comes again, in a new random order each time, so a long run has all
of them about equally often. ``scene`` carries the faults out.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal[
    "kill-worker",
    "stop-worker",
    "kill-node",
    "stop-node",
    "kill-supervisor",
    "drain",
    "kill-client",
    "cut-network",
    "stall-network",
]

KINDS: Final[Sequence[Kind]] = get_args(Kind)

LASTING: Final[Sequence[Kind]] = ("stop-worker", "stop-node", "cut-network", "stall-network")
"""These last until they are undone; the other kinds are over at once."""

LASTS_S: Final = (0.5, 2.0)
"""The shortest and the longest duration of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    kind: Kind
    target: int
    """Number of the feeder, or of the client for "kill-client"."""
    worker: int
    """Number of the feeder's worker, modulo the number of workers."""
    lasts_s: float
    """Until it is undone; 0 for kinds that need no undoing."""


def draw_faults(seed: int, *, feeders: int, clients: int) -> Iterator[Fault]:
    """Yield faults without end."""
    dice = random.Random(seed)
    while True:
        for kind in dice.sample(KINDS, len(KINDS)):
            targets = clients if kind == "kill-client" else feeders
            yield Fault(
                kind=kind,
                target=dice.randrange(targets),
                worker=dice.randrange(64),
                lasts_s=dice.uniform(*LASTS_S) if kind in LASTING else 0.0,
            )
