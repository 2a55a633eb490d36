"""A node process that answers status requests with given reports and does nothing else."""

import threading
from collections.abc import Callable, Iterable
from typing import Self

import zmq

from bench.daemon import free_port
from feeder.metrics.report import HostReport
from feeder.wire.messages import (
    HostStats,
    HostStatsRequest,
    NamesRequest,
    NodeMessage,
    Stats,
    StatsRequest,
    decode_from_client,
    encode,
)


class ReportNode:
    """Answers each request with the next report, the last one again and again.

    A report of None is what a node process answers while its supervisor is silent.
    """

    def __init__(self, *reports: HostReport | None, endpoint: str | None = None) -> None:
        """``endpoint`` is a free tcp port unless it is given."""
        self.endpoint = endpoint or f"tcp://127.0.0.1:{free_port()}"
        self.answered = 0
        self.peers: set[bytes] = set()
        """Identities of connections that have asked."""
        self.answer_names: Callable[[NamesRequest], NodeMessage] | None = None
        self._reports = list(reports)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="report node")
        self._is_bound = threading.Event()

    def show(self, reports: Iterable[HostReport | None]) -> None:
        """Replace the reports."""
        self._reports = list(reports)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_bound.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join(60)

    def _answer(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.set(zmq.LINGER, 0)
            router.bind(self.endpoint)
            self._is_bound.set()
            while not self._has_ended.is_set():
                if not router.poll(20):
                    continue
                peer, frame = router.recv_multipart()
                self.peers.add(peer)
                self.answered += 1
                message = decode_from_client(frame)
                if isinstance(message, StatsRequest):
                    router.send_multipart([peer, encode(Stats(counters={"batches": 12}))])
                elif isinstance(message, HostStatsRequest):
                    reports = self._reports
                    report = reports.pop(0) if len(reports) > 1 else reports[0]
                    router.send_multipart([peer, encode(HostStats(report=report))])
                elif isinstance(message, NamesRequest) and self.answer_names is not None:
                    router.send_multipart([peer, encode(self.answer_names(message))])
