"""One endpoint's sockets: a DEALER, its monitor, and the claim of the session's slots.

ZeroMQ is told to queue nothing for a peer that is not there (IMMEDIATE), and its monitor tells when
the connection comes and goes: a greeting is sent once for each connection, never many into the
dark, and an error can say whether anybody was there at all. What arrives is bounded by the window,
in bytes; the high-water mark lies above that and never takes effect.

Invariant: one thread uses this object. What happened comes out of the ``hear_…`` calls as events;
chunks are left to the caller, who knows where their rows go.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.client.contexts import Context
from feeder.client.core import events
from feeder.client.core.prefetch import HostBatch
from feeder.client.mapped_slots import LentMemory, NotSharedError, SlotClaim
from feeder.errors import ConfigError, ProtocolError, ResourceError
from feeder.security.handshake import MONITORED, HandshakeWatch, dial
from feeder.security.keys import ClientKeys
from feeder.wire.messages import (
    MAX_NODE_HEADER_BYTES,
    Chunk,
    ClientMessage,
    Hello,
    NodeMessage,
    VersionMismatch,
    decode_from_node,
    encode,
)
from feeder.wire.slot_layout import SlotLayout

WrapSlot: TypeAlias = Callable[[LentMemory, int], HostBatch]
"""Wraps a mapped slot, given by its number, for the consumer."""

FAREWELL_MS: Final = 200  # how long the last message may take to leave
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000  # a node that comes back is found within about a second
HANDSHAKE_MS: Final = 5000
HEARTBEAT_MS: Final = 2000  # a host that lost its power closes no connection: notice ourselves
HEARTBEAT_TIMEOUT_MS: Final = 10000

_CONNECTION_EVENTS: Final = MONITORED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Link:
    """The connection to one endpoint; ``close()`` lets the last messages leave."""

    def __init__(
        self,
        number: int,
        endpoint: str,
        hello: Hello,
        keys: ClientKeys | None,
        context: Context,
        wrap_slot: WrapSlot,
    ) -> None:
        """Dial; ConfigError when that is no endpoint, ResourceError without a socket."""
        self.number = number
        self.endpoint = endpoint
        dealer: zmq.Socket[bytes] | None = None
        try:
            self.dealer = dealer = context.socket(zmq.DEALER)
            self.monitor = dealer.get_monitor_socket(_CONNECTION_EVENTS)
        except zmq.ZMQError as error:
            if dealer is not None:  # its context could not end before it
                dealer.disable_monitor()
                dealer.close(0)
            raise ResourceError(
                f"there is no socket for another endpoint ({error.strerror}): list fewer, or raise "
                "the limit on open files (ulimit -n)"
            ) from None
        self._set_options(hello)
        self._unsent: deque[ClientMessage] = deque()
        self._claim: SlotClaim | None = None
        self._claimed = events.ClaimSlots(
            number, 0, "", SlotLayout(slots=0, batch_size=0, image_size=0)
        )
        self._watch = HandshakeWatch(endpoint, keys)
        self._wrap_slot = wrap_slot
        try:
            dial(self.dealer, endpoint, keys)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"endpoint {endpoint!r} cannot be dialled ({error}): "
                "use tcp://HOST:PORT or ipc:///PATH"
            ) from None

    @property
    def claim(self) -> SlotClaim | None:
        """The claim that is on its way; its descriptor is to be polled."""
        return self._claim

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for room: POLLOUT tells when to ``flush``."""
        return bool(self._unsent)

    def send(self, message: ClientMessage) -> None:
        """Send a message as soon as there is room."""
        self._unsent.append(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        while self._unsent:
            try:
                self.dealer.send(encode(self._unsent[0]), zmq.DONTWAIT)
            except zmq.Again:  # not connected, or just not yet
                return
            self._unsent.popleft()

    def hear_connection(self) -> Iterator[events.Event]:
        """Yield what happened to the connection."""
        while self.monitor.poll(0):
            said = recv_monitor_message(self.monitor)
            event = said["event"]
            problem = self._watch.on_event(int(event), int(said["value"]), time.monotonic())
            if problem is not None:
                yield events.NodeIncompatible(self.number, problem)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield events.Connected(self.number)
            elif event == zmq.EVENT_DISCONNECTED:
                self._unsent.clear()
                yield events.Disconnected(self.number)
            elif event != zmq.EVENT_CONNECTED:
                yield events.AttemptFailed(self.number)

    def receive(self) -> tuple[NodeMessage, Sequence[zmq.Frame]] | None:
        """Return the next message and the frames that follow its header, None when there is none.

        Raises ProtocolError when it is nothing that a feeder says.
        """
        try:
            frames = [self.dealer.recv(zmq.DONTWAIT, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self.dealer.recv(copy=False))
        try:
            message = decode_from_node(frames[0].buffer)
        except VersionMismatch as error:
            raise ProtocolError(str(error)) from None
        except ProtocolError as error:
            raise ProtocolError(f"who is there does not speak as a feeder: {error}") from None
        if len(frames) > 1 and not isinstance(message, Chunk):
            raise ProtocolError(f"{type(message).__name__} came with frames it must not have")
        return message, frames[1:]

    def begin_claim(self, wanted: events.ClaimSlots) -> events.Event | None:
        """Claim a session's slots; return what came of it, if that is known already."""
        self.drop_claim()
        self._claimed = wanted
        try:
            self._claim = SlotClaim(wanted.door, wanted.session)
        except NotSharedError as error:
            return events.SlotsNotShared(self.number, wanted.session, str(error))
        return None

    def take_claim(self) -> events.Event | None:
        """Return what came of the claim, None while that is not known.

        Its descriptor can have been found ready as another's, which had the same number before.
        """
        session, claim = self._claimed.session, self._claim
        assert claim is not None, "it is polled while there is one"
        try:
            memory = claim.take(self._claimed.layout)
        except NotSharedError as error:
            self.drop_claim()
            return events.SlotsNotShared(self.number, session, str(error))
        if memory is None:
            return None
        self._claim = None  # its connection is the memory's
        slots = [self._wrap_slot(memory, number) for number in range(memory.layout.slots)]
        return events.SlotsMapped(self.number, session, slots)

    def drop_claim(self) -> None:
        """Give up the claim that is on its way, if there is one."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def close(self) -> None:
        """Close all sockets; what cannot be sent without waiting is dropped."""
        self.flush()
        self.drop_claim()
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close(FAREWELL_MS)

    def _set_options(self, hello: Hello) -> None:
        recipe, window, dealer = hello.recipe, hello.window, self.dealer
        dealer.linger = FAREWELL_MS
        dealer.immediate = True
        pixel_bytes = SlotLayout.of_recipe(recipe, slots=1).pixel_bytes
        dealer.maxmsgsize = max(MAX_NODE_HEADER_BYTES, pixel_bytes)
        dealer.rcvhwm = window * recipe.batch_size + 64  # were every chunk a single row
        dealer.sndhwm = 64
        dealer.reconnect_ivl = RECONNECT_MS
        dealer.reconnect_ivl_max = RECONNECT_MAX_MS
        dealer.handshake_ivl = HANDSHAKE_MS
        dealer.heartbeat_ivl = HEARTBEAT_MS
        dealer.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
