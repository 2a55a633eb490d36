"""The faults of ``feeder-bench chaos``, and what is wrong with the batches that clients recorded.

Pure functions. The schedule of faults depends on its seed only: every kind comes once before any
comes again, in a new random order each time, so a long run has all of them about equally often.

A rank goes through the same epochs again and again, so its batches follow a schedule that repeats.
A batch at a position ahead of the one that is due means that batches were lost; one behind it means
that batches came twice.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, get_args

import numpy as np

from feeder.wire.messages import BatchKey

from ..report import RATE, Result, single
from .clients import BatchLine, ClientOrders

GAP_MAX_S: Final = 3.0  # the longest that a client may wait after a node process was killed

RATIO_MIN: Final = 0.6  # the least throughput among faults, as a share of the undisturbed one

Kind = Literal[
    "kill-worker",
    "stop-worker",
    "kill-node",
    "stop-node",
    "kill-supervisor",
    "drain",
    "kill-client",
    "cut-network",
    "stall-network",
]
StoreKind = Literal[
    "kill-fetcher",
    "stop-fetcher",
    "slow-store",
    "late-store",
    "stall-store",
    "reset-store",
    "short-store",
    "flip-store",
    "error-store",
    "throttled-store",
]
KINDS: Final[Sequence[Kind]] = get_args(Kind)
STORE_KINDS: Final[Sequence[StoreKind]] = get_args(StoreKind)
"""With a remote dataset, as well; kinds of ``bench.store_proxy`` with "-store"."""

_LASTS_S: Final = (0.5, 2.0)  # the shortest and the longest fault that has to be undone

_WRONG: Final = {
    "lost": "were lost",
    "repeated": "came twice",
    "different": "had the wrong bytes, or were another rank's",
}


@dataclass(slots=True, kw_only=True)
class Fault:
    kind: Kind | StoreKind
    target: int  # number of the feeder, or of the client for "kill-client"; all have one store
    lasts_s: float  # until it is undone; 0 for kinds that need no undoing
    at_s: float = 0.0
    until_s: float = 0.0  # when it struck, and when all feeders had recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    batch_size: int
    feeders: int
    began_s: float
    faults: Sequence[Fault]
    chaos_s: tuple[float, float]  # begin and end of the time with faults
    ended_s: float
    arrivals: Sequence[Sequence[BatchLine]]
    delivered: Mapping[str, int]  # how batches were delivered, by the loaders' statistics
    errors: Sequence[str]
    leaks: list[str]  # what was not given back in the end
    requests: int = 0  # of feeders to the store
    struck: int = 0  # of these, by its faults

    def gaps_s(self, since_s: float, until_s: float) -> list[float]:
        """Return all clients' waits in a span of time, but those in which the client was killed."""
        return [
            after.at_s - before.at_s
            for rank, arrivals in enumerate(self.arrivals)
            for before, after in pairwise(arrivals)
            if after.at_s > since_s
            and before.at_s < until_s
            and not any(
                before.at_s <= fault.at_s <= after.at_s
                for fault in self.faults
                if fault.kind == "kill-client" and fault.target == rank
            )
        ]

    def longest_gap_s(self, fault: Fault) -> float:
        """Return the longest wait for a batch, from a fault until the recovery."""
        return round(max(self.gaps_s(fault.at_s, fault.until_s), default=0.0), 3)

    def throughputs(self) -> tuple[float, float]:
        """Return the images a second of all clients, undisturbed and among faults."""
        from_s, to_s = self.chaos_s
        times = [arrival.at_s for arrivals in self.arrivals for arrival in arrivals]
        first_s = max((each[0].at_s for each in self.arrivals if each), default=self.began_s)
        calm = sum(first_s <= at_s < from_s or to_s <= at_s < self.ended_s for at_s in times)
        chaos = sum(from_s <= at_s < to_s for at_s in times)
        calm_s = max(0.0, from_s - first_s) + self.ended_s - to_s
        return (
            self.batch_size * calm / calm_s if calm_s else 0.0,
            self.batch_size * chaos / (to_s - from_s) if to_s > from_s else 0.0,
        )


def draw_faults(
    seed: int, *, feeders: int, clients: int, has_store: bool = False
) -> Iterator[Fault]:
    dice = random.Random(seed)
    kinds = [*KINDS, *STORE_KINDS] if has_store else KINDS
    while True:
        for kind in dice.sample(kinds, len(kinds)):
            is_lasting = kind.startswith("stop-") or kind.endswith(("-network", "-store"))
            yield Fault(
                kind=kind,
                target=dice.randrange(clients if kind == "kill-client" else feeders),
                lasts_s=dice.uniform(*_LASTS_S) if is_lasting else 0.0,
            )


def check_arrivals(
    arrivals: Sequence[BatchLine], orders: ClientOrders, digests: Mapping[BatchKey, str]
) -> Counter[str]:
    """Count the batches of a rank that are "lost", "repeated", or of "different" bytes or rank."""
    wrong = Counter[str]()
    due = 0
    for arrival in arrivals:
        position = orders.position(arrival.key)
        if position is None:
            wrong["different"] += 1
            continue
        wrong["different"] += digests[arrival.key] != arrival.digest
        ahead = (position - due) % orders.batches
        if ahead > orders.batches // 2:
            wrong["repeated"] += 1
        else:
            wrong["lost"] += ahead
            due += ahead + 1
    return wrong


def judge(run: Run, wrong: Mapping[str, int]) -> tuple[list[Result], list[str]]:
    """Return the rows, and a line for each reason for which the run has failed."""
    calm, chaos = run.throughputs()
    ratio = chaos / calm if calm else 0.0
    by_kind = {
        kind: [run.longest_gap_s(fault) for fault in run.faults if fault.kind == kind]
        for kind in (*KINDS, *STORE_KINDS)
    }
    counts = {
        "faults": len(run.faults),
        "kinds": sum(map(bool, by_kind.values())),
        "batches": sum(map(len, run.arrivals)),
        **{f"batches-{how}": count for how, count in run.delivered.items()},
        **{what: wrong.get(what, 0) for what in _WRONG},
        "leaked": len(run.leaks),
        "errors": len(run.errors),
    }
    if run.requests:
        counts |= {"requests": run.requests, "requests-struck": run.struck}
    units = {"faults": "faults", "kinds": "kinds", "leaked": "things", "errors": "errors"}
    units |= {"requests": "requests", "requests-struck": "requests"}
    rows = [single(f"chaos/{key}", units.get(key, "batches"), n) for key, n in counts.items()]
    rows += [
        single("chaos/throughput-undisturbed", RATE, calm),
        single("chaos/throughput", RATE, chaos),
        single("chaos/throughput-ratio", "", ratio),
    ]
    from_s, to_s = run.chaos_s
    calm_gaps = run.gaps_s(run.began_s, from_s) + run.gaps_s(to_s, run.ended_s)
    for name, gaps_s in (("", run.gaps_s(from_s, to_s)), ("-undisturbed", calm_gaps)):
        for percent in (50, 99) if gaps_s else ():
            gap_ms = 1e3 * float(np.percentile(gaps_s, percent))
            rows.append(single(f"chaos/gap-p{percent}{name}", "ms", gap_ms))
    node_gap_s = max(by_kind["kill-node"], default=0.0)
    if by_kind["kill-node"]:
        rows.append(single("chaos/longest-gap-after-node-kill-s", "s", node_gap_s))
    for kind, longest_s in by_kind.items():
        if longest_s:
            rows.append(single(f"faults/{kind}", "faults", len(longest_s)))
            rows.append(single(f"faults/{kind}/longest-gap", "s", max(longest_s)))
    failures = [f"{counts[what]} batches {words}" for what, words in _WRONG.items() if counts[what]]
    failures += [f"left behind: {what}" for what in run.leaks]
    failures += [f"a client gave up: {error}" for error in run.errors]
    if run.feeders > 1 and ratio < RATIO_MIN:
        failures.append(
            f"throughput among faults was {ratio:.2f} of the undisturbed; "
            f"at least {RATIO_MIN:g} is required"
        )
    if run.feeders > 1 and node_gap_s >= GAP_MAX_S:
        failures.append(
            f"a client waited {node_gap_s:.2f} s after a node process was killed; "
            f"less than {GAP_MAX_S:g} s is required"
        )
    return rows, failures
