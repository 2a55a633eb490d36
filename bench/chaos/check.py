"""Whether clients got what they must: pure functions of what they wrote down.

A rank goes through the same epochs again and again, so that what it must get can be made
beforehand: it is at a place of a schedule that repeats itself. A batch of another place says that
some were lost (it is ahead of the place that was due) or came twice (it is behind).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from feeder.wire.messages import BatchKey

GAP_MAX_S: Final = 3.0
"""The longest that a client may wait after a node process was killed."""

RATIO_MIN: Final = 0.6
"""The least of the undisturbed throughput that may be left."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch as a client saw it."""

    key: BatchKey
    digest: str
    at_s: float
    """On the monotonic clock, one for the whole machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSchedule:
    """The batches of a rank, in order, until the first one comes again."""

    rank: int
    world_size: int
    steps: int
    """Of each rank in an epoch."""
    epochs: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.steps * self.epochs

    def key(self, place: int) -> BatchKey:
        """Return the batch at a place, which is counted on beyond the end."""
        epoch, step = divmod(place % len(self), self.steps)
        return epoch, self.rank + self.world_size * step

    def place(self, key: BatchKey) -> int | None:
        """Return where a batch comes first, None when the rank must never get it."""
        epoch, index = key
        step, rank = divmod(index, self.world_size)
        is_its = rank == self.rank and 0 <= step < self.steps and 0 <= epoch < self.epochs
        return epoch * self.steps + step if is_its else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was wrong with what a rank got; all 0 is right."""

    lost: int = 0
    repeated: int = 0
    different: int = 0
    """Other bytes, or a batch of another rank."""

    def __add__(self, other: "Verdict") -> "Verdict":
        """Return both together."""
        return Verdict(
            lost=self.lost + other.lost,
            repeated=self.repeated + other.repeated,
            different=self.different + other.different,
        )


def check_arrivals(
    arrivals: Sequence[Arrival], schedule: ClientSchedule, digests: Mapping[BatchKey, str]
) -> Verdict:
    """Compare what a rank got, in order, with its schedule and the hashes of its batches."""
    due = lost = repeated = different = 0
    for arrival in arrivals:
        place = schedule.place(arrival.key)
        if place is None:
            different += 1
            continue
        different += digests[arrival.key] != arrival.digest
        ahead = (place - due) % len(schedule)
        if ahead > len(schedule) // 2:
            repeated += 1
        else:
            lost += ahead
            due += ahead + 1
    return Verdict(lost=lost, repeated=repeated, different=different)


def gaps_within(
    arrivals: Sequence[Arrival], since_s: float, until_s: float, kills_s: Sequence[float] = ()
) -> list[float]:
    """Return the seconds between arrivals one after the other that overlap a time.

    Those in which the client itself was killed, at ``kills_s``, are no wait of a client.
    """
    return [
        after.at_s - before.at_s
        for before, after in pairwise(arrivals)
        if after.at_s > since_s
        and before.at_s < until_s
        and not any(before.at_s <= at_s <= after.at_s for at_s in kills_s)
    ]
