"""How many hosts a throughput takes: the fewest whose simulation reaches it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from .outcome import Outcome
from .shape import Cluster, HostShape, JobShape

HOSTS_MAX: Final = 256
_RANK_IMAGES_S: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer."""

    wanted_images_s: float
    least: int
    """By arithmetic, if hosts were used evenly and nothing had to wait."""
    outcome: Outcome | None
    """Of the fewest hosts that reach it; None where HOSTS_MAX do not."""
    largest: Outcome | None = None
    """What HOSTS_MAX reach, if they do not reach it."""


def host_images_s(host: HostShape, job: JobShape) -> float:
    """Return what a warm host delivers at most: what its cores make and its network card sends."""
    return min(host.cpu_images_s, host.nic_gbit_s * 1e9 / 8 / job.wire_bytes)


def choose_ranks(images_s: float) -> int:
    """Return the number of ranks that can take this throughput, as a default."""
    return max(1, math.ceil(images_s / _RANK_IMAGES_S))


def find_hosts(
    cluster: Cluster, wanted_images_s: float, run: Callable[[Cluster], Outcome]
) -> Sizing:
    """Return the fewest hosts of this shape that deliver ``wanted_images_s``."""
    least = math.ceil(wanted_images_s / host_images_s(cluster.host, cluster.job))
    low, high, best = max(1, least), max(1, least), None
    while best is None and low <= HOSTS_MAX:
        high = min(HOSTS_MAX, high)
        outcome = run(replace(cluster, hosts=high))
        if outcome.images_s >= wanted_images_s:
            best = outcome
        elif high == HOSTS_MAX:
            return Sizing(
                wanted_images_s=wanted_images_s, least=least, outcome=None, largest=outcome
            )
        else:
            low, high = high + 1, high + max(1, high // 4)
    while best is not None and low < high:
        middle = (low + high) // 2
        outcome = run(replace(cluster, hosts=middle))
        if outcome.images_s >= wanted_images_s:
            best, high = outcome, middle
        else:
            low = middle + 1
    return Sizing(wanted_images_s=wanted_images_s, least=least, outcome=best)
