"""How long chunks usually take, by dataset and recipe: a slowly decaying maximum.

A chunk that takes far longer raises it by GROWTH_MAX at most, so one outlier does not count for
much, and some in a row do. Bounded: KINDS_MAX kinds, those used last.
"""

from collections import OrderedDict
from typing import Final, TypeAlias

ChunkKind: TypeAlias = tuple[str, str]
"""A dataset, and the fingerprint of a recipe."""

KINDS_MAX: Final = 256

KNOWN_AFTER: Final = 16
"""Chunks of a kind; the first ones open files and fill caches."""

GROWTH_MAX: Final = 4.0
_DECAY: Final = 0.995
"""For each chunk: it forgets a peak by half in 140 chunks, which is some seconds."""

_LEAST_S: Final = 1e-3


class UsualTimes:
    """Learns from finished chunks."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[ChunkKind, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: ChunkKind, took_s: float) -> None:
        """Learn from a chunk that took so long."""
        number, usual_s = self._kinds.get(kind, (0, max(took_s, _LEAST_S)))
        usual_s = max(min(took_s, GROWTH_MAX * usual_s), _DECAY * usual_s, _LEAST_S)
        self._kinds[kind] = min(number + 1, KNOWN_AFTER), usual_s
        self._kinds.move_to_end(kind)
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)

    def of(self, kind: ChunkKind) -> float | None:
        """Return the seconds that such a chunk takes at most as a rule; None if not known yet."""
        number, usual_s = self._kinds.get(kind, (0, 0.0))
        return usual_s if number >= KNOWN_AFTER else None

    def so_far(self, kind: ChunkKind) -> float:
        """Return the same after any number of chunks; 0 before the first one."""
        return self._kinds.get(kind, (0, 0.0))[1]
