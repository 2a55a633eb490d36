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

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feeder.daemon.config import Config
from feeder.daemon.node_plan import plan_nodes, plan_placements
from feeder.daemon.node_process import START_DEADLINE_S
from feeder.daemon.notify import Notifier
from feeder.daemon.watch import HostWatch
from feeder.host.load import read_load
from feeder.metrics.fields import flatten
from feeder.metrics.report import Verdict
from feeder.node.clients import Clients
from feeder.node.endpoint import parse_endpoint
from feeder.node.polling import PollSet
from feeder.node.router import Router, read_keys
from feeder.process.shortage import raise_file_limit
from feeder.process.stop_signals import stop_signals_blocked
from feeder.wire.messages import (
    BlobsRequest,
    ClientMessage,
    Hello,
    HostStats,
    HostStatsRequest,
    NamesRequest,
    NotReady,
    Refused,
    SourcesRequest,
    Stats,
    StatsRequest,
)

if TYPE_CHECKING:
    from feeder.monitoring.server import MetricsServer

EXTENSION_S: Final = START_DEADLINE_S + 30.0
"""From each message; so the last one leaves the node processes the time that they may take."""

_INTERVAL_S: Final = 10.0
_TURN_S: Final = 0.1


@contextlib.contextmanager
def answer_early(
    config: Config,
    progress: Callable[[], NotReady],
    notifier: Notifier,
    metrics: "MetricsServer | None" = None,
) -> Iterator[None]:
    """Answer during the body, at the endpoints of all node processes, except those with port 0.

    ``progress`` is called in another thread than that which packs; its text begins with "packing".
    Raises FeederError for endpoints, keys and limits that a node process could not use.
    """
    usable, placements = plan_placements(config)
    nodes = plan_nodes(config, {}, placements, raise_file_limit())
    endpoints = [parse_endpoint(text) for node in nodes for text in node.endpoints]
    watch = HostWatch(
        0,
        name=config.serve.name,
        read_load=partial(read_load, Path(config.serve.topology_root), usable),
        find_neighbours=lambda pids, now_s: (),
    )
    router = Router(
        read_keys(nodes[0]),
        socket_mode=nodes[0].socket_mode,
        connections_max=nodes[0].connections_max,
    )
    is_over = threading.Event()

    def answer(peer: bytes, message: ClientMessage, now_s: float) -> None:
        state = progress()
        match message:
            case Hello():
                clients.send(peer, state)
            case HostStatsRequest():
                verdict = Verdict(kind="packing", text=state.text, is_problem=False)
                report = msgspec.structs.replace(watch.turn(()), verdict=verdict)
                clients.send(peer, HostStats(report=report))
            case StatsRequest():
                counters = {"packing": state.text, **flatten(router.counters)}
                clients.send(peer, Stats(counters=counters))
            case NamesRequest() | SourcesRequest() | BlobsRequest():
                clients.send(peer, Refused(code="dataset", message=state.text))
            case _:  # of a session with the daemon before; its client greets, too
                pass

    def extend() -> None:
        notifier.send(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1e6:.0f}", progress().text)

    def run() -> None:
        poll_set = PollSet()
        router.start(poll_set)
        clients.start(poll_set)
        extend_s = 0.0
        while not is_over.is_set():
            now_s = time.monotonic()
            if now_s >= extend_s:
                extend()
                extend_s = now_s + _INTERVAL_S
            poll_set.run(now_s + _TURN_S)
            router.ended.clear()  # no session ends with them

    with contextlib.closing(router):
        router.bind([endpoint for endpoint in endpoints if endpoint.port or endpoint.path])
        clients = Clients(router, answer)
        if metrics is not None:
            metrics.health = lambda: progress().text
        thread = threading.Thread(target=run, name="answers", daemon=True)
        with stop_signals_blocked():  # the thread inherits the mask
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
    extend()
