"""Answers for the node processes while the daemon packs what they will serve.

    a client's Hello       NotReady, with the progress: it waits, and greets again
    feeder status, top     a report without node processes, its verdict is the progress
    /readyz                503, with the progress
    systemd                more time to start, with the progress as its status

They listen at the endpoints of the node processes, with the same keys and limits, in a thread, and
close before node processes are started. Clients reconnect by themselves and greet again. systemd
ends a start that takes longer than TimeoutStartSec=, unless EXTEND_TIMEOUT_USEC= arrives.

Source: sd_notify(3), systemd.service(5).
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec

from feeder.daemon.config import Config
from feeder.daemon.node_plan import plan_nodes, plan_placements
from feeder.daemon.node_process import START_DEADLINE_S
from feeder.daemon.notify import Notifier
from feeder.daemon.watch import HostWatch
from feeder.host.load import LoadReader
from feeder.metrics.fields import flatten
from feeder.metrics.report import Verdict
from feeder.node.clients import Clients
from feeder.node.endpoint import Endpoint, parse_endpoint
from feeder.node.messages import NodeConfig
from feeder.node.polling import PollSet
from feeder.node.router import Router, read_keys
from feeder.process.shortage import raise_file_limit
from feeder.process.stop_signals import stop_signals_blocked
from feeder.wire.messages import (
    ClientMessage,
    Hello,
    HostStats,
    HostStatsRequest,
    NamesRequest,
    NotReady,
    Refused,
    Stats,
    StatsRequest,
)

if TYPE_CHECKING:
    from feeder.monitoring.server import MetricsServer

EXTENSION_S: Final = START_DEADLINE_S + 30.0
"""From each message; so the last one leaves the node processes the time that they may take."""

_INTERVAL_S: Final = 10.0
_TURN_S: Final = 0.1


class Progress(Protocol):
    """How far the packing is: a line that begins with "packing", and a number that changes whenever
    it has advanced. Read in another thread than that which packs."""

    @property
    def text(self) -> str: ...

    @property
    def advances(self) -> int: ...


class EarlyAnswers:
    """The answers, given from the start of its context to its end."""

    def __init__(
        self,
        config: Config,
        progress: Progress,
        notifier: Notifier,
        metrics: "MetricsServer | None" = None,
    ) -> None:
        """Bind the endpoints of all node processes, except those with port 0.

        Raises FeederError for endpoints, keys and limits that a node process could not use.
        """
        self._progress = progress
        self._notifier = notifier
        self._metrics = metrics
        usable, placements = plan_placements(config)
        nodes = plan_nodes(config, {}, placements, raise_file_limit())
        self._watch = HostWatch(
            0,
            name=config.serve.name,
            read_load=LoadReader(Path(config.serve.topology_root), usable).read,
            find_neighbours=lambda pids, now_s: (),
        )
        self._router = Router(
            read_keys(nodes[0]),
            socket_mode=nodes[0].socket_mode,
            connections_max=nodes[0].connections_max,
        )
        try:
            self._router.bind(_fixed_endpoints(nodes))
        except BaseException:
            self._router.close()
            raise
        self._clients = Clients(self._router, self._on_message)
        self._poll_set = PollSet()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)

    def __enter__(self) -> Self:
        if self._metrics is not None:
            self._metrics.health = lambda: self._progress.text
        with stop_signals_blocked():  # the thread inherits the mask
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._router.close()
        self._extend()
        if self._metrics is not None:
            from feeder.monitoring.server import STARTING

            self._metrics.health = lambda: STARTING

    def _run(self) -> None:
        self._poll_set.add(self._router.monitor, self._router.read_monitor)
        if self._router.zap is not None:
            self._poll_set.add(self._router.zap.socket, self._router.zap.answer)
        self._clients.start(self._poll_set)
        extend_s = 0.0
        while not self._is_over:
            now_s = time.monotonic()
            if now_s >= extend_s:
                self._extend()
                extend_s = now_s + _INTERVAL_S
            due_s = min(now_s + _TURN_S, self._clients.resume_s, self._router.deadline_s)
            now_s = self._poll_set.run(due_s)
            self._router.run_due(now_s)
            if self._clients.resume_s <= now_s:
                self._clients.start(self._poll_set)
            self._clients.take_lost(now_s)  # no session ends with them

    def _on_message(self, peer: bytes, message: ClientMessage, now_s: float) -> None:
        match message:
            case Hello():
                answer = NotReady(text=self._progress.text, advances=self._progress.advances)
                self._clients.send(peer, answer)
            case HostStatsRequest():
                verdict = Verdict(kind="packing", text=self._progress.text, is_problem=False)
                report = msgspec.structs.replace(self._watch.turn(()), verdict=verdict)
                self._clients.send(peer, HostStats(report=report))
            case StatsRequest():
                counters = {"packing": self._progress.text, **flatten(self._router.counters)}
                self._clients.send(peer, Stats(counters=counters))
            case NamesRequest():
                self._clients.send(peer, Refused(code="dataset", message=self._progress.text))
            case _:  # of a session with the daemon before; its client greets, too
                pass

    def _extend(self) -> None:
        microseconds = round(EXTENSION_S * 1e6)
        self._notifier.send(f"EXTEND_TIMEOUT_USEC={microseconds}", self._progress.text)


def _fixed_endpoints(nodes: Sequence[NodeConfig]) -> list[Endpoint]:
    endpoints = [parse_endpoint(text) for node in nodes for text in node.endpoints]
    return [endpoint for endpoint in endpoints if endpoint.transport == "ipc" or endpoint.port]
