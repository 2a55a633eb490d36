"""The supervisor: starts a node process for each NUMA node, and restarts those that crash.

    plan      datasets, topology, placement ─► one NodeConfig for each node process
    start     all node processes at once ─► all ready ─► all get the endpoints of all ─► placement
              checked and shown ─► ready
    crash     restarted with exponential backoff; too many crashes of one that has never served end
              the daemon
    SIGTERM   every node process drains ─► all ended within HARD_END_S, by SIGKILL if necessary ─►
              status 0

It serves nothing itself and holds no state that a restart would lose. However it ends, its node
processes end with it.
"""

import logging
import os
import select
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feeder.daemon.config import Config
from feeder.daemon.config_keys import parse_metrics_address
from feeder.daemon.fetcher_process import FetcherProcess, plan_fetcher
from feeder.daemon.node_plan import describe_shortage, plan_nodes, plan_placements
from feeder.daemon.node_process import START_DEADLINE_S, NodeProcess
from feeder.daemon.notify import Notifier
from feeder.daemon.start_report import (
    READY,
    compose_report,
    describe_datasets,
    describe_ready,
    describe_selections,
)
from feeder.daemon.watch import TURN_S, HostWatch
from feeder.disk_cache.messages import CannotFetch, FetcherBeat
from feeder.doctor.report import find_worst
from feeder.errors import DisagreementError, ResourceError
from feeder.host.load import read_load
from feeder.host.placement import check_placement, format_table
from feeder.host.processes import NeighbourFinder
from feeder.metrics.hangs import SUSPENDED_S
from feeder.node.messages import Board, Drain, Heartbeat, Neighbours, NodeReady, write_board
from feeder.process.backoff import CRASHES_MAX, WINDOW_S
from feeder.process.channel import ChannelClosedError
from feeder.process.child import adopt_orphans, reap_orphans
from feeder.process.log_lines import KEPT, LineStream
from feeder.process.shortage import raise_file_limit
from feeder.process.stop_signals import SignalWakeup
from feeder.remedies import TRANSIENT_ERRORS, explain_start
from feeder.wire.agreement import Agreement, Producer
from feeder.wire.messages import HostStats, encode
from feeder.worker.messages import MEMBER_PREFIX, CannotStart

if TYPE_CHECKING:
    from feeder.monitoring.server import MetricsServer

HARD_END_S: Final = 4.8
"""From SIGTERM until everything is killed; a little less than the 5 s that are promised."""

_LOGGED_ELSEWHERE: Final = ("starting", "draining", "node-down")
"""Kinds of verdicts whose events are logged when they happen."""

_log = logging.getLogger(__name__)


class Supervisor:
    """One daemon. ``run`` returns when it has ended."""

    def __init__(
        self,
        config: Config,
        notifier: Notifier,
        log: LineStream,
        metrics: "MetricsServer | None" = None,
    ) -> None:
        """Check the datasets and plan the node processes; nothing is started.

        Everything in ``config.data`` is a dataset's folder by now. ``log`` takes the lines of the
        start, ``metrics`` gets the host's report. Raises FeederError if the daemon cannot work.
        """
        serve, root = config.serve, Path(config.serve.topology_root)
        files_max = raise_file_limit()
        self._notifier = notifier
        self._log = log
        self._config = config
        self._metrics = metrics
        folders = {name: Path(text) for name, text in config.data.items()}
        described = describe_datasets(folders)
        served = [pair for pair in described if not pair[0].name.startswith(MEMBER_PREFIX)]
        served += describe_selections(config.selections)
        self._names = sorted(dataset.name for dataset, _ in served)
        self._data_lines = [line for _, line in served]
        self._usable, placements = plan_placements(config)
        fingerprints = {dataset.name: dataset.fingerprint for dataset, _ in described}
        self._fetcher = plan_fetcher(config)
        address = b"" if self._fetcher is None else self._fetcher.address
        configs = plan_nodes(config, fingerprints, placements, files_max, address)
        self._nodes = [*map(NodeProcess, configs, placements)]
        shortage = describe_shortage(files_max, configs[0].limits)
        self._warnings = [*filter(None, [shortage]), *find_worst(root, list(folders.values()))]
        for line in self._warnings:
            _log.warning("%s", line, extra=KEPT)
        # A closed terminal ends the daemon, unless nohup made it ignore SIGHUP.
        hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
        self._wakeup = SignalWakeup((signal.SIGTERM, signal.SIGINT, *hangup))
        self._watch = HostWatch(
            len(self._nodes),
            name=serve.name,
            datasets=[dataset for dataset, _ in served],
            read_load=partial(read_load, root, self._usable),
            find_neighbours=NeighbourFinder().look,
        )
        if metrics is not None:
            metrics.health = lambda: self._watch.report
        self._board = os.memfd_create("feeder-report")
        self._agreement = Agreement()
        self._serves = ""  # which datasets, and where: once all have been ready
        self._end_by_s = float("inf")  # earlier once it drains

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP (not under nohup), and end within HARD_END_S of it.

        Raises FeederError when a node process cannot start, or crashes while starting.
        """
        adopt_orphans()  # workers of a node process that dies; there may be no init to reap them
        try:
            while not self._is_draining or any(node.process for node in self._nodes):
                now_s = time.monotonic()
                if now_s >= self._end_by_s:
                    _log.warning("the time to drain is over and some batches are unsent: ending")
                    break
                for child in self._children:
                    if not child.process and child.start_s <= now_s:
                        self._start(child)
                if self._watch.due_s <= now_s:
                    self._replace_hung(now_s)
                    self._turn(now_s)
                self._log.report_suppressed()
                self._await_events()
        finally:
            self._end_all()

    @property
    def _children(self) -> list[NodeProcess | FetcherProcess]:
        return [*self._nodes, *([self._fetcher] if self._fetcher else [])]

    @property
    def _is_draining(self) -> bool:
        return self._end_by_s < float("inf")

    def _await_events(self) -> None:
        """Wait for the next deadline; act on the signals and messages until then."""
        children = {child.channel.fileno(): child for child in self._children if child.channel}
        starts_s = [child.start_s for child in self._children if not child.process]
        polls = select.poll()
        for fd in (self._wakeup.fileno(), *children):
            polls.register(fd, select.POLLIN)
        wait_s = min(self._watch.due_s, self._end_by_s, *starts_s) - time.monotonic()
        for fd, _ in polls.poll(max(0.0, wait_s) * 1000 + 1):
            child = children.get(fd)
            if child is None:
                self._on_signals()
            elif isinstance(child, NodeProcess):
                self._on_message(child)
            else:
                self._on_fetcher(child)

    def _replace_hung(self, now_s: float) -> None:
        """Kill node processes that hang; their successors start as after a crash."""
        lost_s = now_s - self._watch.report.clock_s
        if lost_s > TURN_S + SUSPENDED_S:  # this process did not run, nor perhaps those
            for child in self._children:
                child.watch.restart(now_s)
        for node in self._nodes:
            if not node.process or self._is_draining or not node.hangs_now(now_s):
                continue
            if not node.config.is_successor:
                raise ResourceError(
                    f"{node.name} was not ready after {START_DEADLINE_S:.0f} s: see its messages "
                    "above; is the disk of its datasets slow or dead?"
                )
            node.hangs += 1
            silent_s = now_s - node.watch.progress_s
            text = "%s (pid %d) has sent no heartbeat for %.1f s (kernel state: %s): ended"
            _log.warning(text, node.name, node.pid, silent_s, node.watch.describe())
            node.kill()
            self._turn(now_s)  # reports show it as hung while it ends, which may take seconds
            self._reap(node)
        fetcher = self._fetcher
        if fetcher is not None and fetcher.process and fetcher.hangs_now(now_s):
            _log.warning("the fetcher (pid %d) hangs: ended", fetcher.pid)
            fetcher.kill()
            self._reap(fetcher)

    def _on_signals(self) -> None:
        if not self._wakeup.take():
            return
        if self._is_draining:
            self._end_by_s = 0.0  # a second signal ends the daemon at once
            return
        self._end_by_s = time.monotonic() + HARD_END_S
        self._notifier.send("STOPPING=1", "draining")
        _log.info("draining: finishing requested batches", extra=KEPT)
        for node in self._nodes:
            node.start_s = float("inf")
            node.send(Drain())

    def _on_fetcher(self, fetcher: FetcherProcess) -> None:
        try:
            message = fetcher.receive()
        except ChannelClosedError:
            self._reap(fetcher)
            return
        match message:
            case FetcherBeat(record):
                fetcher.beat()
                self._watch.take_store(record)
            case CannotFetch():
                if not fetcher.has_served:
                    raise message.as_error()
                _log.error("the fetcher ends: %s", message.message, extra={"kind": "fetcher"})

    def _on_message(self, node: NodeProcess) -> None:
        try:
            message = node.receive()
        except ChannelClosedError:
            self._reap(node)
            return
        match message:
            case Heartbeat():
                node.beat(time.monotonic())
                self._watch.take(message.snapshot)
            case CannotStart():
                error = message.as_error()
                if isinstance(error, DisagreementError) or not node.config.is_successor:
                    raise error
                what = "ends" if node.ready else "cannot start"
                _log.warning("%s %s: %s", node.name, what, error)
            case NodeReady() if not self._is_draining:
                self._on_ready(node, message)

    def _on_ready(self, node: NodeProcess, ready: NodeReady) -> None:
        self._agreement.check(Producer(node.name, ready.self_test, ready.libraries))
        now_s = time.monotonic()
        node.ready = ready
        node.beat(now_s)
        # Successors bind the same endpoints, with the ports that clients know.
        node.config = msgspec.structs.replace(
            node.config, endpoints=ready.endpoints, is_successor=True
        )
        beginning = [node]
        if self._serves:
            _log.warning("%s serves again", node.name)
        elif all(other.ready for other in self._nodes):
            self._announce()
            beginning = self._nodes
        else:
            return
        self._turn(now_s)  # a report is there before the first client asks for one
        # The endpoints of all node processes, including those that are restarting.
        neighbours = Neighbours(endpoints=tuple(other.config.endpoints for other in self._nodes))
        for other in beginning:
            other.send(neighbours)

    def _turn(self, now_s: float) -> None:
        """Make a new report of the host and write it to the board; reap orphans."""
        self._notifier.watchdog()
        reap_orphans([child.pid for child in self._children])
        is_draining, former = self._is_draining, self._watch.report.verdict
        nodes = [node.report(now_s, is_draining=is_draining) for node in self._nodes]
        report = self._watch.turn(nodes)
        verdict = report.verdict
        frame = encode(HostStats(report=report), is_checked=True)
        write_board(self._board, Board(clock_s=now_s, verdict=verdict.text, frame=frame))
        if verdict.kind == former.kind or is_draining or not self._serves:
            return
        self._notifier.send(status=f"{self._serves}; {verdict.text}")
        if verdict.kind not in _LOGGED_ELSEWHERE:
            level = logging.WARNING if verdict.is_problem else logging.INFO
            _log.log(level, "%s", verdict.text, extra={"kind": verdict.kind})

    def _reap(self, child: NodeProcess | FetcherProcess) -> None:
        """Reap a process; unless the daemon is ending, schedule its successor."""
        pid, ending = child.pid, child.end()
        self._watch.due_s = 0.0  # probes should see it at once
        if self._is_draining:
            child.start_s = float("inf")
            return
        backoff_s = child.schedule_restart()
        if backoff_s is None:
            raise ResourceError(
                f"{child.name} crashed {CRASHES_MAX + 1} times within {WINDOW_S:.0f} s; the last "
                f"one {ending}: see its messages above"
            )
        _log.warning("%s (pid %d) %s: restarted in %.1f s", child.name, pid, ending, backoff_s)

    def _start(self, child: NodeProcess | FetcherProcess) -> None:
        try:
            child.start(self._board)
        except OSError as error:
            text = explain_start(child.name, error)
            if error.errno not in TRANSIENT_ERRORS or not child.has_served:
                raise ResourceError(text) from error
            _log.warning("%s; trying again in %.1f s", text, child.schedule_restart())

    def _end_all(self) -> None:
        """End all node processes in parallel; the drain, if there was one, is over."""
        for child in self._children:
            child.close_channel()
            if self._is_draining:
                child.kill()
        for child in self._children:
            child.end()

    def _announce(self) -> None:
        """Show where everything runs, and report readiness."""
        ready = [node.ready for node in self._nodes if node.ready is not None]
        checks = {}
        for node, report in zip(self._nodes, ready, strict=True):
            pids = (node.pid, *report.worker_pids)
            checks[node.placement.node_id] = check_placement(pids, node.placement)
        placements = [node.placement for node in self._nodes]
        for line in format_table(placements, self._usable, checks):
            self._log.report(line)
        # Node processes warn of the same libraries, unless packages changed between their starts.
        warnings = list(dict.fromkeys(line for report in ready for line in report.warnings))
        for line in warnings:
            self._log.report(line, logging.WARNING)
        self._watch.warn([*self._warnings, *warnings])
        decoded_bytes = self._nodes[0].config.decoded_bytes
        for line, level in compose_report(self._config, ready, self._data_lines, decoded_bytes):
            self._log.report(line, level)
        if self._metrics is not None:
            self._log.report(f"metrics: http://{self._metrics.address}/metrics")
        text = describe_ready(ready, self._names)
        self._serves = text.removeprefix(READY)
        self._log.report(text)
        self._notifier.ready(text)


def open_metrics(config: Config) -> "MetricsServer | None":
    """Open the metrics' server, bound and not started, if one is configured; raises FeederError."""
    serve = config.serve
    if not serve.metrics:
        return None
    # Not loaded otherwise: an event loop and the Prometheus client take 8 MB and 0.1 s.
    from feeder.monitoring.server import MetricsServer

    address = parse_metrics_address(serve.metrics)
    token = Path(serve.metrics_token) if serve.metrics_token else None
    return MetricsServer(address.host, address.port, token=token)
