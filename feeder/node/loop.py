"""The event loop of a node process: one thread polls clients, workers, supervisor and signals.

It sleeps until a descriptor is readable or the next deadline has come, so an idle node process
uses no CPU. What it reads, the service handles.
"""

import contextlib
import gc
import logging
import secrets
import time
from typing import Final

from feeder import __version__
from feeder.metrics.records import NodeRecord
from feeder.node.claim_listener import ClaimListener
from feeder.node.datasets import NodeDatasets
from feeder.node.heartbeat import Heartbeats
from feeder.node.messages import (
    Diagnosed,
    Drain,
    Neighbours,
    NodeConfig,
    NodeReady,
    NodeToSupervisor,
    ReportAsked,
    ReportPart,
    SupervisorToNode,
)
from feeder.node.poll_set import PollSet
from feeder.node.router import Router
from feeder.node.service import NodeService
from feeder.node.snapshots import Snapshots
from feeder.node.worker_pool import PoolEvent, WorkerPool
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.log_lines import REPORT_INTERVAL_S, LineStream
from feeder.process.path_text import printable
from feeder.process.shortage import explain_shortage
from feeder.process.stop_signals import SignalWakeup
from feeder.sample.cache_file import DecodedCache
from feeder.session.admission import NodeIdentity
from feeder.session.events import DrainAsked, WorkerJoined
from feeder.session.jobs import JobWeights
from feeder.worker.messages import Configure

INCARNATION_BITS: Final = 63
_SLEEP_MAX_S: Final = 60.0
_DRAIN_RECHECK_S: Final = 0.01

_log = logging.getLogger(__name__)


class NodeLoop:
    """Serves clients until it has drained or the supervisor has ended."""

    def __init__(
        self,
        config: NodeConfig,
        datasets: NodeDatasets,
        router: Router,
        claim_listener: ClaimListener,
        control: Channel[NodeToSupervisor, SupervisorToNode],
        wakeup: SignalWakeup,
        log: LineStream,
        cache: DecodedCache | None,
        record: NodeRecord,
    ) -> None:
        """The arguments stay the caller's to close; ``run`` starts and ends the workers."""
        self._cache = cache
        self._config = config
        self._datasets = datasets
        self._router = router
        self._claim_listener = claim_listener
        self._control = control
        self._wakeup = wakeup
        self._log = log
        self._poll_set = PollSet()
        self._poll_set.add(wakeup.fileno(), self._on_signal)
        self._poll_set.add(control.fileno(), self._on_control)
        self._poll_set.add(router.monitor, self._on_monitor)
        if router.zap is not None:  # from the start: clients wait for it in their handshakes
            self._poll_set.add(router.zap.socket, router.zap.answer)
        self._pool = WorkerPool(
            config.workers,
            Configure(
                datasets=config.datasets,
                decoder=config.decoder,
                open_shards=config.open_shards,
                self_test=not config.is_successor,  # else one dataset could fail all workers
                cache=None if cache is None else cache.plan,
            ),
            self._poll_set,
            self._on_worker,
            record,
            None if cache is None else cache.fileno(),
            module=config.worker_module,
        )
        self._snapshots = Snapshots(record, self._pool, cache)
        self._heartbeats = Heartbeats(control, self._take_snapshot)
        self._ready: NodeReady | None = None  # once all workers are up
        self._service: NodeService | None = None  # once the neighbours are known
        self._drain_by_s: float | None = None
        self._verdict = ""  # of the supervisor
        self._is_over = False

    def run(
        self,
        endpoints: tuple[str, ...],
        warnings: tuple[str, ...],
        library_warnings: tuple[str, ...] = (),
    ) -> None:
        """Start the workers, report, serve, drain. Raises FeederError when workers cannot start.

        The arguments become part of the report.
        """
        try:
            self._pool.start()
            now_s = time.monotonic()
            while not self._is_over:
                due_s = max(now_s, self._next_deadline_s())
                self._poll_set.run(due_s - time.monotonic())
                now_s = time.monotonic()
                self._pool.run_due(now_s)
                self._claim_listener.run_due(now_s)
                self._router.run_due(now_s)
                self._heartbeats.run_due(now_s)
                self._log.report_dropped()
                if self._datasets.are_mended(now_s):
                    self._drain()
                if self._service is not None:
                    self._service.on_disconnected(self._router.take_ended(), now_s)
                    self._service.run_due(now_s, due_s)
                    self._service.frames.run_due(now_s)
                elif self._ready is None and self._pool.is_complete:
                    self._ready = self._report(endpoints, warnings, library_warnings)
                if self._drain_by_s is not None:
                    self._end_if_drained(now_s)
        except Exception as error:
            shortage = explain_shortage(error)
            if shortage is None or self._ready is None:
                raise
            # Exit, so that a successor starts with the sessions' memory freed. The supervisor would
            # take a reported error for a failure to start.
            _log.error("%s", shortage)
            raise SystemExit(shortage.exit_status) from error
        finally:
            self._pool.close()

    def _report(
        self,
        endpoints: tuple[str, ...],
        warnings: tuple[str, ...],
        library_warnings: tuple[str, ...],
    ) -> NodeReady:
        """Report to the supervisor that all workers are up; return the report."""
        started = self._pool.started
        assert started is not None, "all workers are up"
        ready = NodeReady(
            endpoints=endpoints,
            worker_pids=tuple(self._pool.pids.values()),
            libraries=started.libraries,
            self_test=started.self_test,
            decoder=started.decoder,
            warnings=warnings,
            library_warnings=library_warnings,
        )
        self._control.send(ready)
        self._control.set_timeout(0)  # a supervisor that does not read must not block the loop
        self._heartbeats.start(time.monotonic())
        return ready

    def _take_snapshot(self, now_s: float) -> NodeRecord:
        assert self._ready is not None, "heartbeats follow NodeReady"
        return self._snapshots.take(now_s, self._service)

    def _ask_for_report(self) -> None:
        # Without it the clients that wait are answered after a while, without a report.
        with contextlib.suppress(ChannelFullError, ChannelClosedError):
            self._control.send(ReportAsked())

    def _begin_service(self, ready: NodeReady, neighbours: Neighbours) -> None:
        """Begin to serve clients; their earlier messages are queued in the socket."""
        config = self._config
        self._service = NodeService(
            self._datasets.served,
            config.limits,
            NodeIdentity(
                node=_name_node(config, ready.endpoints),
                number=config.number,
                incarnation=secrets.randbits(INCARNATION_BITS),
                siblings=neighbours.endpoints,
                feeder_version=__version__,
                self_test=ready.self_test,
                libraries=ready.libraries,
                workers=config.workers,
            ),
            self._router,
            self._claim_listener,
            self._pool,
            len(ready.warnings),
            self._cache,
            library_warnings=len(ready.library_warnings),
            decoder=ready.decoder,
            restarts=config.restarts,
            ask_for_report=self._ask_for_report,
            weights=JobWeights(config.weights),
        )
        self._service.on_diagnosed(self._verdict)
        for worker in self._pool.numbers:
            self._service.on_worker(WorkerJoined(worker))
        gc.collect()
        gc.freeze()  # permanent objects: no collection needs to scan them again
        self._service.frames.start(self._poll_set)
        self._claim_listener.start(self._poll_set, self._service, time.monotonic)

    def _next_deadline_s(self) -> float:
        now_s = time.monotonic()
        deadlines = [now_s + _SLEEP_MAX_S, self._pool.deadline_s, self._claim_listener.deadline_s]
        deadlines += [self._router.deadline_s, self._heartbeats.deadline_s, self._datasets.due_s]
        if self._log.has_dropped:
            deadlines.append(now_s + REPORT_INTERVAL_S)
        if self._service is not None:
            deadlines += [self._service.wake_up_s(now_s), self._service.frames.resume_s]
        if self._drain_by_s is not None:
            deadlines += [self._drain_by_s, now_s + _DRAIN_RECHECK_S]
        return min(deadlines)

    def _end_if_drained(self, now_s: float) -> None:
        assert self._drain_by_s is not None, "called only while draining"
        if self._service is None or self._service.is_settled:
            self._is_over = True
        elif now_s >= self._drain_by_s:
            _log.warning("the drain ended before all requested batches were delivered")
            self._is_over = True

    def _on_worker(self, report: PoolEvent) -> None:
        if self._service is not None:  # else _begin_service reports the workers that are up
            self._service.on_worker(report)

    def _on_monitor(self) -> None:
        self._router.read_monitor(time.monotonic())

    def _on_control(self) -> None:
        try:
            message = self._control.receive()
        except ChannelClosedError:
            _log.warning("the supervisor has ended: this node process ends, too")
            self._is_over = True
            return
        match message:
            case Drain():
                self._drain()
            case Neighbours():
                assert self._ready is not None, "Neighbours follows NodeReady"
                self._begin_service(self._ready, message)
            case ReportPart() if self._service is not None:
                self._service.on_report_part(message)
            case Diagnosed(text=text):
                self._verdict = text
                if self._service is not None:
                    self._service.on_diagnosed(text)

    def _on_signal(self) -> None:
        if self._wakeup.take():
            self._drain()

    def _drain(self) -> None:
        if self._drain_by_s is None:
            self._drain_by_s = time.monotonic() + self._config.drain_s
            if self._service is not None:
                self._service.apply(DrainAsked())


def _name_node(config: NodeConfig, endpoints: tuple[str, ...]) -> str:
    """Return the name by which clients rank this process.

    Without a name in the configuration, the endpoint distinguishes two daemons of a host.
    """
    return config.name if config.is_named else f"{config.name} {printable(endpoints[0])}"
