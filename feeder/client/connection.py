"""The sockets of one endpoint, a DEALER and its monitor, and the contexts that they live in.

The monitor reports when the connection comes and goes, so nothing is sent while the node is away.
IMMEDIATE stays off, because with it libzmq drops what has arrived unread when a connection ends;
what was sent before the end was noticed reaches the next connection, where it is refused, as its
session is over. The window bounds arriving data; the high-water mark never takes effect.

libzmq looks a host name up in the connection's I/O thread, each time it connects, and that thread's
other connections wait: 5 s and more while a name server is silent. So a context for links has I/O
threads for names after the first one, which is for addresses. libzmq aborts the process when
descriptors or threads run out, so both are acquired and released as a check first.

Invariant: one thread uses a link or a context.
"""

import contextlib
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final

import zmq

from feeder.client.core import events
from feeder.errors import ConfigError, ResourceError
from feeder.plan.packing import pixel_layout_of
from feeder.process.name_lookup import host_name_in
from feeder.process.shortage import ZMQ_THREADS, check_threads
from feeder.security.handshake import MONITORED, HandshakeWatch, dial
from feeder.security.keys import ClientKeys
from feeder.wire.messages import (
    MAX_NODE_HEADER_BYTES,
    ClientMessage,
    Hello,
    NodeMessage,
    decode_from_node,
    encode,
)

Context = zmq.Context[zmq.Socket[bytes]]

LINGER_MS: Final = 200  # time for the last message to leave
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000  # a node that comes back is found within about a second
CONNECT_MS: Final = 2000  # then a host that is off counts as away; the kernel's limit is minutes
HANDSHAKE_MS: Final = 5000
HEARTBEAT_MS: Final = 2000  # a host that loses power closes no connection
HEARTBEAT_TIMEOUT_MS: Final = 10000

NAME_THREADS: Final = 7  # for the names of a list; 1 for those that join a list of addresses

_DESCRIPTORS: Final = 12  # of a context with one I/O thread, a connection and a claim of slots
_THREAD_DESCRIPTORS: Final = 2  # of each further I/O thread

_DONTWAIT: Final = int(zmq.DONTWAIT)  # a plain number: arithmetic on the enumeration is slow
_MONITOR_EVENT: Final = struct.Struct("=hi")  # zmq_socket_monitor(3): the event and its value
_CONNECTION_EVENTS: Final = MONITORED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Link:
    """The connection to one endpoint; ``close()`` lets the last messages leave."""

    def __init__(
        self,
        number: int,
        endpoint: str,
        hello: Hello | None,
        keys: ClientKeys | None,
        context: Context,
        *,
        address: str = "",
    ) -> None:
        """Dial; ConfigError for what is no endpoint, ResourceError without a socket.

        Only with a ``hello`` there are batches. ``address`` is the endpoint with its host name
        resolved; without it ``context`` has two I/O threads or more.
        """
        self.number = number
        message_bytes, messages = MAX_NODE_HEADER_BYTES, 64
        if hello is not None:
            recipe = hello.recipe
            largest = max(size for each in recipe.over_epochs() for size in each.crop_sizes)
            image_bytes = pixel_layout_of(recipe.packing).image_bytes(largest)
            message_bytes = max(message_bytes, recipe.batch_size * image_bytes)
            messages += hello.window * recipe.batch_size  # were every chunk a single row
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
        thread = 0
        if not address and host_name_in(endpoint):
            thread = 1 + number % (context.get(zmq.IO_THREADS) - 1)
        for option, value in (
            (zmq.LINGER, LINGER_MS),
            (zmq.MAXMSGSIZE, message_bytes),
            (zmq.RCVHWM, messages),
            (zmq.SNDHWM, 0),  # no limit: the window and the interval of pings bound what is sent
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
            (zmq.CONNECT_TIMEOUT, CONNECT_MS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
            (zmq.AFFINITY, 1 << thread),
        ):
            dealer.set(option, value)
        self._watch = HandshakeWatch(endpoint, keys, address=address)
        try:
            dial(dealer, address or endpoint, keys)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"{endpoint!r} is no endpoint ({error.strerror}): write tcp://HOST:PORT or "
                "ipc:///PATH"
            ) from None

    def send(self, message: ClientMessage) -> None:
        """Send a message, without waiting."""
        frame = encode(message, is_checked=isinstance(message, Hello))  # Transport has checked it
        with contextlib.suppress(zmq.Again):  # a connection given up, which the monitor reports
            self.dealer.send(frame, _DONTWAIT)

    def receive(self) -> tuple[NodeMessage, Sequence[zmq.Frame]] | None:
        """The next message and the frames after its header, None when there is none.

        Raises ProtocolError for what is no message of a feeder, VersionMismatch for another
        version's.
        """
        try:
            frames = [self.dealer.recv(_DONTWAIT, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self.dealer.recv(copy=False))
        return decode_from_node(frames[0].buffer), frames[1:]

    def read_connection(self) -> Iterator[events.LinkEvent]:
        """Yield what happened to the connection."""
        while True:
            try:
                event, value = _MONITOR_EVENT.unpack(self.monitor.recv(_DONTWAIT))
            except zmq.Again:
                return
            self.monitor.recv()  # the second frame: the address
            problem = self._watch.on_event(event, value, time.monotonic())
            if problem is not None:
                yield events.NodeIncompatible(self.number, problem)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield events.Connected(self.number)
            elif event != zmq.EVENT_CONNECTED:
                yield events.Disconnected(self.number)

    def close(self) -> None:
        """Close both sockets."""
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close()


def open_context(name: str, further_threads: int = 0) -> Context:
    """A context with one I/O thread or more; ResourceError, about ``name``, without room for it."""
    spare: list[int] = []
    try:
        for _ in range(_DESCRIPTORS + _THREAD_DESCRIPTORS * further_threads):
            spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise no_room(name) from error
    finally:
        for fd in spare:
            os.close(fd)
    check_threads(ZMQ_THREADS + further_threads)
    return zmq.Context(1 + further_threads)


def no_room(name: str) -> ResourceError:
    """The error for a process without spare descriptors."""
    return ResourceError(
        f"{name}: there is no room for a connection: raise the limit on open files (ulimit -n)"
    )
