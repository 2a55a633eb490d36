"""Runs contenders side by side, so that a busy moment of the machine strikes all of them.

A round is one pass of every contender over the same items. It is cut into pieces of a few dozen
items; within a piece each contender has its turn, and who begins changes from piece to piece.
"""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

Contender = Callable[[int, int], None]
"""Does the work for the items first .. end - 1."""


def warm_up(contenders: Mapping[str, Contender], *, items: int, piece: int) -> None:
    """Have each contender do the first piece, unmeasured: buffers grow, pages are touched."""
    for contender in contenders.values():
        contender(0, min(piece, items))


def run_rounds(
    contenders: Mapping[str, Contender],
    *,
    items: int,
    piece: int,
    rounds: int,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[dict[str, float]]:
    """Yield after each round the seconds that each contender took in it, by name and ``clock``."""
    names = list(contenders)
    turn = 0
    for _ in range(rounds):
        seconds = dict.fromkeys(names, 0.0)
        for first in range(0, items, piece):
            end = min(first + piece, items)
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                began = clock()
                contenders[name](first, end)
                seconds[name] += clock() - began
            turn += 1
        yield seconds
