"""Copies from other feeders: what a Want needs of a lane that one of them owns, before the store.

    Want ─► the lane's owner: ``Ownership``, as clients compute it ─► BlobsRequest ─► Blobs
         ─► compared with the checksums, as what comes from the store ─► pwrite ─► presence

Which peer has a sample is known by names alone: those of the list or, of a list without names,
those of the node processes that are there, from their reports. While an owner is away, STAND_INS of
the next names are asked, as they make its batches. What no peer sends comes from the store. A peer
that does not answer in REQUEST_S, or refuses, is left out until its report comes again, for which a
thread asks with exponential backoff.

Threads call ``fetch``. A link is used by one at a time, and kept for the next one.
"""

import functools
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np

from feeder.client.core.owners import Ownership
from feeder.client.endpoints import Directory
from feeder.client.stats import RateError, StatsLink, request_report
from feeder.disk_cache.messages import Want
from feeder.disk_cache.transfers import Transfers
from feeder.errors import ConfigError, FeederError, PeerError, ProtocolError
from feeder.metrics.records import StoreRecord
from feeder.metrics.report import HostReport
from feeder.process.backoff import Backoff
from feeder.process.path_text import printable
from feeder.security.handshake import HandshakeProblem
from feeder.security.keys import ClientKeys
from feeder.wire.messages import MAX_BLOBS, Blobs, BlobsRequest

REQUEST_S: Final = 1.0
"""A worker reads for others within 20 ms, after two chunks at most."""

STAND_INS: Final = 2

NAMES_LEARNT_MAX: Final = 64
"""In a longer list without names endpoints own lanes, as for clients (``client.core.links``)."""

_LINKS_MAX: Final = 16  # that are not in use; each has a context of its own
_TICK_S: Final = 1.0
_REPORT_S: Final = 2.0
_BACKOFF_MAX_S: Final = 30.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Peer:
    endpoint: str
    names: tuple[str, ...]
    """By which it owns lanes; none until it has reported them."""
    contents: frozenset[str] | None = None
    """Of the datasets that it serves; None: not known, so it is asked."""
    is_own: bool = False
    """It is this feeder."""
    is_away: bool = False
    refusal: str = ""
    """Why it did not send what was asked, if it did answer."""
    problem: str = ""
    """What was logged about it and still holds."""
    report_s: float = inf
    """When to ask for its report."""
    backoff: Backoff = field(default_factory=lambda: Backoff(_TICK_S, _BACKOFF_MAX_S))


class Peers:
    """The feeders of a list, but for this one."""

    def __init__(
        self,
        listed: Sequence[str],
        name: str,
        keys: ClientKeys | None,
        contents: frozenset[str],
        record: StoreRecord,
    ) -> None:
        """Read the list, and from now on whenever it changes, in a thread, until ``close``.

        ``name`` is this feeder's own, ``contents`` those of the datasets that it fetches. Counts in
        ``record``. Raises ConfigError for what is no list.
        """
        self._directory = Directory(listed, keys)
        self._name = name
        self._keys = keys
        self._contents = contents
        self._record = record
        self._guard = threading.Lock()  # of the links and of counting
        self._links: OrderedDict[str, StatsLink] = OrderedDict()  # by endpoint, the oldest first
        self._peers: dict[str, _Peer] = {}  # by endpoint; replaced as a whole
        self._is_named = False  # whether the list has the names that own lanes
        self._own_names: tuple[str, ...] = ()  # beside those of peers
        self._problem = ""
        self._is_closed = threading.Event()
        self._ownership = functools.lru_cache(8)(Ownership)
        threading.Thread(target=self._follow, name="peers", daemon=True).start()

    def close(self) -> None:
        """End the thread, within a tick, and close the links that are not in use."""
        self._is_closed.set()
        self._directory.close()
        with self._guard:
            while self._links:
                self._links.popitem()[1].close()

    # --- Samples --------------------------------------------------------------------------------

    def fetch(
        self, transfers: Transfers, want: Want, is_due: Callable[[], bool] = lambda: True
    ) -> int:
        """Have peers send what is missing of a Want, while it ``is_due``; return the bytes that
        were written. OSError for the disk."""
        content, written = transfers.cached.manifest.content, 0
        for peer in self._choose(content, want):
            missing = transfers.find_missing(want.ranges)
            if not missing:
                break
            link = self._take_link(peer.endpoint)
            try:
                for blobs in self._request(peer, link, content, missing, is_due):
                    written += transfers.place(blobs)
                peer.backoff.reset()
            except RateError:  # it has sent what it may; the next Want may find more
                self._count_failure("rate")
            except FeederError as error:
                is_gone = isinstance(error, PeerError)
                self._count_failure("away" if is_gone else "refused")
                peer.refusal = "" if is_gone else str(error)
                self._leave_out(peer)
            finally:
                self._give_back(peer.endpoint, link)
        return written

    def _request(
        self,
        peer: _Peer,
        link: StatsLink,
        content: str,
        samples: list[int],
        is_due: Callable[[], bool],
    ) -> Iterator[dict[int, memoryview]]:
        """Yield what a peer has of the samples, by id, as it comes. Raises FeederError."""
        while samples and is_due():
            with self._guard:
                self._record.peer_requests += 1
            asked = tuple(samples[:MAX_BLOBS])
            request = BlobsRequest(content=content, sample_ids=asked)
            sizes = link.request(request, Blobs, REQUEST_S).sizes
            payload = memoryview(link.frames[0].buffer if link.frames else b"")
            if len(sizes) > len(asked) or sum(sizes) != len(payload):
                raise ProtocolError(f"{peer.endpoint} breaks the protocol: not the bytes it lists")
            ends = np.cumsum(sizes).tolist()
            parts = zip(asked, sizes, ends, strict=False)
            yield {sample: payload[end - size : end] for sample, size, end in parts if size}
            samples = samples[len(sizes) :]

    def _choose(self, content: str, want: Want) -> list[_Peer]:
        """Return the peers to ask: the owner of the lane, or those that stand in for it."""
        owners = {name: peer for peer in self._peers.values() for name in peer.names}
        names = tuple(sorted({*owners, *self._own_names}))
        chosen: list[_Peer] = []
        order = self._ownership(names, want.lanes).order(want.lane, want.index) if names else ()
        for name in order:
            peer = owners.get(name)
            if peer is None or peer.is_own or peer.is_away or peer in chosen:
                continue
            if peer.contents is None or content in peer.contents:
                chosen.append(peer)
            if name == order[0] or len(chosen) == STAND_INS:
                break
        return chosen

    def _take_link(self, endpoint: str) -> StatsLink:
        with self._guard:
            link = self._links.pop(endpoint, None)
        return link or StatsLink(endpoint, self._keys, is_patient=False)

    def _give_back(self, endpoint: str, link: StatsLink) -> None:
        link.frames = ()
        with self._guard:
            surplus = [self._links.pop(endpoint, None)]
            self._links[endpoint] = link
            if len(self._links) > _LINKS_MAX:
                surplus.append(self._links.popitem(last=False)[1])
        for other in filter(None, surplus):
            other.close()

    def _count_failure(self, reason: str) -> None:
        with self._guard:
            self._record.peer_failures[reason] += 1

    # --- The list -------------------------------------------------------------------------------

    def _follow(self) -> None:
        is_closed = False
        while not is_closed:
            self._read_list()
            for peer in self._peers.values():
                if peer.report_s <= time.monotonic() and not self._is_closed.is_set():
                    self._look_at(peer)
            is_closed = self._is_closed.wait(_TICK_S)

    def _read_list(self) -> None:
        try:
            listing, problem = self._directory.refresh(), ""
        except ConfigError as error:  # of a file that was there when the daemon started
            listing, problem = {}, str(error)
        has_names = any(listing.values())
        self._is_named = has_names or len(listing) > NAMES_LEARNT_MAX
        if has_names and self._name not in listing.values():
            problem = f"serve.name {self._name!r} is not in the list: give the name that is there"
        if problem and problem != self._problem:
            _log.warning("serve.peers: %s", problem)
        self._problem = problem
        peers = {}
        for endpoint, name in listing.items():
            names = (name or endpoint,) if self._is_named else ()
            peer = self._peers.get(endpoint)
            if peer is None or (names and peer.names != names):
                peer = _Peer(endpoint, names, report_s=inf if names else 0.0)
                peer.is_own = bool(name) and name == self._name
            peers[endpoint] = peer
        self._peers = peers
        self._own_names = (self._name,) if has_names and self._name else ()

    def _look_at(self, peer: _Peer) -> None:
        """Ask a peer for its report, which has its names and what it serves."""
        try:
            report = request_report(peer.endpoint, _REPORT_S, self._keys)
        except FeederError as error:
            problem = str(error)
            if isinstance(error, HandshakeProblem) and self._keys is None:
                problem = f"{peer.endpoint} accepts only feeders with keys: set serve.peer_key"
            self._leave_out(peer)
            _note(peer, problem)
            return
        contents = frozenset(dataset.content for dataset in report.datasets)
        if not self._is_named:
            peer.names = _find_names(report)
            host = printable(socket.gethostname())
            peer.is_own = (report.host, report.name) == (host, self._name)
        peer.contents, peer.is_away, peer.report_s = contents, False, inf
        lacking = frozenset() if peer.is_own else self._contents - contents
        if lacking or not peer.names:  # it may be starting
            peer.report_s = time.monotonic() + peer.backoff.next_s()
        if lacking:
            which = ", ".join(sorted(lacking))
            peer.refusal = f"{peer.endpoint} serves none with content fingerprint {which}"
        _note(peer, peer.refusal)
        peer.refusal = ""

    def _leave_out(self, peer: _Peer) -> None:
        """Ask a peer for nothing but its report, some time later; that shows what is wrong."""
        peer.is_away, peer.report_s = True, time.monotonic() + peer.backoff.next_s()


def _note(peer: _Peer, problem: str) -> None:
    """Log what is wrong with a peer, once, or that it is no more."""
    if problem and problem != peer.problem:
        _log.warning("a peer cannot be used, and what it has comes from the store: %s", problem)
    elif peer.problem and not problem:
        _log.info("peer %s can be used again", peer.endpoint)
    peer.problem = problem


def _find_names(report: HostReport) -> tuple[str, ...]:
    """Return the names by which a host's node processes own lanes, as clients know them."""
    nodes = [node.now for node in report.nodes if node.now is not None]
    if report.name:
        return tuple(node.name for node in nodes)
    return tuple(f"{node.name} {node.endpoints[0]}" for node in nodes if node.endpoints)
