"""What the supervisor knows of its node processes: their snapshots of the last seconds, the
machine's load, curves of the last minutes, and from these the host's report.

Of each node process it keeps about INTERVAL_S of snapshots, all of the same process. Those from
before a suspension of the daemon are dropped, and those of an idle time that the first request of a
job ends: a rate over that time would mean nothing. The verdict is about the last JUDGED_S of them.
Reports are immutable, so other threads may read the latest one.
"""

import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import msgspec

from feeder import __version__
from feeder.diagnosis.interval import HostInterval
from feeder.diagnosis.verdict import Judge
from feeder.host.processes import Busy
from feeder.metrics.records import NodeRecord
from feeder.metrics.report import (
    HistoryPoint,
    HostLoad,
    HostReport,
    Neighbour,
    NodeReport,
    ServedDatasetReport,
    Verdict,
)
from feeder.monitoring.health import HealthState
from feeder.process import log_lines
from feeder.process.log_lines import LogLimiter
from feeder.process.path_text import printable

INTERVAL_S: Final = 10.0
"""The interval of rates: long enough for several batches, short enough to see what happens now."""

JUDGED_S: Final = 2.0
"""The interval of the verdict: a condition is named within three seconds."""

TURN_S: Final = 0.6
"""Between two reports at most: they are made when all node processes have sent a snapshot, every
half a second."""

NEIGHBOURS_S: Final = 10.0
"""Between two looks for the neighbours that a verdict names."""

SUSPENDED_S: Final = 4.0
"""Without a report: longer than it takes to end a node process that the kernel holds."""

POINT_S: Final = 5.0
HISTORY_S: Final = 900.0
"""Points of the curves, and how far back they go."""

_INCARNATION_BITS: Final = 53  # every reader of JSON keeps these exactly

_LOGGED_ELSEWHERE: Final = frozenset({"starting", "draining", "node-down"})
"""Kinds of verdicts whose events the supervisor logs itself."""

_CLIENT_PID: Final = re.compile(r"\bpid (\d{1,9})\b")  # in the name that loaders give

_NAME_CHARS_MAX: Final = 256
_WARNINGS_MAX: Final = 64
_WARNING_CHARS_MAX: Final = 512
_UNDECIDED: Final = Verdict(kind="starting", text="starting: no snapshots yet", is_problem=False)

_Timed = TypeVar("_Timed", NodeRecord, HostLoad)


class HostWatch:
    """Collects snapshots and returns reports."""

    def __init__(
        self,
        nodes: int,
        *,
        name: str = "",
        datasets: Sequence[ServedDatasetReport] = (),
        read_load: Callable[[], HostLoad],
        find_neighbours: Callable[[Collection[int], float], tuple[Busy, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch ``nodes`` node processes; the first report describes them as starting.

        ``name`` is the daemon's, ``find_neighbours`` is ``NeighbourFinder.look``.
        """
        self._recent: list[deque[NodeRecord]] = [deque() for _ in range(nodes)]
        self._read_load = read_load
        self._find_neighbours = find_neighbours
        self._neighbours: tuple[Neighbour, ...] = ()
        self._neighbours_due_s: float | None = None  # None: nothing is to be found
        self._judge = Judge()
        self._clock = clock
        self._began_s = clock()
        self._loads: deque[HostLoad] = deque([read_load()])
        self._history: deque[HistoryPoint] = deque(maxlen=round(HISTORY_S / POINT_S))
        self._point_before: HostReport | None = None
        self._resumed_s = 0.0  # after the last suspension
        self.due_s = self._began_s
        """When to call ``turn``."""
        self.report = HostReport(
            host=printable(socket.gethostname())[:_NAME_CHARS_MAX],
            feeder_version=__version__,
            pid=os.getpid(),
            name=name,
            incarnation=secrets.randbits(_INCARNATION_BITS),
            clock_s=self._began_s,
            uptime_s=0.0,
            datasets=tuple(datasets),
            nodes=tuple(NodeReport(number=number, state="starting") for number in range(nodes)),
            load=self._loads[0],
            load_before=self._loads[0],
            verdict=_UNDECIDED,
        )
        """The latest one."""
        self.health = HealthState(self.report, (self._began_s,) * nodes)
        """The latest report with the times since which its states hold."""

    def warn(self, warnings: Sequence[str]) -> None:
        """Have all reports repeat the warnings of the start."""
        lines = tuple(
            "".join(filter(str.isprintable, text))[:_WARNING_CHARS_MAX]
            for text in warnings[:_WARNINGS_MAX]
        )
        self.report = msgspec.structs.replace(self.report, warnings=lines)

    def take(self, snapshot: NodeRecord) -> None:
        """Keep a node process's snapshot; drop those of its predecessor, those from before a
        suspension, and those of an idle time (no requests in any of them) once one has come."""
        recent = self._recent[snapshot.number]
        if recent and (
            recent[-1].pid != snapshot.pid
            or recent[-1].clock_s < self._resumed_s
            or (_is_working(snapshot) and not any(map(_is_working, recent)))
        ):
            recent.clear()
        recent.append(snapshot)
        _trim(recent)
        if all(recent and recent[-1].clock_s > self.report.clock_s for recent in self._recent):
            self.due_s = 0.0

    def turn(self, nodes: Sequence[NodeReport]) -> HostReport:
        """Make a new report, given each node process's without snapshots."""
        now_s = self._clock()
        self.due_s = now_s + TURN_S
        load = self._read_load()
        if now_s - self.report.clock_s > SUSPENDED_S:
            self._begin_anew(now_s)
        self._loads.append(load)
        _trim(self._loads)
        for node, recent in zip(nodes, self._recent, strict=True):
            if node.state in ("starting", "restarting"):  # the process of the snapshots has ended
                recent.clear()
        if self._neighbours_due_s is not None and now_s >= self._neighbours_due_s:
            self._neighbours = tuple(
                Neighbour(name=name, pid=pid, cpus=cpus)
                for name, pid, cpus in self._find_neighbours(self._own_pids(), now_s)
            )
            self._neighbours_due_s = now_s + NEIGHBOURS_S
        report = msgspec.structs.replace(
            self.report,
            clock_s=now_s,
            uptime_s=now_s - self._began_s,
            nodes=tuple(nodes),
            load=load,
            neighbours=self._neighbours,
            log_lines_dropped=log_lines.counters.log_lines_dropped,
            log_lines_limited=log_lines.counters.log_lines_limited,
        )
        report = self._with_snapshots(report, INTERVAL_S)
        self._add_point(report)
        report = msgspec.structs.replace(report, history=tuple(self._history))
        verdict = self._judge.judge(self._with_snapshots(report, JUDGED_S), report)
        report = msgspec.structs.replace(report, verdict=verdict)
        if not self._judge.is_about("neighbour-bound"):
            self._neighbours, self._neighbours_due_s = (), None
        elif self._neighbours_due_s is None:  # what they use is known at the next look
            self._find_neighbours(self._own_pids(), now_s)
            self._neighbours_due_s = now_s
        states = zip(self.health.since_s, self.report.nodes, nodes, strict=True)
        since_s = tuple(at_s if old.state == new.state else now_s for at_s, old, new in states)
        self.report, self.health = report, HealthState(report, since_s)
        return report

    def _with_snapshots(self, report: HostReport, seconds: float) -> HostReport:
        """The report with rates over the last ``seconds``, as far as there are snapshots."""
        nodes = tuple(
            msgspec.structs.replace(
                node,
                now=recent[-1] if recent else None,
                before=_at(recent, seconds) if len(recent) > 1 else None,
            )
            for node, recent in zip(report.nodes, self._recent, strict=True)
        )
        load_before = _at(self._loads, seconds)
        return msgspec.structs.replace(report, nodes=nodes, load_before=load_before)

    def _own_pids(self) -> set[int]:
        """The processes of the daemon and its clients on this host."""
        pids = {self.report.pid}
        for recent in filter(None, self._recent):
            pids |= {recent[-1].pid, *(worker.pid for worker in recent[-1].workers)}
            for client in recent[-1].clients:
                if client.is_local and (match := _CLIENT_PID.search(client.name)):
                    pids.add(int(match[1]))
        return pids

    def _begin_anew(self, now_s: float) -> None:
        """Drop what was seen before a suspension, but for the last snapshots until others come."""
        self._resumed_s = now_s - TURN_S
        self._loads.clear()
        for recent in self._recent:
            while len(recent) > 1:
                recent.popleft()

    def _add_point(self, report: HostReport) -> None:
        """Add a point to the curves, of what happened since the last one."""
        before = self._point_before
        if before is None:
            self._point_before = report
        elif report.clock_s - before.clock_s >= POINT_S:
            self._point_before = report
            pairs = zip(before.nodes, report.nodes, strict=True)
            nodes = tuple(msgspec.structs.replace(now, before=early.now) for early, now in pairs)
            interval = HostInterval(
                msgspec.structs.replace(report, nodes=nodes, load_before=before.load)
            )
            self._history.append(
                HistoryPoint(
                    clock_s=report.clock_s,
                    images_a_s=interval.images_a_s,
                    busy_share=interval.busy_share,
                    wait_share=interval.wait_share or 0.0,
                )
            )


def _trim(records: deque[_Timed]) -> None:
    """Drop those that are older than the interval of rates, but for the latest of them."""
    while len(records) > 2 and records[1].clock_s <= records[-1].clock_s - INTERVAL_S:
        records.popleft()


def _at(records: deque[_Timed], seconds: float) -> _Timed:
    """The latest that is ``seconds`` older than the last one; the first if none is."""
    before = records[0]
    for record in records:
        if record.clock_s <= records[-1].clock_s - seconds:
            before = record
    return before


def _is_working(snapshot: NodeRecord) -> bool:
    """Whether a client has requested a batch that it has not released."""
    return any(client.wanted for client in snapshot.clients)


class VerdictLog:
    """Decides when a verdict is worth a line in the log. Pure."""

    def __init__(self) -> None:
        self._limiter = LogLimiter(admitted_max=1)
        self._logged = ""

    def admit(self, verdict: Verdict, now_s: float) -> bool:
        """Whether to log a verdict: of a new kind, and each kind once a minute."""
        # A line that was held back follows once it may, so that the log's last one is true.
        is_known = verdict.kind in {self._logged, *_LOGGED_ELSEWHERE}
        if is_known or not self._limiter.admit(verdict.kind, now_s):
            return False
        self._logged = verdict.kind
        return True
