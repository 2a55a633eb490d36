"""Runs contenders in turns, so that a busy moment of the machine affects all of them.

A round is one pass of every contender over the same items. It is cut into pieces of a few dozen
items. In each step another contender has its turn, with the next piece of all, over and over, until
every contender has had every piece. So all other items come between two turns with one item: no
contender finds its files in the caches because another has just read them, and no decoder is faster
because the branch predictor remembers the image's codes from another's turn.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter

from feeder.pack.progress import ProgressLine

Contender = Callable[[int, int], object]  # does the work for the items first .. end - 1


def measure(
    contenders: Mapping[str, Contender],
    *,
    rounds: int,
    items: int = 1,
    piece: int | None = None,
    clock: Callable[[], float] = perf_counter,
    verb: str | None = "measuring",
    after_warm_up: Callable[[], object] | None = None,
    after_round: Callable[[dict[str, float]], object] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds that each contender took, one value a round, by ``clock``.

    Without ``piece``, all items are one piece. Each contender does the first piece beforehand,
    unmeasured: buffers grow, pages are touched. ``after_round`` is given the round's seconds, by
    name, and may correct them. Without ``verb`` no progress is shown.
    """
    piece = items if piece is None else piece
    for contender in contenders.values():
        contender(0, min(piece, items))
    if after_warm_up is not None:
        after_warm_up()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    progress = ProgressLine(sys.stderr)
    if verb is not None:
        progress.begin(verb, "rounds", rounds)
    for seconds in run_rounds(contenders, items=items, piece=piece, rounds=rounds, clock=clock):
        if after_round is not None:
            after_round(seconds)
        for name, taken_s in seconds.items():
            taken[name].append(taken_s)
        if verb is not None:
            progress.add(1)
    if verb is not None:
        progress.end()
    return taken


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


def rates(taken: Mapping[str, Sequence[float]], amount: float) -> dict[str, list[float]]:
    """Return ``amount`` (images, bytes …, of each round) per second, by contender and round."""
    return {name: [amount / taken_s for taken_s in values] for name, values in taken.items()}
