"""The messages of clients, and what is sent to them.

Each client is read at its rate, misuse at a rate for all, whatever it is. Both a node process and
the supervisor that still packs serve clients through this, so that the limits are the same.
"""

import logging
from collections.abc import Callable
from typing import Final

from feeder.errors import ProtocolError
from feeder.node.polling import PollSet
from feeder.node.router import Router
from feeder.session.admission import MESSAGE_CHARS_MAX
from feeder.session.fair_share import EARNED, MALFORMED_COST, FairShare, cost_of
from feeder.wire.messages import (
    BadRecipe,
    ClientMessage,
    Lent,
    NodeMessage,
    Refused,
    RefusedCode,
    VersionMismatch,
    decode_from_client,
    encode,
)
from feeder.wire.session_id import session_id

_FRAMES_A_TURN: Final = 64
"""Frames of clients that are read before workers are polled again."""

_WASTE_BYTES_A_S: Final = 25e6
"""Limit of misuse that is read in a second, as counted by Router: some 6000 frames, 3 % of a core.
More waits in its senders' sockets."""

_WASTE_BYTES_A_TURN: Final = 256 * 1024
"""A turn ends after this much; the pause after it is 10 ms, too short for clients to notice."""

_OWN_LIMITS: Final = frozenset(("dataset", "memory", "clients", "recipes", "rate"))
"""Refusals for what this feeder lacks; all others are for what the client did."""

_REFUSED_AS: Final[dict[type, RefusedCode]] = {VersionMismatch: "version", BadRecipe: "bad-recipe"}

_log = logging.getLogger(__name__)


class Clients:
    """The clients of a router."""

    _poll_set: PollSet

    def __init__(
        self, router: Router, handle: Callable[[bytes, ClientMessage, float], None]
    ) -> None:
        """``handle`` is called with peer, message and the turn's time.

        Nothing is read before ``start``: until then messages are queued in the socket.
        """
        self._router = router
        self._handle = handle
        self.fair_share = FairShare()

    def start(self, poll_set: PollSet) -> None:
        """Read clients' frames whenever there are any."""
        self._poll_set = poll_set
        poll_set.add(self._router.socket, self._read)

    def _read(self, now_s: float) -> None:
        router, wasted_before = self._router, self._router.wasted_bytes
        for _ in range(_FRAMES_A_TURN):
            received = router.receive(now_s)
            if received is not None:
                self.take(*received, now_s)
            wasted = router.wasted_bytes - wasted_before
            if received is None or wasted >= _WASTE_BYTES_A_TURN:
                break
        if wasted:
            # libzmq reads from its peers in turn, so after the pause all get their share as before.
            self._poll_set.pause(router.socket, now_s + wasted / _WASTE_BYTES_A_S)

    def take(self, peer: bytes, frame: bytes, now_s: float) -> None:
        """Handle a frame from a client; count and drop what is malformed or over its rate."""
        if not self.fair_share.allows(peer, now_s):
            self._router.waste(len(frame))
            self._router.counters.frames_dropped["over-rate"] += 1
            if self.fair_share.is_report_due(peer, now_s):
                account, *_ = self._router.sender()
                text = (
                    f"{account or 'this client'} sends more messages than its batches need, so "
                    "these are dropped for now: request batches as others are released, and ping "
                    "once a second"
                )
                self.send(peer, Refused(code="rate", message=text))
            return
        try:
            message = decode_from_client(frame)
        except ProtocolError as error:
            code = _REFUSED_AS.get(type(error))
            self._router.counters.frames_dropped[code or "malformed"] += 1
            if code is not None:
                self.send(peer, Refused(code=code, message=str(error)[:MESSAGE_CHARS_MAX]))
            self._router.waste(len(frame))
            self.fair_share.charge(peer, MALFORMED_COST)
            return
        self.fair_share.charge(peer, cost_of(message))
        self._handle(peer, message, now_s)

    def send(self, peer: bytes, message: NodeMessage) -> None:
        """Send a message without pixels."""
        if isinstance(message, Lent):
            self.fair_share.charge(peer, -EARNED)
        elif isinstance(message, Refused):
            log_refusal(message, self._router.sender()[0])
        self._router.send(peer, encode(message))


def log_refusal(refused: Refused, account: str) -> None:
    """Log a refusal, of a session or of the request for one; a feeder's own limits are warnings."""
    level = logging.WARNING if refused.code in _OWN_LIMITS else logging.INFO
    what, extra = account, {"client": account}
    if refused.session is not None:
        extra["session"] = session_id(refused.session)
        what = f"session {extra['session']} of {account}"
    _log.log(level, "refused %s (%s): %s", what, refused.code, refused.message, extra=extra)
