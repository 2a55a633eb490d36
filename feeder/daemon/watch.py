"""What the supervisor knows of its node processes: their snapshots of the last seconds, the
machine's load, curves of the last minutes, and from these the host's report.

The snapshots that it keeps are all of the same process. Those from before a suspension are dropped,
and those of an idle time that the first request of a job ends: a rate over that time would mean
nothing. The verdict is about the last JUDGED_S of them. Reports are immutable, so other threads may
read the latest one.
"""

import os
import re
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import msgspec

from feeder import __version__
from feeder.diagnosis.interval import HostInterval
from feeder.diagnosis.verdict import Judge
from feeder.host.processes import Busy
from feeder.metrics.records import NodeRecord, StoreRecord
from feeder.metrics.report import (
    HistoryPoint,
    HostLoad,
    HostReport,
    Neighbour,
    NodeReport,
    ServedDatasetReport,
    Verdict,
)
from feeder.process import log_lines
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

GAP_S: Final = 4.0
"""Between two snapshots or reports, if there was a suspension: longer than it takes to end a node
process that the kernel holds."""

POINT_S: Final = 5.0
HISTORY_S: Final = 900.0
"""Points of the curves, and how far back they go."""

_KEPT: Final = 32
"""Snapshots of a node process, and loads: more than there are in INTERVAL_S."""

_INCARNATION_BITS: Final = 53  # every reader of JSON keeps these exactly

_CLIENT_PID: Final = re.compile(r"\bpid (\d{1,9})\b")  # in the name that loaders give

_NAME_CHARS_MAX: Final = 256
_WARNINGS_MAX: Final = 64
_WARNING_CHARS_MAX: Final = 512
_UNDECIDED: Final = Verdict(kind="starting", text="starting: no snapshots yet", is_problem=False)

_Timed = TypeVar("_Timed", NodeRecord, HostLoad, StoreRecord)


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
    ) -> None:
        """Watch ``nodes`` node processes; the first report describes them as starting.

        ``name`` is the daemon's, ``find_neighbours`` is ``NeighbourFinder.look``.
        """
        load = read_load()
        self._recent: list[deque[NodeRecord]] = [deque(maxlen=_KEPT) for _ in range(nodes)]
        self._loads = deque([load], _KEPT)
        self._read_load = read_load
        self._find_neighbours = find_neighbours
        self._look_s: float | None = None  # when to look for neighbours next, if at all
        self._judge = Judge()
        self._point_s = load.clock_s
        self._stores: deque[StoreRecord] = deque(maxlen=_KEPT)
        self.due_s = load.clock_s
        """When to call ``turn``."""
        self.report = HostReport(
            host=printable(socket.gethostname())[:_NAME_CHARS_MAX],
            feeder_version=__version__,
            pid=os.getpid(),
            name=name,
            incarnation=secrets.randbits(_INCARNATION_BITS),
            clock_s=load.clock_s,
            uptime_s=0.0,
            datasets=tuple(datasets),
            nodes=tuple(NodeReport(number=n, since_s=load.clock_s) for n in range(nodes)),
            load=load,
            load_before=load,
            verdict=_UNDECIDED,
        )
        """The latest one."""

    def warn(self, warnings: Sequence[str]) -> None:
        """Have all reports repeat the warnings of the start."""
        lines = tuple(printable(line)[:_WARNING_CHARS_MAX] for line in warnings[:_WARNINGS_MAX])
        self.report = msgspec.structs.replace(self.report, warnings=lines)

    def take(self, snapshot: NodeRecord) -> None:
        """Keep a node process's snapshot. Drop those of its predecessor, those from before a
        suspension, and those of an idle time (no requests in any of them) once one has come."""
        recent = self._recent[snapshot.number]
        if recent and (
            recent[-1].pid != snapshot.pid
            or snapshot.clock_s - recent[-1].clock_s > GAP_S
            or (_is_working(snapshot) and not any(map(_is_working, recent)))
        ):
            recent.clear()
        recent.append(snapshot)
        if all(recent and recent[-1].clock_s > self.report.clock_s for recent in self._recent):
            self.due_s = 0.0

    def take_store(self, record: StoreRecord) -> None:
        """Keep a record of the fetcher; drop those of its predecessor or before a suspension."""
        last = self._stores[-1] if self._stores else record
        if record.pid != last.pid or record.clock_s - last.clock_s > GAP_S:
            self._stores.clear()
        self._stores.append(record)

    def turn(self, nodes: Sequence[NodeReport]) -> HostReport:
        """Make a new report, given each node process's without snapshots."""
        former, load = self.report, self._read_load()
        now_s, neighbours = load.clock_s, former.neighbours
        self.due_s = now_s + TURN_S
        if now_s - former.clock_s > GAP_S:
            self._loads.clear()
        self._loads.append(load)
        for node, recent in zip(nodes, self._recent, strict=True):
            if node.state in ("starting", "restarting"):  # the process of the snapshots has ended
                recent.clear()
        if not self._judge.is_about("neighbour-bound"):
            neighbours, self._look_s = (), None
        elif self._look_s is None:  # what they use is known at the next look
            self._find_neighbours(self._own_pids(), now_s)
            self._look_s = now_s
        elif now_s >= self._look_s:
            self._look_s = now_s + NEIGHBOURS_S
            neighbours = tuple(
                Neighbour(name=name, pid=pid, cpus=cpus)
                for name, pid, cpus in self._find_neighbours(self._own_pids(), now_s)
            )
        report = msgspec.structs.replace(
            former,
            clock_s=now_s,
            uptime_s=former.uptime_s + now_s - former.clock_s,
            nodes=tuple(
                msgspec.structs.replace(new, since_s=old.since_s) if new.state == old.state else new
                for old, new in zip(former.nodes, nodes, strict=True)
            ),
            load=load,
            neighbours=neighbours,
            log_lines_dropped=log_lines.counters.log_lines_dropped,
            log_lines_limited=log_lines.counters.log_lines_limited,
        )
        report = self._with_snapshots(report, INTERVAL_S)
        if now_s - self._point_s >= POINT_S:
            self._point_s = now_s
            interval = HostInterval(report)
            point = HistoryPoint(
                clock_s=now_s,
                images_a_s=interval.images_a_s,
                busy_share=interval.busy_share,
                wait_share=interval.wait_share or 0.0,
            )
            history = (*report.history, point)[-round(HISTORY_S / POINT_S) :]
            report = msgspec.structs.replace(report, history=history)
        verdict = self._judge.judge(self._with_snapshots(report, JUDGED_S), report)
        self.report = msgspec.structs.replace(report, verdict=verdict)
        return self.report

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
        stores = {}
        if self._stores:
            stores = {"store": self._stores[-1], "store_before": _at(self._stores, seconds)}
        return msgspec.structs.replace(report, nodes=nodes, load_before=load_before, **stores)

    def _own_pids(self) -> set[int]:
        """The processes of the daemon and its clients on this host."""
        pids = {self.report.pid, *(record.pid for record in self._stores)}
        for recent in filter(None, self._recent):
            pids |= {recent[-1].pid, *(worker.pid for worker in recent[-1].workers)}
            for client in recent[-1].clients:
                if client.is_local and (match := _CLIENT_PID.search(client.name)):
                    pids.add(int(match[1]))
        return pids


def _at(records: deque[_Timed], seconds: float) -> _Timed:
    """The latest that is ``seconds`` older than the last one; the first if none is."""
    early = [record for record in records if record.clock_s <= records[-1].clock_s - seconds]
    return early[-1] if early else records[0]


def _is_working(snapshot: NodeRecord) -> bool:
    """Whether a client has requested a batch that it has not released."""
    return any(client.wanted for client in snapshot.clients)
