"""Checks the batches that clients recorded: pure functions, no I/O.

A rank goes through the same epochs again and again, so its batches follow a schedule that repeats.
A batch at a position ahead of the one that is due means that batches were lost; one behind it means
that batches came twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from feeder.wire.messages import BatchKey

GAP_MAX_S: Final = 3.0
"""The longest that a client may wait after a node process was killed."""

RATIO_MIN: Final = 0.6
"""The least throughput among faults, as a share of the undisturbed one."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch as a client recorded it."""

    key: BatchKey
    digest: str
    at_s: float
    """On the monotonic clock, one for the whole machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSchedule:
    """The batches of a rank, in order, until they repeat."""

    rank: int
    world_size: int
    steps: int
    """Of each rank in an epoch."""
    epochs: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.steps * self.epochs

    def key(self, position: int) -> BatchKey:
        """Return the batch at a position; beyond the end the schedule repeats."""
        epoch, step = divmod(position % len(self), self.steps)
        return epoch, self.rank + self.world_size * step

    def position(self, key: BatchKey) -> int | None:
        """Return the first position of a batch, None when it is not for this rank."""
        epoch, index = key
        step, rank = divmod(index, self.world_size)
        is_its = rank == self.rank and 0 <= step < self.steps and 0 <= epoch < self.epochs
        return epoch * self.steps + step if is_its else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts of wrong batches; all are 0 when a rank got what it must."""

    lost: int = 0
    repeated: int = 0
    different: int = 0
    """Other bytes, or a batch of another rank."""

    def __add__(self, other: "Verdict") -> "Verdict":
        """Return the sums."""
        return Verdict(
            lost=self.lost + other.lost,
            repeated=self.repeated + other.repeated,
            different=self.different + other.different,
        )


def check_arrivals(
    arrivals: Sequence[Arrival], schedule: ClientSchedule, digests: Mapping[BatchKey, str]
) -> Verdict:
    """Compare the batches of a rank, in order of arrival, with its schedule and their hashes."""
    due = lost = repeated = different = 0
    for arrival in arrivals:
        position = schedule.position(arrival.key)
        if position is None:
            different += 1
            continue
        different += digests[arrival.key] != arrival.digest
        ahead = (position - due) % len(schedule)
        if ahead > len(schedule) // 2:
            repeated += 1
        else:
            lost += ahead
            due += ahead + 1
    return Verdict(lost=lost, repeated=repeated, different=different)


def gaps_within(
    arrivals: Sequence[Arrival], since_s: float, until_s: float, kills_s: Sequence[float] = ()
) -> list[float]:
    """Return the seconds between consecutive arrivals, where they overlap a span of time.

    Gaps in which the client itself was killed, at ``kills_s``, are left out.
    """
    return [
        after.at_s - before.at_s
        for before, after in pairwise(arrivals)
        if after.at_s > since_s
        and before.at_s < until_s
        and not any(before.at_s <= at_s <= after.at_s for at_s in kills_s)
    ]
