"""What faults do to the throughput: how deep it falls, and when it is back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .outcome import fill_s
from .shape import Cluster, Fault
from .simulation import Simulation
from .tally import BIN_S, Timeline

BEFORE_S: Final = 2.0
"""Of the steady state before the first fault."""

AFTER_S: Final = 8.0
"""After the last one: a frozen host is given up after 2.5 s without an answer."""

RECOVERED: Final = 0.85
"""Rates over half a second differ by some per cent without a fault."""

_SMOOTH_S: Final = 0.5
_SMOOTH_BATCHES: Final = 100
"""A rate is over this many batches at least: half a second of a small cluster has a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dip:
    """What one fault did, until the next one or the end."""

    fault: Fault
    """``at_s`` is counted from the start of ``Scenario.images_s``."""
    before_images_s: float
    """Mean of the time since the fault before, or since the start."""
    lowest_images_s: float
    after_images_s: float
    """Mean of the last quarter of the time."""
    recovery_s: float | None
    """From the fault until, after the lowest, the throughput was RECOVERED of what it is at the end
    or was before, whichever is less; 0 if it never fell below that, None if it did not come back.
    """
    hedged: int
    """Batches that were requested from another host as well."""

    @property
    def depth(self) -> float:
        """How far the throughput fell, as a share of the one before."""
        return max(0.0, 1 - self.lowest_images_s / self.before_images_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A cluster with faults on one time line."""

    hosts: int
    ranks: int
    dips: Sequence[Dip]
    images_s: Sequence[float]
    """Over ``smooth_s``, every BIN_S of a steady state and the faults after it."""
    smooth_s: float
    batches: int
    """That ranks have taken."""
    is_whole: bool
    """Whether each rank took its batches in order, each once."""


def run_scenario(
    cluster: Cluster, *, before_s: float = BEFORE_S, after_s: float = AFTER_S
) -> Scenario:
    """Simulate ``cluster.faults``, whose times count from the steady state on.

    The earliest one strikes ``before_s`` after that, or later.
    """
    steady_s = math.ceil(fill_s(cluster) / BIN_S) * BIN_S
    start_s = steady_s + before_s
    faults = sorted(cluster.faults, key=lambda fault: fault.at_s)
    faults = [replace(fault, at_s=start_s + fault.at_s) for fault in faults]
    simulation = Simulation(replace(cluster, faults=tuple(faults)))
    ends_s = [*(fault.at_s for fault in faults[1:]), faults[-1].at_s + after_s]
    hedged = [simulation.run(faults[0].at_s).tally.hedged]
    hedged += [simulation.run(end_s).tally.hedged for end_s in ends_s]
    timeline = simulation.timeline
    smooth = choose_smooth(timeline, steady_s, faults[0].at_s, cluster.job.batch_size)
    began_s = [steady_s, *(fault.at_s for fault in faults)]
    dips = [
        find_dip(
            timeline,
            fault,
            steady_s=steady_s,
            began_s=began_s[number],
            end_s=end_s,
            smooth=smooth,
            hedged=hedged[number + 1] - hedged[number],
        )
        for number, (fault, end_s) in enumerate(zip(faults, ends_s, strict=True))
    ]
    rates = timeline.rates(ends_s[-1], smooth=smooth)
    return Scenario(
        hosts=cluster.hosts,
        ranks=cluster.job.ranks,
        dips=dips,
        images_s=rates[_bin(steady_s) :],
        smooth_s=smooth * BIN_S,
        batches=sum(len(rank.taken) for rank in simulation.ranks),
        is_whole=all(rank.is_whole for rank in simulation.ranks),
    )


def choose_smooth(timeline: Timeline, began_s: float, until_s: float, batch_size: int) -> int:
    """Return the bins that a rate is the mean of, by the steady state from ``began_s`` on."""
    steady_images_s = _mean(timeline.rates(until_s), began_s, until_s)
    enough_s = _SMOOTH_BATCHES * batch_size / max(1.0, steady_images_s)
    return math.ceil(max(_SMOOTH_S, enough_s) / BIN_S)


def find_dip(
    timeline: Timeline,
    fault: Fault,
    *,
    steady_s: float,
    began_s: float,
    end_s: float,
    smooth: int,
    hedged: int,
) -> Dip:
    """Return what a fault did until ``end_s``; the time before it counts from ``began_s``.

    All times are the time line's; the result's count from ``steady_s``.
    """
    plain = timeline.rates(end_s)
    before = _mean(plain, began_s, fault.at_s)
    after = _mean(plain, end_s - (end_s - fault.at_s) / 4, end_s)
    later = timeline.rates(end_s, smooth=smooth)[_bin(fault.at_s) :]
    return Dip(
        fault=replace(fault, at_s=fault.at_s - steady_s),
        before_images_s=before,
        lowest_images_s=min(later),
        after_images_s=after,
        recovery_s=_find_recovery(later, RECOVERED * min(before, after)),
        hedged=hedged,
    )


def _find_recovery(rates: Sequence[float], wanted: float) -> float | None:
    """Return when rates at even intervals are ``wanted`` again after the lowest of them."""
    lowest = rates.index(min(rates))
    if rates[lowest] >= wanted:
        return 0.0
    back = next((n for n in range(lowest, len(rates)) if rates[n] >= wanted), None)
    return None if back is None else (back + 1) * BIN_S


def _bin(at_s: float) -> int:
    return round(at_s / BIN_S)


def _mean(rates: Sequence[float], begin_s: float, end_s: float) -> float:
    part = rates[_bin(begin_s) : max(_bin(begin_s) + 1, _bin(end_s))]
    return sum(part) / len(part)
