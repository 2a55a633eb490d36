"""Reads what clients send: each client at its rate, misuse at a rate for all, whatever it is.

Both a node process and the supervisor that still packs listen to clients through this, so that the
limits are the same.
"""

import time
from collections.abc import Callable
from typing import Final

from feeder.errors import ProtocolError
from feeder.node.poll_set import PollSet
from feeder.node.router import Router
from feeder.node.sender import Sender
from feeder.session.admission import MESSAGE_CHARS_MAX
from feeder.session.fair_share import MALFORMED_COST, FairShare, cost_of
from feeder.wire.messages import (
    BadRecipe,
    ClientMessage,
    Refused,
    RefusedCode,
    VersionMismatch,
    decode_from_client,
)

_FRAMES_A_TURN: Final = 64
"""Frames of clients that are read before workers are polled again."""

_WASTE_BYTES_A_S: Final = 25e6
"""Limit of misuse that is read in a second, as counted by Router: some 6000 frames, 3 % of a core.
More waits in its senders' sockets."""

_WASTE_BYTES_A_TURN: Final = 256 * 1024
"""A turn ends after this much; the pause after it is 10 ms, too short for clients to notice."""


class ClientFrames:
    """The frames that a router receives, as messages."""

    def __init__(
        self,
        router: Router,
        sender: Sender,
        fair_share: FairShare,
        handle: Callable[[bytes, ClientMessage], None],
    ) -> None:
        """``handle`` is called with peer and message; the others are what ``sender`` was made of.

        Nothing is read before ``start``: until then messages are queued in the socket.
        """
        self._router = router
        self._sender = sender
        self._fair_share = fair_share
        self._handle = handle
        self._poll_set: PollSet | None = None
        self.resume_s = float("inf")
        """When ``run_due`` is due: clients are polled again, after misuse."""

    def start(self, poll_set: PollSet) -> None:
        """Read clients' frames whenever there are any."""
        self._poll_set = poll_set
        poll_set.add(self._router.socket, self._read)

    def run_due(self, now_s: float) -> None:
        """Poll clients again, if it is time."""
        if self.resume_s <= now_s and self._poll_set is not None:
            self.resume_s = float("inf")
            self._poll_set.add(self._router.socket, self._read)

    def _read(self) -> None:
        assert self._poll_set is not None, "clients are polled from the start on"
        wasted, wasted_before = 0, self._router.wasted_bytes
        now_s = time.monotonic()
        for _ in range(_FRAMES_A_TURN):
            received = self._router.receive(now_s)
            if received is not None:
                self.take(*received)
            wasted = self._router.wasted_bytes - wasted_before
            if received is None or wasted >= _WASTE_BYTES_A_TURN:
                break
        if wasted:
            # libzmq reads from its peers in turn, so after the pause all get their share as before.
            self._poll_set.remove(self._router.socket)
            self.resume_s = time.monotonic() + wasted / _WASTE_BYTES_A_S

    def take(self, peer: bytes, frame: bytes) -> None:
        """Handle a frame from a client; count and drop what is malformed or over its rate."""
        now_s = time.monotonic()
        if not self._fair_share.allows(peer, now_s):
            self._router.waste(len(frame))
            self._router.counters.frames_dropped["over-rate"] += 1
            if self._fair_share.is_report_due(peer, now_s):
                self._sender.send(
                    peer, Refused(code="rate", message=_explain_rate(self._router.account()))
                )
            return
        message = self._decode(peer, frame)
        if message is None:
            self._router.waste(len(frame))
            self._fair_share.charge(peer, MALFORMED_COST)
            return
        self._fair_share.charge(peer, cost_of(message))
        self._handle(peer, message)

    def _decode(self, peer: bytes, frame: bytes) -> ClientMessage | None:
        try:
            return decode_from_client(frame)
        except VersionMismatch as error:
            self._refuse(peer, "version", error)
        except BadRecipe as error:
            self._refuse(peer, "bad-recipe", error)
        except ProtocolError:
            self._router.counters.frames_dropped["malformed"] += 1
        return None

    def _refuse(self, peer: bytes, code: RefusedCode, error: ProtocolError) -> None:
        self._router.counters.frames_dropped[code] += 1
        self._sender.send(peer, Refused(code=code, message=str(error)[:MESSAGE_CHARS_MAX]))


def _explain_rate(account: str) -> str:
    return (
        f"{account or 'this client'} sends more messages than its batches need, so these are "
        "dropped for now: request batches as others are released, and ping once a second"
    )
