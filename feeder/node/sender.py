"""Sends to clients, and remembers the peers that cannot be sent to or have disconnected.

Such a peer is reported once its last messages have been read: otherwise a client would count as
lost while its Bye is unread.
"""

import logging
from collections.abc import Iterable, Sequence

from feeder.errors import ProtocolError
from feeder.metrics.hangs import CATCH_UP_S
from feeder.metrics.report import HostReport
from feeder.node.router import PeerUnreachableError, Router
from feeder.node.session_log import log_refusal
from feeder.node.slot_store import Tracker
from feeder.session.fair_share import FairShare
from feeder.wire.messages import Chunk, HostStats, Lent, NodeMessage, Refused, encode
from feeder.wire.slot_layout import ChunkArrays

_log = logging.getLogger(__name__)


class Sender:
    """The sending side of a node process's socket."""

    def __init__(self, router: Router, fair_share: FairShare) -> None:
        """``fair_share`` is credited with what is delivered."""
        self._router = router
        self._fair_share = fair_share
        self._unreachable: dict[bytes, float] = {}  # when ``take_lost`` first saw it, inf: not yet

    @property
    def is_lost_due(self) -> bool:
        """Whether ``take_lost`` would return peers: some are unreachable, and all is read."""
        return bool(self._unreachable) and not self._router.has_unread

    def send(self, peer: bytes, message: NodeMessage) -> None:
        """Send a message without pixels."""
        if isinstance(message, Lent):
            self._fair_share.earn(peer)
        elif isinstance(message, Refused):
            log_refusal(message, self._router.account())
        try:
            self._router.send(peer, message)
        except PeerUnreachableError:
            self._drop(peer)

    def send_chunk(self, peer: bytes, header: Chunk, arrays: ChunkArrays) -> Tracker | None:
        """Send a chunk without copying its pixels; None when the peer cannot be sent to."""
        try:
            tracker = self._router.send_chunk(peer, header, arrays)
        except PeerUnreachableError:
            self._unreachable.setdefault(peer, float("inf"))
            return None
        self._fair_share.earn(peer)
        return tracker

    def send_report(self, peers: Sequence[bytes], report: HostReport | None) -> None:
        """Send the report of the host, encoded once, to the clients that asked for it."""
        if not peers:
            return
        try:
            frame = encode(HostStats(report=report))
        except ProtocolError as error:  # too long, or out of bounds: a supervisor's fault
            _log.warning("the report of the host cannot be sent: %s", error)
            frame = encode(HostStats(report=None))
        for peer in peers:
            try:
                self._router.send_encoded(peer, frame)
            except PeerUnreachableError:
                self._drop(peer)

    def add_disconnected(self, peers: Iterable[bytes]) -> None:
        """Remember peers whose connections have ended; b"" stands for one without messages."""
        for peer in filter(None, peers):
            self._unreachable.setdefault(peer, float("inf"))

    def take_lost(self, now_s: float) -> list[bytes]:
        """Return the unreachable peers whose last messages have been read, and forget them.

        Under a steady stream of messages of other peers this takes CATCH_UP_S at most.
        """
        if not self._unreachable:
            return []
        has_unread = self._router.has_unread
        lost = []
        for peer, since_s in list(self._unreachable.items()):
            if since_s == float("inf"):
                self._unreachable[peer] = now_s
            elif not has_unread or now_s - since_s > CATCH_UP_S:
                del self._unreachable[peer]
                lost.append(peer)
        return lost

    def _drop(self, peer: bytes) -> None:
        self._router.counters.sends_dropped += 1
        self._unreachable.setdefault(peer, float("inf"))
