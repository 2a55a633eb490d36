"""One turn with a client's sockets: do what is due, wait for messages, pass them to the session.

The rows of chunks are copied once, from ZeroMQ's own memory into batch buffers. Buffers are
assigned (in the session's ClockAdvanced) and written here only, so the copy needs no lock.

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
from feeder.client.host_memory import BatchBuffer, NotSharedError, claim_slots
from feeder.errors import FeederError, ProtocolError
from feeder.process.name_lookup import host_name_in
from feeder.security.keys import ClientKeys
from feeder.wire.messages import VersionMismatch

IDLE_MS: Final = 60_000
AWAY_S: Final = 1.0  # without a turn: threads take turns more often, so the process was stopped
CATCH_UP_MS: Final = 100  # for libzmq's thread, which was stopped as well, to read what waits
_READABLE: Final = int(zmq.POLLIN)  # a plain number: arithmetic on the enumeration is slow

_log = logging.getLogger(__name__)

_Frames = Sequence[zmq.Frame]


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
        ``wakeup`` ends a wait."""
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
        self._readers: dict[zmq.Socket[bytes] | int, Callable[[float], object]] = {
            wakeup.fileno(): lambda _now_s: wakeup.recv(4096)
        }
        self._poller = zmq.Poller()
        self._poller.register(wakeup.fileno(), _READABLE)
        self._polled_s = time.monotonic()

    def turn(self, wait_ms: int) -> None:
        """Do what is due, wait for events and handle them; ``wait_ms`` is the longest wait."""
        self.is_waiting = False
        session, began_s = self._session, time.monotonic()
        if self.listed is not None:
            self._follow_list(began_s)
        if began_s - self._polled_s > AWAY_S:
            wait_ms = CATCH_UP_MS  # messages that wait come before anything counts as late
        else:
            if session.is_clock_due() or began_s >= session.due_s:
                clock = events.ClockAdvanced(time.process_time())
                self._handle(clock, began_s)  # which makes the requests
            wait_ms = min(wait_ms, max(1, int(min(session.due_s - began_s, 1e3) * 1000)))
        self.is_waiting = True
        ready = self._poller.poll(wait_ms)
        self.is_waiting = False
        now_s = time.monotonic()
        self._polled_s = min(now_s, began_s + wait_ms / 1000)  # a stop in the wait counts as away
        for source, _ in ready:
            read = self._readers.get(source)
            if read is not None:  # else an earlier event has closed its link
                read(now_s)

    def say_bye(self) -> None:
        with self._lock:
            byes = self._session.byes()
        self._execute(byes, time.monotonic())

    def close(self) -> None:
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

    def _follow_list(self, now_s: float) -> None:
        with self._lock:
            listed, self.listed = self.listed or {}, None
        if self._context is None:
            name_threads = NAME_THREADS if any(map(host_name_in, listed)) else 1
            self._context = open_context(self._session.job.name, name_threads)
        self._handle(events.EndpointsListed(listed), now_s)

    def _read_connection(self, link: Link, now_s: float) -> None:
        for event in [*link.read_connection()]:  # before one of them closes the link
            if isinstance(event, events.Disconnected):  # after all that came before it
                while link.number in self._links and self._read_message(link, now_s):
                    pass
            self._handle(event, now_s)

    def _read_message(self, link: Link, now_s: float) -> bool:
        try:
            received = link.receive()
        except ProtocolError as error:
            reason = str(error)
            if not isinstance(error, VersionMismatch):
                reason = f"what answers there is not a feeder: {reason}"
            self._handle(events.NodeIncompatible(link.number, ProtocolError(reason)), now_s)
            return False
        if received is None:
            return False
        message, frames = received
        sizes = [len(frame) for frame in frames] if frames else ()
        self._handle(events.MessageReceived(link.number, message, sizes), now_s, frames)
        return True

    # --- What the session decides -------------------------------------------------------------

    def _handle(self, event: events.Event, now_s: float, frames: _Frames = ()) -> None:
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
                    self._buffer(buffer).write(chunk, rows)
                    self._handle(events.ChunkStored(number, chunk), now_s)
                case events.Send(number, message):
                    self._links[number].send(message)
                case events.Dial(number, endpoint):
                    self._dial(number, endpoint, now_s)
                case events.HangUp(number):
                    self._hang_up(number)
                case events.ClaimSlots():
                    self._claim(instruction)
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
        self._readers[link.monitor] = partial(self._read_connection, link)
        self._readers[link.dealer] = partial(self._read_message, link)
        for source in (link.monitor, link.dealer):  # read in this order
            self._poller.register(source, _READABLE)

    def _hang_up(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:  # else it could not be dialled
            for source in (link.monitor, link.dealer):
                del self._readers[source]
                self._poller.unregister(source)
            link.close()

    def _claim(self, wanted: events.ClaimSlots) -> None:
        try:
            memory = claim_slots(wanted.path, wanted.session, wanted.layout)
            answer = events.ClaimAnswered(wanted.link, wanted.session, memory.slots())
        except NotSharedError as error:
            answer = events.ClaimAnswered(wanted.link, wanted.session, refusal=str(error))
        self._handle(answer, time.monotonic())
