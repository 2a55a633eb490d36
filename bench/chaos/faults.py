"""What can go wrong, and when: a schedule that depends on its seed only.

Every kind comes once before any comes again, in an order that is drawn anew each time round, so
that a run of many faults has all of them about equally often. Nothing is done here.
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
"""What stays wrong until it is undone; the other kinds are over at once."""

LASTS_S: Final = (0.5, 2.0)
"""The shortest and the longest time for which these last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    target: int
    """Number of the feeder, or of the client for "kill-client"."""
    worker: int
    """Which of the feeder's workers, counted on beyond their number."""
    lasts_s: float
    """Until it is undone; 0 where nothing is to be undone."""


def draw_faults(seed: int, *, feeders: int, clients: int) -> Iterator[Fault]:
    """Yield faults for ever."""
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
