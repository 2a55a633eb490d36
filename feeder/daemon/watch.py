"""What the supervisor knows of its node processes: their snapshots of the last seconds, the
machine's load, curves of the last minutes, and from these the host's report.

Of each node process it keeps about INTERVAL_S of snapshots, all of the same process: those of one
that has ended are dropped. So are those from before a suspension of the daemon, and those of an
idle time that the first request of a job ends: a rate over that time would mean nothing. The
verdict is about the last JUDGED_S of them. Reports are immutable, so other threads may read the
latest one.
"""

import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

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
    NodeState,
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

_INCARNATION_BITS: Final = 53
"""Every reader of JSON keeps these exactly."""

REFRESH_S: Final = 10.0
"""Between two messages to clients with the same kind of verdict and new figures."""

_LOGGED_ELSEWHERE: Final = frozenset({"starting", "draining", "node-down"})
"""Kinds of verdicts whose events the supervisor logs itself."""

_CLIENT_PID: Final = re.compile(r"\bpid (\d{1,9})\b")
"""In the name that loaders give."""

_NAME_CHARS_MAX: Final = 256
_WARNINGS_MAX: Final = 64
_WARNING_CHARS_MAX: Final = 512
_UNDECIDED: Final = Verdict(kind="starting", text="starting: no snapshots yet", is_problem=False)


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
        self._hangs = [0] * nodes
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
        self._states = tuple((self._began_s, node.state) for node in self.report.nodes)
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
        if all(recent and recent[-1].clock_s > self.report.clock_s for recent in self._recent):
            self.due_s = 0.0
        while len(recent) > 2 and recent[1].clock_s <= snapshot.clock_s - INTERVAL_S:
            recent.popleft()

    def forget(self, number: int) -> None:
        """Drop the snapshots of a node process that has ended."""
        self._recent[number].clear()

    def count_hang(self, number: int) -> None:
        """Count a node process that is ended because it sends no heartbeats."""
        self._hangs[number] += 1

    def turn(self, states: Sequence[tuple[NodeState, int]]) -> HostReport:
        """Make a new report, given each node process's state and number of restarts."""
        now_s = self._clock()
        self.due_s = now_s + TURN_S
        load = self._read_load()
        if now_s - self.report.clock_s > SUSPENDED_S:
            self._begin_anew(now_s)
        self._loads.append(load)
        while len(self._loads) > 2 and self._loads[1].clock_s <= load.clock_s - INTERVAL_S:
            self._loads.popleft()
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
            nodes=tuple(
                NodeReport(
                    number=number,
                    state=state,
                    restarts=restarts,
                    hangs=self._hangs[number],
                    now=recent[-1] if recent else None,
                    before=recent[0] if len(recent) > 1 else None,
                )
                for number, ((state, restarts), recent) in enumerate(
                    zip(states, self._recent, strict=True)
                )
            ),
            load=load,
            load_before=self._loads[0],
            neighbours=self._neighbours,
            log_lines_dropped=log_lines.counters.log_lines_dropped,
            log_lines_limited=log_lines.counters.log_lines_limited,
        )
        self._add_point(report)
        report = msgspec.structs.replace(report, history=tuple(self._history))
        verdict = self._judge.judge(self._recently(report), report)
        self.report = msgspec.structs.replace(report, verdict=verdict)
        if not self._judge.is_about("neighbour-bound"):
            self._neighbours, self._neighbours_due_s = (), None
        elif self._neighbours_due_s is None:  # what they use is known at the next look
            self._find_neighbours(self._own_pids(), now_s)
            self._neighbours_due_s = now_s
        self._states = tuple(
            (since_s if was == state else now_s, state)
            for (since_s, was), (state, _) in zip(self._states, states, strict=True)
        )
        self.health = HealthState(self.report, tuple(since_s for since_s, _ in self._states))
        return self.report

    def _recently(self, report: HostReport) -> HostReport:
        """Narrow a report to the last JUDGED_S."""
        nodes = []
        for node, recent in zip(report.nodes, self._recent, strict=True):
            before = node.before
            for snapshot in recent:
                if snapshot.clock_s <= recent[-1].clock_s - JUDGED_S:
                    before = snapshot
            nodes.append(msgspec.structs.replace(node, before=before))
        loads = [load for load in self._loads if load.clock_s <= report.load.clock_s - JUDGED_S]
        load_before = loads[-1] if loads else report.load_before
        return msgspec.structs.replace(report, nodes=tuple(nodes), load_before=load_before)

    def _own_pids(self) -> set[int]:
        """The processes of the daemon and its clients on this host."""
        pids = {self.report.pid}
        for recent in self._recent:
            for snapshot in list(recent)[-1:]:
                pids |= {snapshot.pid, *(worker.pid for worker in snapshot.workers)}
                names = [client.name for client in snapshot.clients if client.is_local]
                matches = map(_CLIENT_PID.search, names)
                pids |= {int(match[1]) for match in matches if match}
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


def _is_working(snapshot: NodeRecord) -> bool:
    """Whether a client has requested a batch that it has not released."""
    return any(client.wanted for client in snapshot.clients)


class Announcer:
    """Decides when a verdict is worth a line in the log and a message to clients. Pure."""

    def __init__(self) -> None:
        self._announced: Verdict | None = None
        self._announced_s = 0.0
        self._lines = LogLimiter(admitted_max=1)
        self._logged = ""

    def observe(self, verdict: Verdict, now_s: float) -> tuple[bool, bool] | None:
        """Whether a verdict to announce is of a new kind, which systemd should know, and whether to
        log it; None if it is not to be announced."""
        announced = self._announced
        is_new = announced is None or verdict.kind != announced.kind
        if announced is not None and not is_new:
            is_said = verdict.text == announced.text and verdict.kind == self._logged
            if is_said or now_s - self._announced_s < REFRESH_S:
                return None
        self._announced, self._announced_s = verdict, now_s
        # A line that was held back follows once it may, so that the log's last one is true.
        if verdict.kind in {self._logged, *_LOGGED_ELSEWHERE}:
            return is_new, False
        is_logged = self._lines.admit(verdict.kind, now_s)
        if is_logged:
            self._logged = verdict.kind
        return is_new, is_logged
