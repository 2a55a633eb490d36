"""One turn with a client's sockets: do what is due, wait for messages, pass them to the session.

A turn keeps a link to each endpoint, and copies the rows of chunks, once, from ZeroMQ's own memory
into batch buffers; where a node's slots are mapped it copies nothing. Buffers are assigned (in the
session's ClockAdvanced) and written here only, so the copy needs no lock.

Invariant: one thread at a time is in here (see ``io_thread``); the session has a lock of its own,
for the consumer's calls.
"""

import logging
import socket
import threading
import time
from collections.abc import Container, Mapping, Sequence
from typing import Final

import zmq

from feeder.client.connection import LINGER_MS, Link
from feeder.client.contexts import LinkContext
from feeder.client.core import events
from feeder.client.core.session import ClientSession
from feeder.client.host_memory import BatchBuffers
from feeder.errors import FeederError, ProtocolError
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Chunk

MESSAGES_IN_A_ROW: Final = 4  # of one link, before the clock and the other links have their turn
IDLE_MS: Final = 60_000
STALL_S: Final = 0.5
"""A poll that ends this late means that the process was stopped: messages are waiting."""

CATCH_UP_MS: Final = 100
"""Time for libzmq's thread, which was stopped as well, to read them."""

_READABLE: Final = int(zmq.POLLIN)  # plain numbers: arithmetic on the enumeration is slow
_WRITABLE: Final = int(zmq.POLLOUT)
_CLOCK_ADVANCED: Final = events.ClockAdvanced()

_log = logging.getLogger(__name__)

_Frames = Sequence[zmq.Frame]


class IoLoop:
    """The links of a client; ``turn`` serves them once."""

    def __init__(
        self,
        session: ClientSession,
        lock: threading.RLock,
        buffers: BatchBuffers,
        keys: ClientKeys | None,
        wakeup: socket.socket,
    ) -> None:
        """``lock`` is the session's; a byte in ``wakeup``, which does not block, ends a wait."""
        self.listed: Mapping[str, str] | None = None
        """Endpoints with their names, to be passed to the session; set them under the lock, then
        write a byte."""
        self.is_waiting = False
        """Whether a turn waits for messages: an exception can leave that without harm."""
        self._session = session
        self._lock = lock
        self._buffers = buffers
        self._keys = keys
        self.wakeup_fd = wakeup.fileno()
        self._wakeup = wakeup
        self._context: LinkContext | None = None
        self._links: dict[int, Link] = {}
        self._crowded: set[Link] = set()  # links that wait for room to send
        self._poller = zmq.Poller()
        self._poller.register(self.wakeup_fd, _READABLE)
        self._now_s = time.monotonic()

    def turn(self, wait_ms: int) -> None:
        """Do what is due, wait for events and handle them; ``wait_ms`` is the longest wait."""
        self.is_waiting = False
        if self.listed is not None:
            self._follow_list()
        if self._session.is_clock_due() or time.monotonic() >= self._session.due_s:
            self._session.cpu_s = time.process_time()
            self._handle(_CLOCK_ADVANCED)  # which makes the requests
        wait_s = self._session.due_s - time.monotonic()
        if wait_s * 1000 < wait_ms:
            wait_ms = max(1, int(wait_s * 1000))
        self.is_waiting = True
        ready = self._poll(wait_ms)
        self.is_waiting = False
        # One time for the whole turn: after a stop, waiting messages are read before a timeout.
        self._now_s = time.monotonic()
        if self.wakeup_fd in ready:
            self._drain_wakeups()
        for link in list(self._links.values()):
            if link.number in self._links:  # else an earlier link's event has closed it
                self._read_link(link, ready)

    def say_bye(self) -> None:
        """Send the last messages."""
        with self._lock:
            byes = self._session.byes()
        self._execute(byes)

    def close(self) -> None:
        """Close all sockets."""
        for link in self._links.values():
            link.close()
        if self._context is not None:
            self._context.close()
        self._wakeup.close()

    def _follow_list(self) -> None:
        with self._lock:
            listed, self.listed = self.listed or {}, None
        if self._context is None:
            self._context = LinkContext(self._session.job.name, LINGER_MS, listed)
        names = {endpoint: name for endpoint, name in listed.items() if name}
        self._handle(events.EndpointsListed(tuple(listed), names))

    def _poll(self, wait_ms: int) -> set[object]:
        """Return the sources that are ready, at the latest after ``wait_ms``."""
        due_s = time.monotonic() + wait_ms / 1000
        found = self._poller.poll(wait_ms)
        if not found and time.monotonic() - due_s > STALL_S:
            found = self._poller.poll(CATCH_UP_MS)
        return {source for source, _ in found}

    def _drain_wakeups(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            return

    def _read_link(self, link: Link, ready: Container[object]) -> None:
        if link.monitor in ready:
            for event in link.read_connection():
                if isinstance(event, events.Disconnected):  # after all that came before it
                    while link.has_message and self._read_message(link):
                        pass
                self._handle(event)
        if link.dealer in ready:
            if link in self._crowded:
                link.flush()
                self._watch_room(link)
            for _ in range(MESSAGES_IN_A_ROW):
                if not (self._read_message(link) and link.has_message):
                    break
        if link.claim is not None and (number := link.claim.fileno()) in ready:
            outcome = link.take_claim()
            if outcome is not None:
                self._poller.unregister(number)
                self._handle(outcome)

    def _read_message(self, link: Link) -> bool:
        """Handle one message; return whether there was a valid one."""
        try:
            received = link.receive()
        except ProtocolError as error:
            self._handle(events.NodeIncompatible(link.number, error))
            return False
        if received is None:
            return False
        message, frames = received
        if isinstance(message, Chunk):
            sizes = [len(frame) for frame in frames]
            self._handle(events.ChunkArrived(link.number, message, sizes), frames)
        else:
            self._handle(events.MessageReceived(link.number, message))
        return True

    def _handle(self, event: events.Event, frames: _Frames = ()) -> None:
        """Have the session handle an event, and execute what follows; ``frames`` are a chunk's."""
        with self._lock:
            instructions = self._session.handle(event, self._now_s)
        self._execute(instructions, frames)

    def _execute(self, instructions: Sequence[events.Instruction], frames: _Frames = ()) -> None:
        for instruction in instructions:
            match instruction:
                case events.Store(placement):
                    rows = (frame.buffer for frame in frames)
                    self._buffers[placement.buffer].write(placement.first, *rows)
                    self._handle(events.ChunkStored(placement))
                case events.Send(number, message):
                    link = self._links[number]
                    link.send(message)
                    if link.has_unsent:
                        self._watch_room(link)
                case events.Dial(number, endpoint):
                    self._dial(number, endpoint)
                case events.HangUp(number):
                    self._hang_up(number)
                case events.ClaimSlots(number):
                    self._claim(self._links[number], instruction)
                case events.DropClaim(number):
                    self._drop_claim(self._links[number])
                case events.Log(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def _watch_room(self, link: Link) -> None:
        """Poll for room to send as long as messages wait for it."""
        if link.has_unsent:
            self._crowded.add(link)
            self._poller.register(link.dealer, _READABLE | _WRITABLE)
        else:
            self._crowded.discard(link)
            self._poller.register(link.dealer, _READABLE)

    def _dial(self, number: int, endpoint: str) -> None:
        assert self._context is not None, "endpoints were listed"
        try:
            link = Link(
                number,
                endpoint,
                self._session.job.hello,
                self._keys,
                self._context.context,
                self._context.choose_threads(endpoint),
            )
        except FeederError as error:
            self._handle(events.NodeIncompatible(number, error))
            return
        self._links[number] = link
        self._poller.register(link.monitor, _READABLE)
        self._poller.register(link.dealer, _READABLE)

    def _hang_up(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:  # else it could not be dialled
            self._drop_claim(link)
            self._crowded.discard(link)
            self._poller.unregister(link.monitor)
            self._poller.unregister(link.dealer)
            link.close()

    def _claim(self, link: Link, wanted: events.ClaimSlots) -> None:
        self._drop_claim(link)
        outcome = link.begin_claim(wanted)
        if outcome is not None:
            self._handle(outcome)
        elif link.claim is not None:
            self._poller.register(link.claim.fileno(), _READABLE)

    def _drop_claim(self, link: Link) -> None:
        if link.claim is not None:
            self._poller.unregister(link.claim.fileno())
            link.drop_claim()
