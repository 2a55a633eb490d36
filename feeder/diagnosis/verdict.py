"""What sets the pace of a daemon: the first condition that holds, in one line.

    broken      a node process is down, storage does not answer, a worker or client is silent,
                batches fail
    no work     nobody is connected, or nobody requests anything
    no waits    the clients set the pace (client-bound), or both sides keep up (healthy)
    waits       why: one client takes all; store, storage, quota, neighbours; cache, memory, CPU;
                network, dispatch; or nothing here, so the clients request too little at a time

The order is from the specific to the general. A worker that waits for storage is also busy, so
compute-bound is asked after all that makes workers slow from outside.

Thresholds are shares of time over two seconds, so that a condition is named within three; whether
clients wait is judged by the last ten seconds, too. They are far apart: on purpose-made conditions
(``tests/diagnosis``) the shares are above twice, or below half of them. Between two reports a
condition keeps its name a little below its threshold, and a new one must be found twice.
"""

from collections.abc import Callable
from typing import Final, cast

from feeder.diagnosis import pace, trouble
from feeder.diagnosis.facts import Facts, Finding
from feeder.metrics.report import VERDICT_CHARS_MAX, HostReport, Verdict, VerdictKind

_TROUBLES: Final = (
    trouble.node_down, trouble.draining, trouble.stalled_storage, trouble.silent_worker,
    trouble.failing_batches, trouble.silent_client, trouble.starting,
)  # fmt: skip
"""These rest on what has lasted already, not on shares of the time, so they hold at once."""

_CONDITIONS: Final = (
    *_TROUBLES, pace.idle, pace.healthy, pace.client_bound, pace.greedy_client, pace.memory_short,
    pace.cache_small, pace.store_bound, pace.io_bound, pace.quota_bound, pace.neighbour_bound,
    pace.cache_bound, pace.memory_bound, pace.compute_bound, pace.network_bound,
    pace.dispatch_bound, pace.window_bound,
)  # fmt: skip


def _kind(condition: Callable[[Facts, float], Finding]) -> VerdictKind:
    return cast(VerdictKind, condition.__name__.replace("_", "-"))


_AT_ONCE: Final = frozenset(map(_kind, _TROUBLES))
_NO_PROBLEMS: Final = ("draining", "starting", "idle", "healthy", "client-bound")

STAYS: Final = 0.75
"""A condition that was met stays so until its figures fall below this part of their thresholds."""

HOLD_S: Final = 0.4
"""A new kind must be found again after this time: in two looks."""

HOLD_LAST_S: Final = 1.4
"""The same for what is left when no cause is found: while one begins to show."""


class Judge:
    """The verdict from one report to the next: what holds a daemon back, without flapping."""

    def __init__(self) -> None:
        self._held: Verdict | None = None
        self._rising: VerdictKind | None = None
        self._rising_s = 0.0

    def judge(self, report: HostReport, longer: HostReport) -> Verdict:
        """The verdict now; the arguments are those of ``diagnose``."""
        held, verdict = self._held, diagnose(report, longer, self._held)
        if held is None or held.kind == "starting" or verdict.kind in {held.kind, *_AT_ONCE}:
            self._rising, self._held = None, verdict
            return verdict
        if verdict.kind != self._rising:
            self._rising, self._rising_s = verdict.kind, report.clock_s
        hold_s = HOLD_LAST_S if verdict.kind == "window-bound" else HOLD_S
        if report.clock_s - self._rising_s >= hold_s:
            self._rising, self._held = None, verdict
            return verdict
        return held

    def is_about(self, kind: VerdictKind) -> bool:
        """Whether this is the verdict, or may become it with the next look."""
        return self._rising == kind or (self._held is not None and self._held.kind == kind)


def diagnose(
    report: HostReport, longer: HostReport | None = None, held: Verdict | None = None
) -> Verdict:
    """What sets the pace of the daemon between the two snapshots of a report.

    ``longer`` is the same report with earlier snapshots to compare with, by default as early ones;
    ``held`` the verdict until now. The reports' own verdicts are not read.
    """
    facts = Facts(report, longer, held)
    for condition in _CONDITIONS:
        kind = _kind(condition)
        part = STAYS if held is not None and held.kind == kind else 1.0
        if finding := condition(facts, part):
            text, estimate = (finding, 0.0) if isinstance(finding, str) else finding
            text = f"{kind}: {text}"
            if len(text) > VERDICT_CHARS_MAX:
                text = f"{text[: VERDICT_CHARS_MAX - 1]}…"
            is_problem = kind not in _NO_PROBLEMS
            return Verdict(
                kind=kind, text=text, is_problem=is_problem, estimate_images_a_s=estimate
            )
    raise AssertionError("window-bound is always found")
