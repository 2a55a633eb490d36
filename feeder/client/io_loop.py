"""One turn with a client's sockets: do what is due, wait for messages, pass them to the session.

The rows of chunks are copied once, from ZeroMQ's own memory into batch buffers. Buffers are
assigned (in the session's ClockAdvanced) and written here only, so the copy needs no lock.

Time. A turn has the time at which it begins, for what is due, and the time at which its wait ends,
for all messages. After a stop of this process, which is seen by either, waiting messages are read
before anything counts as late.

Invariant: one thread at a time is in here (see ``transport``); the session has a lock of its own,
for the consumer's calls.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import zmq

from feeder.client.connection import NAME_THREADS, Context, Link, open_context
from feeder.client.core import events
from feeder.client.core.session import ClientSession
from feeder.client.host_memory import BatchBuffer, NotSharedError, claim_slots, take_slots
from feeder.errors import FeederError, ProtocolError
from feeder.process.name_lookup import host_name_in
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Chunk

MESSAGES_IN_A_ROW: Final = 4  # of one link, before the clock and the other links have their turn
IDLE_MS: Final = 60_000
STALL_S: Final = 0.5  # a poll that ends this late: the process was stopped, and messages wait
AWAY_S: Final = 2.0  # without a turn, which means the same: threads take turns more often
CATCH_UP_MS: Final = 100  # for libzmq's thread, which was stopped as well, to read them
_READABLE: Final = int(zmq.POLLIN)  # a plain number: arithmetic on the enumeration is slow

_log = logging.getLogger(__name__)

_Frames = Sequence[zmq.Frame]
_Source = zmq.Socket[bytes] | int


class IoLoop:
    """The links of a client; ``turn`` serves them once."""

    def __init__(
        self,
        session: ClientSession,
        lock: threading.RLock,
        buffer: Callable[[int], BatchBuffer],
        keys: ClientKeys | None,
        wakeup: socket.socket,
    ) -> None:
        """``lock`` is the session's; ``buffer`` gives the batch buffer of a number; a byte in
        ``wakeup``, which does not block, ends a wait."""
        self.listed: Mapping[str, str] | None = None
        """Endpoints with their names, to be passed to the session; set them under the lock, then
        write a byte."""
        self.is_waiting = False
        """Whether a turn waits for messages: an exception can leave that without harm."""
        self._session = session
        self._lock = lock
        self._buffer = buffer
        self._keys = keys
        self._wakeup = wakeup
        self._context: Context | None = None
        self._links: dict[int, Link] = {}
        self._claims: dict[int, socket.socket] = {}  # pending ones, by link
        self._readers: dict[_Source, Callable[[float], None]] = {}
        self._poller = zmq.Poller()
        self._polled_s = time.monotonic()
        self._watch(wakeup.fileno(), self._drain_wakeups)

    def turn(self, wait_ms: int) -> None:
        """Do what is due, wait for events and handle them; ``wait_ms`` is the longest wait."""
        self.is_waiting = False
        session, now_s = self._session, time.monotonic()
        if self.listed is not None:
            self._follow_list(now_s)
        if now_s - self._polled_s > AWAY_S:
            wait_ms = CATCH_UP_MS
        else:
            if session.is_clock_due() or now_s >= session.due_s:
                clock = events.ClockAdvanced(time.process_time())
                self._handle(clock, now_s)  # which makes the requests
            wait_ms = min(wait_ms, max(1, int(min(session.due_s - now_s, 1e3) * 1000)))
        self.is_waiting = True
        ready = self._poller.poll(wait_ms)
        self.is_waiting = False
        self._polled_s = time.monotonic()
        if not ready and self._polled_s > now_s + wait_ms / 1000 + STALL_S:
            ready = self._poller.poll(CATCH_UP_MS)
            self._polled_s = time.monotonic()
        for source, _ in ready:
            read = self._readers.get(source)
            if read is not None:  # else an earlier event has closed its link
                read(self._polled_s)

    def say_bye(self) -> None:
        with self._lock:
            byes = self._session.byes()
        self._execute(byes, time.monotonic())

    def close(self) -> None:
        for claim in self._claims.values():
            claim.close()
        for link in self._links.values():
            link.close()
        self._readers.clear()  # they refer to this object, and so to the buffers
        self._wakeup.close()

    def wait_until_sent(self) -> None:
        """Wait, once closed, until the last messages have left, or LINGER_MS have passed.

        While a name server is silent it waits for that, too.
        """
        if self._context is not None:
            self._context.term()

    # --- Reading ------------------------------------------------------------------------------

    def _watch(self, source: _Source, read: Callable[[float], None]) -> None:
        self._readers[source] = read
        self._poller.register(source, _READABLE)

    def _unwatch(self, source: _Source) -> None:
        del self._readers[source]
        self._poller.unregister(source)

    def _follow_list(self, now_s: float) -> None:
        with self._lock:
            listed, self.listed = self.listed or {}, None
        if self._context is None:
            name_threads = NAME_THREADS if any(map(host_name_in, listed)) else 1
            self._context = open_context(self._session.job.name, name_threads)
        self._handle(events.EndpointsListed(listed), now_s)

    def _drain_wakeups(self, _now_s: float) -> None:
        try:
            self._wakeup.recv(4096)
        except BlockingIOError:
            return

    def _read_connection(self, link: Link, now_s: float) -> None:
        for event in link.read_connection():
            if isinstance(event, events.Disconnected):  # after all that came before it
                while link.has_message and self._read_message(link, now_s) is not None:
                    pass
            self._handle(event, now_s)

    def _read_messages(self, link: Link, now_s: float) -> None:
        for _ in range(MESSAGES_IN_A_ROW):
            # A message without rows is soon handled: the next one has a turn of its own.
            if not self._read_message(link, now_s) or not link.has_message:
                break

    def _read_message(self, link: Link, now_s: float) -> bool | None:
        """Handle one message; return whether it had rows, None if there was no valid one."""
        try:
            received = link.receive()
        except ProtocolError as error:
            self._handle(events.NodeIncompatible(link.number, error), now_s)
            return None
        if received is None:
            return None
        message, frames = received
        sizes = [len(frame) for frame in frames] if frames else ()
        self._handle(events.MessageReceived(link.number, message, sizes), now_s, frames)
        return isinstance(message, Chunk)

    # --- What the session decides -------------------------------------------------------------

    def _handle(self, event: events.Event, now_s: float, frames: _Frames = ()) -> None:
        """Have the session handle an event, and execute what follows; ``frames`` are a chunk's."""
        with self._lock:
            instructions = self._session.handle(event, now_s)
        if instructions:
            self._execute(instructions, now_s, frames)

    def _execute(
        self, instructions: Sequence[events.Instruction], now_s: float, frames: _Frames = ()
    ) -> None:
        for instruction in instructions:
            match instruction:
                case events.Store(number, chunk, buffer):
                    rows = [frame.buffer for frame in frames]
                    self._buffer(buffer).write(chunk.first, *rows)
                    self._handle(events.ChunkStored(number, chunk), now_s)
                case events.Send(number, message):
                    self._links[number].send(message)
                case events.Dial(number, endpoint):
                    self._dial(number, endpoint, now_s)
                case events.HangUp(number):
                    self._hang_up(number)
                case events.ClaimSlots():
                    self._claim(instruction, now_s)
                case events.Log(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def _dial(self, number: int, endpoint: str, now_s: float) -> None:
        assert self._context is not None, "endpoints were listed"
        try:
            link = Link(number, endpoint, self._session.job.hello, self._keys, self._context)
        except FeederError as error:
            self._handle(events.NodeIncompatible(number, error), now_s)
            return
        self._links[number] = link
        self._watch(link.monitor, partial(self._read_connection, link))  # read in this order
        self._watch(link.dealer, partial(self._read_messages, link))

    def _hang_up(self, number: int) -> None:
        self._drop_claim(number)
        link = self._links.pop(number, None)
        if link is not None:  # else it could not be dialled
            self._unwatch(link.monitor)
            self._unwatch(link.dealer)
            link.close()

    def _claim(self, wanted: events.ClaimSlots, now_s: float) -> None:
        self._drop_claim(wanted.link)
        try:
            claim = claim_slots(wanted.path, wanted.session)
        except NotSharedError as error:
            self._handle(
                events.ClaimAnswered(wanted.link, wanted.session, refusal=str(error)), now_s
            )
            return
        self._claims[wanted.link] = claim
        self._watch(claim.fileno(), partial(self._take_claim, wanted, claim))

    def _take_claim(self, wanted: events.ClaimSlots, claim: socket.socket, now_s: float) -> None:
        try:
            memory = take_slots(claim, wanted.layout)
        except NotSharedError as error:
            self._drop_claim(wanted.link)
            self._handle(
                events.ClaimAnswered(wanted.link, wanted.session, refusal=str(error)), now_s
            )
            return
        if memory is not None:  # else this event was a former claim's, with the same descriptor
            self._unwatch(claim.fileno())
            del self._claims[wanted.link]  # not closed: its connection is the memory's
            self._handle(events.ClaimAnswered(wanted.link, wanted.session, memory.slots()), now_s)

    def _drop_claim(self, number: int) -> None:
        claim = self._claims.pop(number, None)
        if claim is not None:
            self._unwatch(claim.fileno())
            claim.close()
