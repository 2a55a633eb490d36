"""Which feeders of a long list a client keeps links to: a bounded number.

With a list of up to ``limit`` feeders, a client has a link to each. With a longer one it has links
to the owners of the batches that it requests now and next, and to a few spares, which answer at
once when an owner does not. Others stay linked while there is room, the most recently used ones.

    wanted, in the order of the batches │ spares │ used before, the latest first      ≤ limit

Links cost descriptors at the client (three or four each), and a session at the feeder. Spares are
dealt out by rank, so that every feeder is a spare for as many ranks, give or take one.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

LINKS_MAX: Final = 64
"""Feeders that a client has links to: some 200 to 450 descriptors, as hosts have one node process
or two, where the usual limit is 1024."""

SPARES: Final = 3
SESSIONS_A_FEEDER: Final = 384
"""Sessions of one job at each feeder, on average: three quarters of the default ``clients_max``."""


def limit_links(feeders: int, *, world_size: int, buffers: int) -> int:
    """Return the number of feeders that a client of ``world_size`` may have links to.

    At least one for each of its ``buffers``, which may all be of other lanes, and the spares.
    """
    even = SESSIONS_A_FEEDER * feeders // world_size
    return max(buffers + SPARES, min(LINKS_MAX, even))


class LinkChoice:
    """Chooses feeders by name, and remembers which were used last."""

    def __init__(self, rank: int) -> None:
        """``rank`` is the rank, or any number that differs between the clients of a job."""
        self._rank = rank
        self._used: dict[str, None] = {}  # the latest last

    def choose(
        self, feeders: Sequence[str], wanted: Iterable[str], avoided: Collection[str], limit: int
    ) -> set[str]:
        """Return the ``feeders`` to have links to, ``limit`` at most.

        ``wanted`` are needed for the coming batches, the first ones soonest; ``avoided`` cannot
        serve this job.
        """
        listed = set(feeders).difference(avoided)
        self._used = {name: None for name in self._used if name in listed}
        chosen: dict[str, None] = {}
        for name in wanted:
            if name in listed and len(chosen) < limit - SPARES:
                chosen[name] = None
        for name in reversed(chosen):
            self._used.pop(name, None)
            self._used[name] = None
        spares = self._deal_spares(feeders, listed)
        for name in (*spares, *reversed(self._used)):
            if len(chosen) >= limit:
                break
            chosen[name] = None
        while len(self._used) > limit:
            del self._used[next(iter(self._used))]
        return set(chosen)

    def _deal_spares(self, feeders: Sequence[str], usable: Collection[str]) -> list[str]:
        """Return this rank's spares: the next usable ones from its place in the list on."""
        ordered = sorted(feeders)
        first = self._rank * SPARES
        dealt: list[str] = []
        for offset in range(len(ordered)):
            name = ordered[(first + offset) % len(ordered)]
            if name in usable:
                dealt.append(name)
                if len(dealt) == SPARES:
                    break
        return dealt
