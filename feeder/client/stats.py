"""Requests a node process's counters, its host's report or names, as a client without a session."""

import contextlib
import math
import time
from collections.abc import Collection, Iterable
from typing import Final, Self, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.client.connection import RECONNECT_MAX_MS, Context, open_context
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.metrics.fields import Counters
from feeder.metrics.report import HostReport
from feeder.process.name_lookup import resolve_endpoint
from feeder.process.path_text import decode_name
from feeder.security.handshake import MONITORED, HandshakeWatch, dial
from feeder.security.keys import ClientKeys
from feeder.wire.messages import (
    MAX_NAMES,
    SAMPLES_LIMIT,
    HostStats,
    HostStatsRequest,
    Names,
    NamesRequest,
    NodeMessage,
    Refused,
    Stats,
    StatsRequest,
    decode_from_node,
    encode,
)

_Socket = zmq.Socket[bytes]
_Request = StatsRequest | HostStatsRequest | NamesRequest
_Answer = TypeVar("_Answer", Stats, HostStats, Names)
_RATE_PAUSE_S: Final = 1.0  # after which a node takes requests of this client again


class _RateError(ProtocolError):
    """Raised when the node takes no more requests of this client for now."""


_REFUSALS: Final = {
    "unknown-dataset": DatasetError,
    "dataset": DatasetError,
    "unreadable": DatasetError,
    "range": ConfigError,
    "rate": _RateError,
}


def request_counters(endpoint: str, timeout_s: float, keys: ClientKeys | None = None) -> Counters:
    """The counters of the node process at ``endpoint``, by name.

    Raises PeerError when it does not answer in time or the keys do not fit, ProtocolError when what
    answers is not a feeder, ConfigError for what is no endpoint, ResourceError where descriptors or
    threads have run out.
    """
    with StatsLink(endpoint, keys) as link:
        return link.request(StatsRequest(), Stats, timeout_s).counters


def request_report(endpoint: str, timeout_s: float, keys: ClientKeys | None = None) -> HostReport:
    """The report of the endpoint's host; PeerError also when the host's supervisor is silent."""
    with StatsLink(endpoint, keys) as link:
        return report_in(link.request(HostStatsRequest(), HostStats, timeout_s), endpoint)


def request_names(
    endpoint: str,
    dataset: str,
    sample_ids: Iterable[int],
    timeout_s: float,
    keys: ClientKeys | None = None,
    *,
    fingerprint: str = "",
) -> dict[int, str]:
    """The source names of samples by id, as ``path_text.decode_name`` returns them.

    ``fingerprint`` "" is whichever dataset is served as ``dataset``. ``timeout_s`` is the deadline
    of each answer, which has up to 64 names. Raises also DatasetError where the feeder cannot read
    the dataset, and ConfigError for an id that it has not.
    """
    names: dict[int, str] = {}
    missing = sorted(set(sample_ids))  # neighbours lie in one shard
    if missing and not 0 <= missing[0] <= missing[-1] < SAMPLES_LIMIT:
        beyond = missing[0] if missing[0] < 0 else missing[-1]
        raise ConfigError(f"dataset {dataset!r} has no sample {beyond}: ids are 0 or more")
    by_s = time.monotonic() + timeout_s
    with StatsLink(endpoint, keys) as link:
        while missing:
            wanted = tuple(missing[:MAX_NAMES])
            request = NamesRequest(dataset=dataset, fingerprint=fingerprint, sample_ids=wanted)
            try:
                answer = link.request(request, Names, timeout_s)
            except _RateError as error:
                if time.monotonic() >= by_s:
                    raise PeerError(str(error)) from None
                time.sleep(_RATE_PAUSE_S)
                continue
            if len(answer.names) > len(wanted):
                raise ProtocolError(f"{endpoint} breaks the protocol: more names than requested")
            names.update(zip(wanted, map(decode_name, answer.names), strict=False))
            del missing[: len(answer.names)]
            by_s = time.monotonic() + timeout_s
    return names


def report_in(answer: HostStats, endpoint: str) -> HostReport:
    """The report in an answer; PeerError if it holds none."""
    if answer.report is None:
        raise PeerError(
            f"{endpoint} answers, but the supervisor of its daemon has not answered: try another "
            "endpoint of this host, and see the daemon's log"
        )
    return answer.report


class StatsLink:
    """A connection to one endpoint, for one thread, with at most one request under way.

    After a request that was not answered it connects again: none pile up for a daemon that is away.
    """

    def __init__(
        self, endpoint: str, keys: ClientKeys | None = None, context: Context | None = None
    ) -> None:
        """``keys`` are used over tcp. Without a ``context`` it opens one of its own."""
        self._endpoint = endpoint
        self._keys = keys
        self._context = context
        self._owns_context = context is None
        self._dealer: _Socket | None = None
        self._is_asked = False
        self._timeout_s = 0.0
        self._deadline_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._disconnect()
        if self._owns_context and self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def request(self, request: _Request, wanted: type[_Answer], timeout_s: float) -> _Answer:
        """Send a request and wait for its answer; raises what ``request_counters`` does."""
        self.ask(request, timeout_s)
        while (answer := self.take(wanted, timeout_s)) is None:
            pass
        return answer

    def ask(self, request: _Request, timeout_s: float, deadline_s: float | None = None) -> None:
        """Send a request; its answer must come within ``timeout_s``, or by ``deadline_s`` where the
        caller counts that time from an earlier moment. A host name is resolved in that time too."""
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s if deadline_s is None else deadline_s
        if self._is_asked:
            self._disconnect()
        dealer = self._dealer or self._connect()
        self._is_asked = True
        # libzmq may have given up the connection already; the monitor then has the reason.
        with contextlib.suppress(zmq.Again):
            dealer.send(encode(request), zmq.DONTWAIT)

    def take(
        self, wanted: type[_Answer], wait_s: float, readable: Collection[int] = ()
    ) -> _Answer | None:
        """The answer, None if it does not come within ``wait_s``, or once one of the
        descriptors ``readable`` is; raises what ``request_counters`` does."""
        assert self._dealer is not None, "a request comes first"
        until_s = min(time.monotonic() + wait_s, self._deadline_s)
        poller = zmq.Poller()
        for source in (self._dealer, self._monitor, *readable):
            poller.register(source, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(max(0, math.ceil((until_s - time.monotonic()) * 1000))))
                if self._dealer in ready:
                    answer = self._decode(self._dealer.recv_multipart()[0])
                    if isinstance(answer, wanted):
                        self._is_asked = False
                        return answer
                elif self._monitor in ready:
                    event = recv_monitor_message(self._monitor)
                    problem = self._watch.on_event(
                        int(event["event"]), int(event["value"]), time.monotonic()
                    )
                    if problem is not None:
                        raise problem
                elif not ready and time.monotonic() >= self._deadline_s:
                    raise PeerError(
                        f"no answer from {self._endpoint} within {self._timeout_s:g} s: is a "
                        "feeder serving there?"
                    )
                elif ready or time.monotonic() >= until_s:
                    return None
        except FeederError:
            self._disconnect()
            raise

    def _decode(self, message: bytes) -> NodeMessage:
        try:
            answer = decode_from_node(message)
        except ProtocolError as error:
            raise ProtocolError(f"{self._endpoint} breaks the protocol: {error}") from None
        if isinstance(answer, Refused):
            raise _REFUSALS.get(answer.code, ProtocolError)(f"{self._endpoint}: {answer.message}")
        return answer

    def _connect(self) -> _Socket:
        address = resolve_endpoint(self._endpoint, self._deadline_s - time.monotonic())
        if self._context is None:
            self._context = open_context(self._endpoint)
        self._dealer = dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._monitor = dealer.get_monitor_socket(MONITORED)
        self._watch = HandshakeWatch(self._endpoint, self._keys, address=address)
        try:
            dial(dealer, address, self._keys)
        except zmq.ZMQError as error:
            self._disconnect()
            raise ConfigError(
                f"{self._endpoint!r} is no endpoint ({error.strerror}): write tcp://HOST:PORT or "
                "ipc:///PATH"
            ) from error
        return dealer

    def _disconnect(self) -> None:
        self._is_asked = False
        if self._dealer is not None:
            self._dealer.disable_monitor()
            self._monitor.close(linger=0)
            self._dealer.close(linger=0)
            self._dealer = None
