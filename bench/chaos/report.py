"""The report of ``feeder-bench chaos``: its rows, and the reasons for which the run failed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..report import RATE, JudgedReport, Result, single
from .check import GAP_MAX_S, RATIO_MIN, Arrival, Verdict, gaps_within
from .clients import DeliveryCounts
from .faults import KINDS
from .scene import Struck


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport(JudgedReport):
    """A report with every fault, and with the reasons for which the run has failed."""

    faults: Sequence[tuple[float, str, float]]
    """Time in seconds, kind, and the longest wait of a client for a batch then, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as recorded; times are of the monotonic clock."""

    batch_size: int
    feeders: int
    began_s: float
    struck: Sequence[Struck]
    chaos_s: tuple[float, float]
    """Begin and end of the time with faults."""
    ended_s: float
    arrivals: Sequence[Sequence[Arrival]]
    """Of each rank."""
    delivered: DeliveryCounts
    errors: Sequence[str]
    leaks: Sequence[str]
    """What was not given back in the end."""


def judge(run: Run, verdict: Verdict) -> tuple[list[Result], list[str]]:
    """Return the rows, and a line for each reason for which the run has failed."""
    calm, chaos = _throughputs(run)
    ratio = chaos / calm if calm else 0.0
    node_kills = [struck for struck in run.struck if struck.fault.kind == "kill-node"]
    gap_s = max((longest_gap(run, struck) for struck in node_kills), default=0.0)
    batches = sum(map(len, run.arrivals))
    kinds = {struck.fault.kind for struck in run.struck}
    rows = [
        single("chaos/faults", "faults", len(run.struck)),
        single("chaos/kinds", "kinds", len(kinds)),
        single("chaos/batches", "batches", batches),
        single("chaos/batches-lent", "batches", run.delivered.lent),
        single("chaos/batches-asked-again", "batches", run.delivered.asked_again),
        single("chaos/batches-hedged", "batches", run.delivered.hedged),
        single("chaos/lost", "batches", verdict.lost),
        single("chaos/repeated", "batches", verdict.repeated),
        single("chaos/different", "batches", verdict.different),
        single("chaos/leaked", "things", len(run.leaks)),
        single("chaos/errors", "errors", len(run.errors)),
        single("chaos/throughput-undisturbed", RATE, calm),
        single("chaos/throughput", RATE, chaos),
        single("chaos/throughput-ratio", "", ratio),
        *_gap_rows(run),
    ]
    if node_kills:
        rows.append(single("chaos/longest-gap-after-node-kill-s", "s", gap_s))
    for kind in KINDS:
        gaps_s = [longest_gap(run, each) for each in run.struck if each.fault.kind == kind]
        if gaps_s:
            rows.append(single(f"faults/{kind}", "faults", len(gaps_s)))
            rows.append(single(f"faults/{kind}/longest-gap", "s", max(gaps_s)))
    failures = [
        f"{count} batches {what}"
        for what, count in (
            ("were lost", verdict.lost),
            ("came twice", verdict.repeated),
            ("had the wrong bytes, or were another rank's", verdict.different),
        )
        if count
    ]
    failures += [f"left behind: {what}" for what in run.leaks]
    failures += [f"a client gave up: {error}" for error in run.errors]
    if run.feeders > 1 and ratio < RATIO_MIN:
        failures.append(
            f"throughput among faults was {ratio:.2f} of the undisturbed; "
            f"at least {RATIO_MIN:g} is required"
        )
    if run.feeders > 1 and gap_s >= GAP_MAX_S:
        failures.append(
            f"a client waited {gap_s:.2f} s after a node process was killed; "
            f"less than {GAP_MAX_S:g} s is required"
        )
    return rows, failures


def longest_gap(run: Run, struck: Struck) -> float:
    """Return the longest wait of a client for a batch, from a fault until the recovery."""
    return round(max(_gaps(run, struck.at_s, struck.until_s), default=0.0), 3)


def _gaps(run: Run, since_s: float, until_s: float) -> list[float]:
    """Return all waits of clients, except those in which the client itself was killed."""
    return [
        gap
        for rank, arrivals in enumerate(run.arrivals)
        for gap in gaps_within(
            arrivals,
            since_s,
            until_s,
            [struck.at_s for struck in run.struck if struck.hits_client(rank)],
        )
    ]


def _throughputs(run: Run) -> tuple[float, float]:
    """Return the images a second of all clients, undisturbed and among faults."""
    from_s, to_s = run.chaos_s
    times = [arrival.at_s for arrivals in run.arrivals for arrival in arrivals]
    first_s = max((each[0].at_s for each in run.arrivals if each), default=run.began_s)
    calm_s = max(0.0, from_s - first_s) + run.ended_s - to_s
    calm = sum(first_s <= at_s < from_s or to_s <= at_s < run.ended_s for at_s in times)
    chaos = sum(from_s <= at_s < to_s for at_s in times)
    chaos_s = to_s - from_s
    return (
        run.batch_size * calm / calm_s if calm_s else 0.0,
        run.batch_size * chaos / chaos_s if chaos_s else 0.0,
    )


def _gap_rows(run: Run) -> list[Result]:
    from_s, to_s = run.chaos_s
    spans = {"": [(from_s, to_s)], "-undisturbed": [(run.began_s, from_s), (to_s, run.ended_s)]}
    rows = []
    for name, times in spans.items():
        gaps = [gap for since_s, until_s in times for gap in _gaps(run, since_s, until_s)]
        for percent in (50, 99) if gaps else ():
            gap_ms = 1e3 * float(np.percentile(gaps, percent))
            rows.append(single(f"chaos/gap-p{percent}{name}", "ms", gap_ms))
    return rows
