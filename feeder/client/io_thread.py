"""The one thread that owns the sockets: brings events to the session and executes its instructions.

It keeps a link to each endpoint, and copies the rows of chunks, once, from ZeroMQ's own memory into
batch buffers; where a node's slots are mapped it copies nothing. Only this thread assigns buffers
(in the session's ClockAdvanced) and writes them, one after the other, so the copy needs no lock.
"""

import logging
import socket
import threading
import time
from collections.abc import Container, Sequence
from typing import Final, Protocol

import zmq

from feeder.client.connection import LINGER_MS, Link, WrapSlot
from feeder.client.contexts import LinkContext
from feeder.client.core import events
from feeder.client.core.session import ClientSession
from feeder.errors import FeederError, ProtocolError, ResourceError
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Chunk

MESSAGES_IN_A_ROW: Final = 4  # of one link, before the clock and the consumer have their turn
IDLE_MS: Final = 60_000
STALL_S: Final = 0.5
"""A poll that ends this late means that the process was stopped: messages are waiting."""

CATCH_UP_MS: Final = 100
"""Time for libzmq's thread, which was stopped as well, to read them."""

_log = logging.getLogger(__name__)

_Frames = Sequence[zmq.Frame]
Bytes = bytes | memoryview


class RowBuffer(Protocol):
    """Host memory for the rows of one batch."""

    def write(self, first: int, pixels: Bytes, labels: Bytes, sample_ids: Bytes) -> None:
        """Copy a chunk's frames to the rows from ``first`` on; their sizes are checked."""
        ...


class BatchBuffers(Protocol):
    """The buffers of a client, by number."""

    def __getitem__(self, number: int) -> RowBuffer: ...


class IoLoop:
    """What the I/O thread runs. Set ``closing`` and write to the wake-up socket to end it."""

    def __init__(
        self,
        session: ClientSession,
        changed: threading.Condition,
        buffers: BatchBuffers,
        wrap_slot: WrapSlot,
        keys: ClientKeys | None,
        wakeup: socket.socket,
    ) -> None:
        self.closing = False
        self.listed: tuple[str, ...] | None = None
        """Endpoints to be passed to the session; set them under the lock, then wake the thread."""
        self._session = session
        self._changed = changed
        self._buffers = buffers
        self._wrap_slot = wrap_slot
        self._keys = keys
        self._wakeup = wakeup
        self._links: dict[int, Link] = {}
        self._poller = zmq.Poller()
        self._now_s = time.monotonic()
        self._wakeup_fd = wakeup.fileno()
        self._poller.register(self._wakeup_fd, zmq.POLLIN)

    def run(self) -> None:
        """Serve the connections until ``closing``; the consumer's next call raises any failure."""
        name = self._session.job.name
        try:
            self._context = LinkContext(name, LINGER_MS, self.listed or ())
            try:
                self._serve()
            finally:
                for link in self._links.values():
                    link.close()
                self._context.close()
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(ResourceError(f"{name}: the I/O thread failed: {error!r}"))
            raise
        finally:
            self._wakeup.close()
            with self._changed:
                if self.closing:
                    self._session.release_slots()  # before the Bye it would look like a crash
                self._changed.notify_all()

    def _serve(self) -> None:
        while not self.closing:
            with self._changed:
                listed, self.listed = self.listed, None
            if listed is not None:
                self._handle(events.EndpointsListed(listed))
            wait_ms = self._advance_clock()
            for link in self._links.values():
                self._poller.register(link.dealer, zmq.POLLIN | zmq.POLLOUT * link.has_unsent)
            ready = self._poll(wait_ms)
            # One time for the whole turn: after a stop, waiting messages are read before a timeout.
            self._now_s = time.monotonic()
            if self._wakeup_fd in ready:
                self._drain_wakeups()
            for link in list(self._links.values()):
                if link.number in self._links:  # else an earlier link's event has closed it
                    self._read_link(link, ready)
        with self._changed:
            byes = self._session.byes()
        self._execute(byes)

    def _poll(self, wait_ms: int) -> set[object]:
        """Return the sources that are ready, at the latest after ``wait_ms``."""
        due_s = time.monotonic() + wait_ms / 1000
        found = self._poller.poll(wait_ms)
        if not found and time.monotonic() - due_s > STALL_S:
            found = self._poller.poll(CATCH_UP_MS)
        return {source for source, _ in found}

    def _advance_clock(self) -> int:
        """Have the session make its requests; return how many ms later it is due again."""
        self._handle(events.ClockAdvanced())
        with self._changed:
            wait_s = self._session.due_s - time.monotonic()
            if self._session.has_news:  # else the consumer would wake up in vain
                self._changed.notify_all()
        return IDLE_MS if wait_s * 1000 > IDLE_MS else max(1, int(wait_s * 1000))

    def _drain_wakeups(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            return

    def _read_link(self, link: Link, ready: Container[object]) -> None:
        if link.monitor in ready:
            for event in link.read_connection():
                self._handle(event)
        if link.dealer in ready:
            link.flush()
            for _ in range(MESSAGES_IN_A_ROW):
                if not self._read_message(link):
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
        with self._changed:
            instructions = self._session.handle(event, self._now_s)
        self._execute(instructions, frames)

    def _execute(self, instructions: Sequence[events.Instruction], frames: _Frames = ()) -> None:
        for instruction in instructions:
            match instruction:
                case events.Store(placement):
                    pixels, labels, sample_ids = (frame.buffer for frame in frames)
                    buffer = self._buffers[placement.buffer]
                    buffer.write(placement.first, pixels, labels, sample_ids)
                    self._handle(events.ChunkStored(placement))
                case events.Send(number, message):
                    self._links[number].send(message)
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

    def _dial(self, number: int, endpoint: str) -> None:
        try:
            link = Link(
                number,
                endpoint,
                self._session.job.hello,
                self._keys,
                self._context.context,
                self._wrap_slot,
                threads=self._context.choose_threads(endpoint),
            )
        except FeederError as error:
            self._handle(events.NodeIncompatible(number, error))
            return
        self._links[number] = link
        self._poller.register(link.monitor, zmq.POLLIN)
        self._poller.register(link.dealer, zmq.POLLIN)

    def _hang_up(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:  # else it could not be dialled
            self._drop_claim(link)
            self._poller.unregister(link.monitor)
            self._poller.unregister(link.dealer)
            link.close()

    def _claim(self, link: Link, wanted: events.ClaimSlots) -> None:
        self._drop_claim(link)
        outcome = link.begin_claim(wanted)
        if outcome is not None:
            self._handle(outcome)
        elif link.claim is not None:
            self._poller.register(link.claim.fileno(), zmq.POLLIN)

    def _drop_claim(self, link: Link) -> None:
        if link.claim is not None:
            self._poller.unregister(link.claim.fileno())
            link.drop_claim()

    def _fail(self, error: FeederError) -> None:
        with self._changed:
            self._session.fail(error)
