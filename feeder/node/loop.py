"""The event loop of a node process: one thread polls clients, workers, supervisor and signals.

It sleeps until a descriptor is readable or the next deadline has come, so an idle node process
uses no CPU. What it reads, the service handles. A turn has one time, which all share. What goes
wrong before the first client is a FeederError, which the supervisor reports.
"""

import contextlib
import dataclasses
import gc
import logging
import os
import secrets
import signal
import socket
from typing import Final

import msgspec
from msgspec.structs import replace

from feeder import __version__
from feeder.host.memory_bandwidth import measure_copy_bandwidth
from feeder.host.memory_budget import available_bytes
from feeder.jpeg.libraries import library_warnings
from feeder.metrics.counters import NodeStatus
from feeder.metrics.records import CacheRecord
from feeder.node.claim_listener import ClaimListener
from feeder.node.datasets import NodeDatasets
from feeder.node.endpoint import parse_endpoint
from feeder.node.fetches import Fetches
from feeder.node.messages import (
    Drain,
    Neighbours,
    NodeConfig,
    NodeReady,
    NodeToSupervisor,
    SupervisorToNode,
)
from feeder.node.polling import PollSet
from feeder.node.router import Router, read_keys
from feeder.node.selected_parts import SelectedParts
from feeder.node.service import NodeService
from feeder.node.snapshots import Snapshots, begin_record
from feeder.node.worker_pool import PoolEvent, WorkerPool
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.log_lines import start_logging
from feeder.process.path_text import printable
from feeder.process.stop_signals import SignalWakeup
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import plan_cache
from feeder.session.admission import ServedDataset
from feeder.session.events import DrainAsked
from feeder.session.table import SessionTable
from feeder.wire.messages import NodeIdentity
from feeder.worker.index_memory import IndexMemory

INCARNATION_BITS: Final = 63
_DRAIN_RECHECK_S: Final = 0.01

_log = logging.getLogger(__name__)


def serve_node(end: socket.socket, warning: str | None) -> None:
    """Run a node process to its end; ``warning`` is that of its placement, if any.

    Raises FeederError when it cannot start.
    """
    control: Channel[NodeToSupervisor, SupervisorToNode] = Channel(end, SupervisorToNode)
    # A closed channel: the supervisor has ended.
    with contextlib.suppress(ChannelClosedError):
        config, board = control.receive_with_fd()
        assert isinstance(config, NodeConfig), "NodeConfig comes before anything else"
        assert board is not None, "the board comes with it"
        warnings = () if warning is None else (warning,)
        with contextlib.ExitStack() as stack:
            NodeLoop(config, control, board, warnings, stack).run()


class NodeLoop:
    """Serves clients until it has drained or the supervisor has ended."""

    def __init__(
        self,
        config: NodeConfig,
        control: Channel[NodeToSupervisor, SupervisorToNode],
        board: int,
        warnings: tuple[str, ...],
        stack: contextlib.ExitStack,
    ) -> None:
        """Bind the endpoints and open the datasets; ``run`` starts and ends the workers.

        ``board`` is the descriptor of the supervisor's. ``warnings`` become part of the report to
        the supervisor. ``stack`` ends the workers, then closes the sockets and memories.
        """
        self._config = config
        self._control = control
        log = start_logging(config.log_level, f"node {config.number}", config.log_format)
        self._wakeup = SignalWakeup([signal.SIGTERM])
        self._warnings = warnings
        self._is_ready = False  # once all workers have been up
        self._drain_by_s: float | None = None
        self._is_over = False
        self.deadline_s = float("inf")
        """When ``run_due`` is due: while it drains."""
        memory_bytes_a_s = measure_copy_bandwidth(len(os.sched_getaffinity(0)), available_bytes())
        self._open_sockets(stack)
        sources = config.worker.datasets
        datasets = NodeDatasets(
            sources,
            self._drain,
            is_successor=config.is_successor,
            selections=config.worker.selections,
        )
        record = begin_record(config.number, config.name, self._endpoints, memory_bytes_a_s)
        cache: DecodedCache | None = None
        plan = plan_cache(config.decoded_bytes, datasets.sizes, nodes=config.nodes)
        if plan is not None:
            cache = DecodedCache.create(plan)
            stack.callback(cache.close)
            full_bytes = int(sum(size.total_bytes for size in datasets.sizes.values()))
            record.cache = CacheRecord(budget_bytes=plan.total_bytes, full_bytes=full_bytes)
        indexes = IndexMemory(
            {
                name: (dataset.layout, dataset.labels.stored_bytes)
                for name, dataset in datasets.datasets.items()
                if isinstance(dataset, ServedDataset)
            },
            datasets.selections,
        )
        # Their files may be replaced from now on.
        selections = {
            name: indexes.read_selection(name, selection.where)
            for name, selection in datasets.selections.items()
        }
        for name, selection in selections.items():
            served = datasets.served[name]
            assert isinstance(served, ServedDataset), "its selection was opened"
            datasets.served[name] = dataclasses.replace(served, layout=selection.layout)
        datasets.selections = selections
        stack.callback(indexes.close)
        self._poll_set = PollSet()
        self._poll_set.add(self._wakeup.fileno(), self._on_signal)
        self._poll_set.add(control.fileno(), self._on_control)
        self._router.start(self._poll_set)
        self._pool = WorkerPool(
            config.workers,
            # One dataset that fails in the self-test of a successor would fail all its workers.
            replace(config.worker, self_test=not config.is_successor, cache=plan),
            self._poll_set,
            self._on_worker,
            record,
            indexes,
            None if cache is None else cache.fileno(),
        )
        stack.callback(self._pool.close)
        # By its name clients rank a process; without one, the endpoint tells two daemons apart.
        name = config.name if config.is_named else f"{config.name} {printable(self._endpoints[0])}"
        self._status = NodeStatus(
            node=name,
            feeder_version=__version__,
            node_restarts=config.restarts,
            placement_warnings=len(warnings),
            library_warnings=len(library_warnings()),
        )
        cached = datasets.open_cached()
        parts = SelectedParts(
            selections,
            {name: source.members for name, source in config.worker.selections.items()},
            cached,
        )
        fetches = Fetches(cached, config.fetcher, self._poll_set, parts)
        stack.callback(fetches.close)
        self._service = NodeService(
            SessionTable(datasets.served, config.limits, record, config.weights),
            self._router,
            self._claim_listener,
            self._pool,
            self._status,
            cache=cache,
            fetches=fetches,
            board=board,
            datasets=datasets.datasets,
            parts=parts,
        )
        fetches.report = self._service.apply
        self._snapshots = Snapshots(self._service, control, log)
        self._poll_set.timed += [self._snapshots, self._service.names, datasets, fetches, self]

    def _open_sockets(self, stack: contextlib.ExitStack) -> None:
        config = self._config
        keys = read_keys(config)
        if keys is not None and not keys[1]:
            text = "%s lists no clients yet: put a client's public key there"
            _log.warning(text, keys[1].path)
        mode = config.socket_mode
        self._router = Router(keys, socket_mode=mode, connections_max=config.connections_max)
        stack.callback(self._router.close)
        self._claim_listener = ClaimListener(socket_mode=mode, callers_max=config.callers_max)
        stack.callback(self._claim_listener.close)
        wanted = [parse_endpoint(text) for text in config.endpoints]
        self._endpoints = self._router.bind(wanted)
        self._claim_listener.bind(wanted)

    def run(self) -> None:
        """Start the workers, report, serve, drain. Raises FeederError when workers cannot start."""
        self._pool.start()
        while not self._is_over:
            now_s = self._poll_set.run(self._service.deadline_s, self._service.begin_turn)
            self._service.run_due(now_s)

    def run_due(self, now_s: float) -> None:
        """End once all requested batches are delivered, or when the drain has taken too long."""
        assert self._drain_by_s is not None, "due while it drains only"
        self.deadline_s = now_s + _DRAIN_RECHECK_S
        if self._service.is_settled:
            self._is_over = True
        elif now_s >= self._drain_by_s:
            _log.warning("the drain ended before all requested batches were delivered")
            self._is_over = True

    def _on_worker(self, report: PoolEvent, now_s: float) -> None:
        self._service.on_worker(report, now_s)
        if not self._is_ready and len(self._pool.numbers) == self._config.workers:
            self._report(now_s)

    def _report(self, now_s: float) -> None:
        started, status = self._pool.started, self._status
        assert started is not None, "all workers are up"
        status.library, status.self_test = started.libraries, started.self_test
        status.decoder = started.decoder
        self._control.send(
            NodeReady(
                **msgspec.structs.asdict(started),
                endpoints=self._endpoints,
                worker_pids=tuple(self._pool.pids.values()),
                warnings=self._warnings + library_warnings(),
            )
        )
        self._control.set_timeout(0)  # a supervisor that does not read must not block the loop
        self._snapshots.deadline_s = now_s
        self._is_ready = True

    def _on_control(self, now_s: float) -> None:
        try:
            message = self._control.receive()
        except ChannelClosedError:
            _log.warning("the supervisor has ended: this node process ends, too")
            self._is_over = True
            return
        match message:
            case Drain():
                self._drain(now_s)
            case Neighbours():
                # Clients' earlier messages are queued in the socket.
                self._service.table.identity = NodeIdentity(
                    node=self._status.node,
                    number=self._config.number,
                    incarnation=secrets.randbits(INCARNATION_BITS),
                    feeder_version=__version__,
                    workers=self._config.workers,
                    siblings=message.endpoints,
                    self_test=self._status.self_test,
                    libraries=self._status.library,
                )
                gc.collect()
                gc.freeze()  # permanent objects: no collection needs to scan them again
                self._service.clients.start(self._poll_set)
                self._claim_listener.start(self._poll_set, self._service.apply)

    def _on_signal(self, now_s: float) -> None:
        if self._wakeup.take():
            self._drain(now_s)

    def _drain(self, now_s: float) -> None:
        if self._drain_by_s is None:
            self._drain_by_s = now_s + self._config.drain_s
            self.deadline_s = now_s
            self._service.apply([DrainAsked()], now_s)
