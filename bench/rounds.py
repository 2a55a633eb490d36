"""Runs contenders in turns, so that a busy moment of the machine affects all of them.

A round is one pass of every contender over the same items. It is cut into pieces of a few dozen
items. In each step another contender has its turn, with the next piece of all, over and over, until
every contender has had every piece. So all other items come between two turns with one item: no
contender finds its files in the caches because another has just read them, and no decoder is faster
because the branch predictor remembers the image's codes from another's turn.
"""

import math
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
    pieces = [(first, min(first + piece, items)) for first in range(0, items, piece)]
    order = list(contenders)
    count = len(order)
    # A contender's pieces are this many passes apart, to be spread over the round.
    apart = next(n for n in range(-(-count // len(pieces)), count + 2) if math.gcd(n, count) == 1)
    shift = pow(apart, -1, count)
    random = Random(0)
    for _ in range(rounds):
        random.shuffle(order)
        seconds = dict.fromkeys(contenders, 0.0)
        for number in range(count):
            for place, (first, end) in enumerate(pieces):
                name = order[(place + shift * number) % count]
                began = clock()
                contenders[name](first, end)
                seconds[name] += clock() - began
        yield seconds
