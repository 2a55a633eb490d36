"""Runs contenders in turns, so that a busy moment of the machine affects all of them.

A round is one pass of every contender over the same items. It is cut into pieces of a few dozen
items. In each step every contender has its turn, in a new order, and each with a different piece:
with the same one it would find the files and tables in the caches, filled by its predecessor.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from time import perf_counter

Contender = Callable[[int, int], None]
"""Does the work for the items first .. end - 1."""


def warm_up(contenders: Mapping[str, Contender], *, items: int, piece: int) -> None:
    """Run the first piece with each contender, unmeasured: buffers grow, pages are touched."""
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
    turns = list(enumerate(contenders))
    pieces = [(first, min(first + piece, items)) for first in range(0, items, piece)]
    random = Random(0)
    for _ in range(rounds):
        seconds = dict.fromkeys(contenders, 0.0)
        for step in range(len(pieces)):
            random.shuffle(turns)
            for number, name in turns:
                first, end = pieces[(step + number) % len(pieces)]
                began = clock()
                contenders[name](first, end)
                seconds[name] += clock() - began
        yield seconds
