"""The one thread that owns the socket: carries messages between a node and the session.

It dials the node, hands what it hears to ``ClientSession``, sends what that asks for, and copies
the rows of chunks, once, from ZeroMQ's own memory into batch buffers; or, where it could map the
node's slots (``_lent``), copies nothing. It alone assigns buffers (in
``ClientSession.drain``) and writes them, one after the other, so the copy needs no lock.

ZeroMQ is told to queue nothing for a peer that is not there (IMMEDIATE), and its monitor tells when
the connection comes and goes: a greeting is sent once for each connection, never many into the
dark, and an error can say whether anybody was there at all. What arrives is bounded by the window,
in bytes; the high-water mark lies above that and never takes effect.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.errors import ConfigError, FeederError, ProtocolError, ResourceError
from feeder.handshake import MONITORED, HandshakeWatch, apply_client_keys
from feeder.slot_layout import SlotLayout
from feeder.wire import (
    MAX_NODE_HEADER_BYTES,
    Chunk,
    ClientMessage,
    NodeMessage,
    VersionMismatch,
    decode_from_node,
    encode,
)
from trainer_client._batch import BatchBuffers
from trainer_client._lent import Claimant
from trainer_client._session import ClientSession

FAREWELL_MS: Final = 200  # how long the last message may take to leave
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000  # a node that comes back is found within about a second
HANDSHAKE_MS: Final = 5000
HEARTBEAT_MS: Final = 2000  # a host that lost its power closes no connection: notice ourselves
HEARTBEAT_TIMEOUT_MS: Final = 10000
MESSAGES_IN_A_ROW: Final = 4  # then look at the clock and at the consumer again
IDLE_MS: Final = 60_000

_log = logging.getLogger(__name__)

_CONNECTION_EVENTS: Final = MONITORED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Pump:
    """What the I/O thread runs. Set ``closing`` and ring to end it."""

    def __init__(
        self,
        session: ClientSession,
        changed: threading.Condition,
        buffers: BatchBuffers,
        ring: socket.socket,
    ) -> None:
        self.closing = False
        self._session = session
        self._endpoint = session.job.endpoint
        self._watch = HandshakeWatch(self._endpoint, session.job.keys)
        self._changed = changed
        self._buffers = buffers
        self._ring = ring
        self._unsent: deque[ClientMessage] = deque()
        self._said = ""  # the last that was logged of how batches come

    def run(self) -> None:
        """Serve the connection until ``closing``; an error goes to the consumer."""
        try:
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                self._set_options(dealer)
                monitor = dealer.get_monitor_socket(_CONNECTION_EVENTS)
                try:
                    self._serve(dealer, monitor)
                finally:
                    dealer.disable_monitor()
                    monitor.close()
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(ResourceError(f"{self._endpoint}: the I/O thread broke down: {error!r}"))
            raise
        finally:
            self._ring.close()
            with self._changed:
                if self.closing:
                    self._session.let_go()  # after the Bye, or it would look like a death
                self._changed.notify_all()

    def _set_options(self, dealer: "zmq.Socket[bytes]") -> None:
        hello = self._session.job.hello
        recipe, window = hello.recipe, hello.window
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

    def _serve(self, dealer: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
        try:
            apply_client_keys(dealer, self._endpoint, self._session.job.keys)
            dealer.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"endpoint {self._endpoint!r} cannot be dialled ({error}): "
                "use tcp://HOST:PORT or ipc://PATH"
            ) from None
        poller = zmq.Poller()
        poller.register(self._ring, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        claimant = Claimant(self._session, self._changed, poller)
        while not self.closing:
            claimant.tend()
            wait_ms = self._send(dealer)
            self._say_how_batches_come()
            poller.register(dealer, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
            poller.poll(wait_ms)
            self._hear_ring()
            self._hear_monitor(monitor)
            self._hear_node(dealer)
            claimant.hear()
        claimant.close()
        with self._changed:
            self._unsent.extend(self._session.farewell())
        self._flush(dealer)

    def _send(self, dealer: "zmq.Socket[bytes]") -> int:
        """Send what the session asks for; return how many ms it has no wish of its own."""
        now_s = time.monotonic()
        with self._changed:
            self._session.tick(now_s)
            self._unsent.extend(self._session.drain(now_s))
            wait_s = self._session.due_s() - now_s
            self._changed.notify_all()
        self._flush(dealer)
        return IDLE_MS if wait_s * 1000 > IDLE_MS else max(1, int(wait_s * 1000))

    def _say_how_batches_come(self) -> None:
        """Log, once each time that it changes, whether batches are read in place."""
        session = self._session
        if session.welcome is None or session.awaits_slots:
            return
        said = (
            f"batches are copied over the socket: {session.copied_because}"
            if session.copied_because is not None
            else "batches are read in place, in the feeder's slots"
        )
        if said != self._said:
            self._said = said
            is_fallback = session.copied_because is not None and session.wants_slots
            _log.log(
                logging.WARNING if is_fallback else logging.INFO, "%s: %s", self._endpoint, said
            )

    def _flush(self, dealer: "zmq.Socket[bytes]") -> None:
        while self._unsent:
            try:
                dealer.send(encode(self._unsent[0]), zmq.DONTWAIT)
            except zmq.Again:  # not connected, or just not yet: POLLOUT tells
                return
            self._unsent.popleft()

    def _hear_ring(self) -> None:
        try:
            while self._ring.recv(4096):
                pass
        except BlockingIOError:
            return

    def _hear_monitor(self, monitor: "zmq.Socket[bytes]") -> None:
        while monitor.poll(0):
            said = recv_monitor_message(monitor)
            event = said["event"]
            problem = self._watch.hear(int(event), int(said["value"]), time.monotonic())
            if problem is not None:
                raise problem
            with self._changed:
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._session.connected(time.monotonic())
                elif event == zmq.EVENT_DISCONNECTED:
                    self._session.disconnected()
                    self._unsent.clear()
                elif event != zmq.EVENT_CONNECTED:
                    self._session.attempt_failed()

    def _hear_node(self, dealer: "zmq.Socket[bytes]") -> None:
        for _ in range(MESSAGES_IN_A_ROW):
            try:
                frames = [dealer.recv(zmq.DONTWAIT, copy=False)]
            except zmq.Again:
                return
            while frames[-1].more:
                frames.append(dealer.recv(copy=False))
            message = self._decode(frames[0])
            if isinstance(message, Chunk):
                self._store(message, frames[1:])
            elif len(frames) > 1:
                raise ProtocolError(
                    f"{self._endpoint}: {type(message).__name__} came with frames it must not have"
                )
            else:
                with self._changed:
                    self._session.heard(message, time.monotonic())

    def _decode(self, frame: zmq.Frame) -> NodeMessage:
        try:
            return decode_from_node(frame.buffer)
        except VersionMismatch as error:
            raise ProtocolError(f"{self._endpoint}: {error}") from None
        except ProtocolError as error:
            raise ProtocolError(f"{self._endpoint} does not speak as a feeder: {error}") from None

    def _store(self, chunk: Chunk, frames: Sequence[zmq.Frame]) -> None:
        with self._changed:
            sizes = [len(frame) for frame in frames]
            placement = self._session.place(chunk, sizes, time.monotonic())
        if placement is None:
            return
        pixels, labels, sample_ids = (frame.buffer for frame in frames)
        self._buffers[placement.buffer].write(placement.first, pixels, labels, sample_ids)
        with self._changed:
            self._session.stored(placement, time.monotonic())

    def _fail(self, error: FeederError) -> None:
        with self._changed:
            self._session.fail(error)
