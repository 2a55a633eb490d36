"""Requests a node process's counters, its host's report, names or blobs, without a session."""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Self, TypeVar

import zmq

from feeder.client.connection import Context, Link, open_context
from feeder.client.core.events import Disconnected, NodeIncompatible
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError, ProtocolError
from feeder.metrics.fields import Counters
from feeder.metrics.report import HostReport
from feeder.process.name_lookup import resolve_endpoint
from feeder.process.path_text import decode_name
from feeder.security.keys import ClientKeys
from feeder.wire.messages import (
    MAX_NAMES,
    MAX_SOURCES,
    SAMPLES_LIMIT,
    Blobs,
    BlobsRequest,
    HostStats,
    HostStatsRequest,
    Names,
    NamesRequest,
    NodeMessage,
    Refused,
    Sources,
    SourcesRequest,
    Stats,
    StatsRequest,
)

_Request = StatsRequest | HostStatsRequest | NamesRequest | SourcesRequest | BlobsRequest
_Answer = TypeVar("_Answer", Stats, HostStats, Names, Sources, Blobs)
_RATE_PAUSE_S: Final = 1.0  # after which a node takes requests of this client again


class RateError(ProtocolError):
    """Raised when the node takes no more requests of this client for now."""


_REFUSALS: Final = {
    "unknown-dataset": DatasetError,
    "dataset": DatasetError,
    "unreadable": DatasetError,
    "range": ConfigError,
    "rate": RateError,
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
    content: str = "",
) -> dict[int, str]:
    """The source names of samples by id, as ``path_text.decode_name`` returns them.

    ``content`` "" is whichever dataset is served as ``dataset``. ``timeout_s`` is the deadline
    of each answer, which has up to 64 names. Raises also DatasetError where the feeder cannot read
    the dataset, and ConfigError for an id that it has not.
    """
    names: dict[int, str] = {}
    missing = sorted(set(sample_ids))  # neighbours lie in one shard
    if missing and not 0 <= missing[0] <= missing[-1] < SAMPLES_LIMIT:
        beyond = missing[0] if missing[0] < 0 else missing[-1]
        raise ConfigError(f"dataset {dataset!r} has no sample {beyond}: ids are 0 or more")
    with StatsLink(endpoint, keys) as link:
        while missing:
            wanted = tuple(missing[:MAX_NAMES])
            request = NamesRequest(dataset=dataset, content=content, sample_ids=wanted)
            answer = _request_patiently(link, request, Names, timeout_s)
            if len(answer.names) > len(wanted):
                raise ProtocolError(f"{endpoint} breaks the protocol: more names than requested")
            names.update(zip(wanted, map(decode_name, answer.names), strict=False))
            del missing[: len(answer.names)]
    return names


def request_sources(
    endpoint: str,
    dataset: str,
    sample_ids: Iterable[int],
    timeout_s: float,
    keys: ClientKeys | None = None,
    *,
    content: str = "",
) -> tuple[dict[int, tuple[str, int]], bool]:
    """Where the samples of a selection are from, by id: the dataset's name, and the id there; and
    whether they are drawn by weight.

    Those of a dataset are from itself. Arguments and errors are as for ``request_names``.
    """
    sources: dict[int, tuple[str, int]] = {}
    missing, is_drawn = sorted(set(sample_ids)), False
    with StatsLink(endpoint, keys) as link:
        for first in range(0, len(missing), MAX_SOURCES):
            wanted = tuple(missing[first : first + MAX_SOURCES])
            request = SourcesRequest(dataset=dataset, content=content, sample_ids=wanted)
            try:
                answer = _request_patiently(link, request, Sources, timeout_s)
            except PeerError as error:
                hint = "or is it of a version without selections, which never replies to this?"
                raise PeerError(f"{error}; {hint}") from error
            is_drawn = answer.is_drawn
            places = {place for place, _ in answer.rows}
            if len(answer.rows) != len(wanted) or max(places) >= len(answer.datasets):
                raise ProtocolError(f"{endpoint} breaks the protocol: sources of other samples")
            for sample_id, (place, own_id) in zip(wanted, answer.rows, strict=True):
                sources[sample_id] = answer.datasets[place][0], own_id
    return sources, is_drawn


def _request_patiently(
    link: "StatsLink", request: _Request, kind: type[_Answer], timeout_s: float
) -> _Answer:
    """Request again while the feeder limits the rate; PeerError once ``timeout_s`` is over."""
    by_s = time.monotonic() + timeout_s
    while True:
        try:
            return link.request(request, kind, timeout_s)
        except RateError as error:
            if time.monotonic() >= by_s:
                raise PeerError(str(error)) from None
            time.sleep(_RATE_PAUSE_S)


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
        self,
        endpoint: str,
        keys: ClientKeys | None = None,
        context: Context | None = None,
        *,
        is_patient: bool = True,
    ) -> None:
        """``keys`` are used over tcp. Without a ``context`` it opens one of its own. Unless it
        ``is_patient``, a request fails as soon as the connection is lost or refused."""
        self._endpoint = endpoint
        self._keys = keys
        self._context = context
        self._owns_context = context is None
        self._is_patient = is_patient
        self._link: Link | None = None
        self.frames: Sequence[zmq.Frame] = ()
        """What came with the last answer."""
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
        if self._is_asked or self._was_lost():
            self._disconnect()
        if self._link is None:
            self._link = self._connect()
        self._is_asked = True
        self._link.send(request)

    def take(
        self, wanted: type[_Answer], wait_s: float, readable: Collection[int] = ()
    ) -> _Answer | None:
        """The answer, None if it does not come within ``wait_s``, or once one of the
        descriptors ``readable`` is; raises what ``request_counters`` does."""
        link = self._link
        assert link is not None, "a request comes first"
        until_s = min(time.monotonic() + wait_s, self._deadline_s)
        poller = zmq.Poller()
        for source in (link.dealer, link.monitor, *readable):
            poller.register(source, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(max(0, math.ceil((until_s - time.monotonic()) * 1000))))
                if link.dealer in ready:
                    answer = self._receive(link)
                    if isinstance(answer, wanted):
                        self._is_asked = False
                        return answer
                elif link.monitor in ready:
                    for event in link.read_connection():
                        if isinstance(event, NodeIncompatible):
                            raise event.error
                        if isinstance(event, Disconnected) and not self._is_patient:
                            raise PeerError(
                                f"no connection to {self._endpoint}: is a feeder serving there?"
                            )
                elif not ready and time.monotonic() >= self._deadline_s:
                    raise PeerError(
                        f"no answer from {self._endpoint} within {self._timeout_s:g} s: is a "
                        "feeder serving there?"
                    )
                elif ready or time.monotonic() >= until_s:
                    return None
        except FeederError:
            if self._is_asked:  # else it was refused, which is an answer
                self._disconnect()
            raise

    def _was_lost(self) -> bool:
        """Whether the connection was lost since the last request, if that matters."""
        if self._is_patient or self._link is None:
            return False
        return any(isinstance(event, Disconnected) for event in [*self._link.read_connection()])

    def _receive(self, link: Link) -> NodeMessage | None:
        try:
            answer, self.frames = link.receive() or (None, ())
        except ProtocolError as error:
            raise ProtocolError(f"{self._endpoint} breaks the protocol: {error}") from None
        if isinstance(answer, Refused):
            self._is_asked = False
            raise _REFUSALS.get(answer.code, ProtocolError)(f"{self._endpoint}: {answer.message}")
        return answer

    def _connect(self) -> Link:
        address = resolve_endpoint(self._endpoint, self._deadline_s - time.monotonic())
        if self._context is None:
            self._context = open_context(self._endpoint)
        link = Link(0, self._endpoint, None, self._keys, self._context, address=address)
        link.dealer.set(zmq.LINGER, 0)
        return link

    def _disconnect(self) -> None:
        self._is_asked = False
        if self._link is not None:
            self._link.close()
            self._link = None
