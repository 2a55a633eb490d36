"""One endpoint's sockets: a DEALER, its monitor, and the claim of the session's slots.

The monitor reports when the connection comes and goes: so nothing is sent while the node is away,
and an error can state whether anything has accepted the connection. IMMEDIATE stays off, because
with it libzmq drops what has arrived unread when a connection ends; what was sent before the end
was noticed reaches the next connection, where it is refused, as its session is over. Arriving data
is bounded by the window, in bytes; the high-water mark lies above that and never takes effect.

Invariant: one thread uses this object. Chunks are left to the caller, which knows where their rows
go.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.client.contexts import Context
from feeder.client.core import events
from feeder.client.host_memory import NotSharedError, SlotBuffer, SlotClaim
from feeder.errors import ConfigError, ProtocolError, ResourceError
from feeder.plan.labels import INDEX_LABELS
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

LINGER_MS: Final = 200  # time for the last message to leave
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000  # a node that comes back is found within about a second
HANDSHAKE_MS: Final = 5000
HEARTBEAT_MS: Final = 2000  # a host that loses power closes no connection
HEARTBEAT_TIMEOUT_MS: Final = 10000

_EVENTS: Final = int(zmq.EVENTS)  # plain numbers: arithmetic on the enumerations is slow
_READABLE: Final = int(zmq.POLLIN)
_DONTWAIT: Final = int(zmq.DONTWAIT)
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
        threads: int,
    ) -> None:
        """Dial; ConfigError for what is no endpoint, ResourceError without a socket.

        ``threads`` is the ZMQ_AFFINITY: the I/O threads of ``context`` to use.
        """
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
        dealer.heartbeat_ivl = HEARTBEAT_MS
        dealer.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
        dealer.set(zmq.AFFINITY, threads)
        self._unsent: deque[ClientMessage] = deque()
        self._claim: SlotClaim | None = None
        self._claimed = events.ClaimSlots(
            number, 0, "", SlotLayout(slots=0, batch_size=0, image_size=0)
        )
        self._watch = HandshakeWatch(endpoint, keys)
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
        """The pending claim; its descriptor is to be polled."""
        return self._claim

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for room: ``flush`` at POLLOUT."""
        return bool(self._unsent)

    @property
    def has_message(self) -> bool:
        """Whether another message is here; cheaper than an attempt to receive it."""
        return bool(cast(int, self.dealer.get(_EVENTS)) & _READABLE)

    def send(self, message: ClientMessage) -> None:
        """Send a message as soon as there is room."""
        self._unsent.append(message)
        self.flush()

    def flush(self) -> None:
        """Send queued messages."""
        while self._unsent:
            try:
                self.dealer.send(encode(self._unsent[0]), _DONTWAIT)
            except zmq.Again:  # no room
                return
            self._unsent.popleft()

    def read_connection(self) -> Iterator[events.Event]:
        """Yield what happened to the connection."""
        while self.monitor.poll(0):
            message = recv_monitor_message(self.monitor)
            event = message["event"]
            problem = self._watch.on_event(int(event), int(message["value"]), time.monotonic())
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
        """Return the next message and the frames after its header, None when there is none.

        Raises ProtocolError for what is no message of a feeder.
        """
        try:
            frames = [self.dealer.recv(_DONTWAIT, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self.dealer.recv(copy=False))
        try:
            message = decode_from_node(frames[0].buffer)
        except VersionMismatch as error:
            raise ProtocolError(str(error)) from None
        except ProtocolError as error:
            raise ProtocolError(f"what answers there is not a feeder: {error}") from None
        if len(frames) > 1 and not isinstance(message, Chunk):
            raise ProtocolError(f"{type(message).__name__} came with frames it must not have")
        return message, frames[1:]

    def begin_claim(self, wanted: events.ClaimSlots) -> events.Event | None:
        """Claim a session's slots; return the outcome if it is already known."""
        self.drop_claim()
        self._claimed = wanted
        try:
            self._claim = SlotClaim(wanted.path, wanted.session)
        except NotSharedError as error:
            return events.SlotsNotShared(self.number, wanted.session, str(error))
        return None

    def take_claim(self) -> events.SlotsMapped | events.SlotsNotShared | None:
        """Return the outcome of the claim, None while it is pending.

        A poll may report its descriptor for a former claim, whose number it has reused.
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
        slots = [SlotBuffer(memory, number) for number in range(memory.layout.slots)]
        return events.SlotsMapped(self.number, session, slots)

    def drop_claim(self) -> None:
        """Cancel the pending claim, if there is one."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def close(self) -> None:
        """Close all sockets; what cannot be sent without waiting is dropped."""
        self.flush()
        self.drop_claim()
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close(LINGER_MS)

    def _set_options(self, hello: Hello) -> None:
        recipe, window, dealer = hello.recipe, hello.window, self.dealer
        dealer.linger = LINGER_MS
        pixel_bytes = SlotLayout.of_recipe(recipe, INDEX_LABELS, slots=1).pixel_bytes
        dealer.maxmsgsize = max(MAX_NODE_HEADER_BYTES, pixel_bytes)
        dealer.rcvhwm = window * recipe.batch_size + 64  # were every chunk a single row
        dealer.sndhwm = 64
        dealer.reconnect_ivl = RECONNECT_MS
        dealer.reconnect_ivl_max = RECONNECT_MAX_MS
        dealer.handshake_ivl = HANDSHAKE_MS
