"""What sets the pace of a daemon: the first condition that holds, in one line.

    broken      a node process is down, a worker is silent, storage does not answer
    no work     nobody is connected, or nobody requests anything
    no waits    the clients set the pace (client-bound), or both sides keep up (healthy)
    waits       why: one client takes all; storage, quota, neighbours; cache, memory, CPU;
                network, dispatch; or nothing here, so the clients request too little at a time

The order is from the specific to the general. A worker that waits for storage is also busy, so
compute-bound is asked after all that makes workers slow from outside.

Thresholds are shares of time over some ten seconds. They are far apart: on purpose-made conditions
(``tests/diagnosis``) the shares are above twice, or below half of them.
"""

from collections.abc import Callable
from typing import Final

from feeder.diagnosis import pace, trouble
from feeder.diagnosis.facts import Facts
from feeder.metrics.report import VERDICT_CHARS_MAX, HostReport, Verdict

_CONDITIONS: Final[tuple[Callable[[Facts], Verdict | None], ...]] = (
    trouble.node_down,
    trouble.draining,
    trouble.stalled_storage,
    trouble.silent_worker,
    trouble.starting,
    pace.idle,
    pace.set_by_clients,
    pace.greedy_client,
    pace.memory_short,
    pace.io_bound,
    pace.quota_bound,
    pace.neighbour_bound,
    pace.cache_bound,
    pace.memory_bound,
    pace.compute_bound,
    pace.network_bound,
    pace.dispatch_bound,
)


def diagnose(report: HostReport) -> Verdict:
    """Return what sets the pace of the daemon between the two snapshots of a report.

    The report's own verdict is not read.
    """
    facts = Facts.of(report)
    for condition in _CONDITIONS:
        verdict = condition(facts)
        if verdict is not None:
            return _bounded(verdict)
    return _bounded(pace.window_bound(facts))


def _bounded(verdict: Verdict) -> Verdict:
    text = verdict.text
    if len(text) <= VERDICT_CHARS_MAX:
        return verdict
    return Verdict(
        kind=verdict.kind,
        text=f"{text[: VERDICT_CHARS_MAX - 1]}…",
        is_problem=verdict.is_problem,
        estimate_images_a_s=verdict.estimate_images_a_s,
    )
