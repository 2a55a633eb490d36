"""What faults do to the throughput: how deep it falls, and when it is back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .shape import Cluster, Fault
from .simulation import BIN_S, Simulation, Timeline
from .steady import fill_s

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
    moments = [steady_s, *(fault.at_s for fault in faults), faults[-1].at_s + after_s]
    hedged = []
    for moment_s in moments:
        simulation.run(moment_s)
        hedged.append(simulation.tally.hedged)
    timeline = simulation.timeline
    smooth = choose_smooth(timeline, steady_s, faults[0].at_s, cluster.batch_size)
    dips = [
        find_dip(
            timeline,
            replace(fault, at_s=fault.at_s - steady_s),
            steady_s=steady_s,
            began_s=moments[number],
            end_s=moments[number + 2],
            smooth=smooth,
            hedged=hedged[number + 2] - hedged[number + 1],
        )
        for number, fault in enumerate(faults)
    ]
    return Scenario(
        hosts=cluster.hosts,
        ranks=cluster.ranks,
        dips=dips,
        images_s=timeline.rates(moments[-1], smooth=smooth)[_bin(steady_s) :],
        smooth_s=smooth * BIN_S,
        batches=simulation.tally.batches,
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
    steady_s: float = 0.0,
    began_s: float,
    end_s: float,
    smooth: int,
    hedged: int,
) -> Dip:
    """Return what a fault did until ``end_s``; the time before it counts from ``began_s``.

    These times are the time line's; the fault's counts from ``steady_s``.
    """
    at_s = steady_s + fault.at_s
    plain = timeline.rates(end_s)
    before = _mean(plain, began_s, at_s)
    after = _mean(plain, end_s - (end_s - at_s) / 4, end_s)
    later = timeline.rates(end_s, smooth=smooth)[_bin(at_s) :]
    return Dip(
        fault=fault,
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
