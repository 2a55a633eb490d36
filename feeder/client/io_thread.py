"""The one thread that owns the sockets: carries events to the session, and its instructions out.

It keeps a link to each endpoint, and copies the rows of chunks, once, from ZeroMQ's own memory into
batch buffers; or, where a node's slots could be mapped, copies nothing. It alone assigns buffers
(when it tells the session of the clock) and writes them, one after the other, so the copy needs no
lock.
"""

import logging
import socket
import threading
import time
from collections.abc import Container, Sequence
from typing import Final, Protocol

import zmq

from feeder.client.connection import FAREWELL_MS, Link, WrapSlot
from feeder.client.contexts import Contexts
from feeder.client.core import events
from feeder.client.core.session import ClientSession
from feeder.errors import FeederError, ProtocolError, ResourceError
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Chunk

MESSAGES_IN_A_ROW: Final = 4  # then look at the clock and at the consumer again
IDLE_MS: Final = 60_000
STALL_S: Final = 0.5
"""A wait that takes so much longer: we were stopped, and nodes have said something meanwhile."""

CATCH_UP_MS: Final = 100
"""Until libzmq's thread, which was stopped as well, has read it."""

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


class Pump:
    """What the I/O thread runs. Set ``closing`` and ring to end it."""

    def __init__(
        self,
        session: ClientSession,
        changed: threading.Condition,
        buffers: BatchBuffers,
        wrap_slot: WrapSlot,
        keys: ClientKeys | None,
        ring: socket.socket,
    ) -> None:
        self.closing = False
        self.listed: tuple[str, ...] | None = None
        """Endpoints that the session has not heard of yet; set them under the lock, and ring."""
        self._session = session
        self._changed = changed
        self._buffers = buffers
        self._wrap_slot = wrap_slot
        self._keys = keys
        self._ring = ring
        self._links: dict[int, Link] = {}
        self._contexts = Contexts(FAREWELL_MS)
        self._poller = zmq.Poller()
        self._now_s = time.monotonic()
        self._ring_fd = ring.fileno()
        self._poller.register(self._ring_fd, zmq.POLLIN)

    def run(self) -> None:
        """Serve the connections until ``closing``; an error goes to the consumer."""
        try:
            try:
                self._serve()
            finally:
                for link in self._links.values():
                    link.close()
                self._contexts.close()
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            name = self._session.job.name
            self._fail(ResourceError(f"{name}: the I/O thread broke down: {error!r}"))
            raise
        finally:
            self._ring.close()
            with self._changed:
                if self.closing:
                    self._session.let_go()  # after the Bye, or it would look like a death
                self._changed.notify_all()

    def _serve(self) -> None:
        while not self.closing:
            with self._changed:
                listed, self.listed = self.listed, None
            if listed is not None:
                self._give(events.EndpointsListed(listed))
            wait_ms = self._advance_clock()
            for link in self._links.values():
                self._poller.register(link.dealer, zmq.POLLIN | zmq.POLLOUT * link.has_unsent)
            ready = self._poll(wait_ms)
            # For the whole turn: were we stopped in it, what has come meanwhile is read first.
            self._now_s = time.monotonic()
            if self._ring_fd in ready:
                self._hear_ring()
            for link in list(self._links.values()):
                if link.number in self._links:  # else one of the others told to hang up
                    self._hear(link, ready)
        with self._changed:
            farewell = self._session.farewell()
        self._carry_out(farewell)

    def _poll(self, wait_ms: int) -> set[object]:
        """Wait for something to be ready; return what is."""
        due_s = time.monotonic() + wait_ms / 1000
        found = self._poller.poll(wait_ms)
        if not found and time.monotonic() - due_s > STALL_S:
            found = self._poller.poll(CATCH_UP_MS)
        return {source for source, _ in found}

    def _advance_clock(self) -> int:
        """Have the session make its requests; return how many ms it then wants nothing."""
        self._give(events.ClockAdvanced())
        with self._changed:
            wait_s = self._session.due_s - time.monotonic()
            if self._session.has_news:  # else whoever waits would wake up in vain
                self._changed.notify_all()
        return IDLE_MS if wait_s * 1000 > IDLE_MS else max(1, int(wait_s * 1000))

    def _hear_ring(self) -> None:
        try:
            while self._ring.recv(4096):
                pass
        except BlockingIOError:
            return

    def _hear(self, link: Link, ready: Container[object]) -> None:
        if link.monitor in ready:
            for event in link.hear_connection():
                self._give(event)
        if link.dealer in ready:
            link.flush()
            for _ in range(MESSAGES_IN_A_ROW):
                if not self._hear_node(link):
                    break
        if link.claim is not None and (number := link.claim.fileno()) in ready:
            outcome = link.take_claim()
            if outcome is not None:
                self._poller.unregister(number)
                self._give(outcome)

    def _hear_node(self, link: Link) -> bool:
        """Take in one message; return whether there was one to go on from."""
        try:
            received = link.receive()
        except ProtocolError as error:
            self._give(events.NodeIncompatible(link.number, error))
            return False
        if received is None:
            return False
        message, frames = received
        if isinstance(message, Chunk):
            sizes = [len(frame) for frame in frames]
            self._give(events.ChunkArrived(link.number, message, sizes), frames)
        else:
            self._give(events.Heard(link.number, message))
        return True

    def _give(self, event: events.Event, frames: _Frames = ()) -> None:
        """Tell the session of an event, and carry out what follows; ``frames`` are a chunk's."""
        with self._changed:
            instructions = self._session.handle(event, self._now_s)
        self._carry_out(instructions, frames)

    def _carry_out(self, instructions: Sequence[events.Instruction], frames: _Frames = ()) -> None:
        for instruction in instructions:
            match instruction:
                case events.Store(placement):
                    pixels, labels, sample_ids = (frame.buffer for frame in frames)
                    buffer = self._buffers[placement.buffer]
                    buffer.write(placement.first, pixels, labels, sample_ids)
                    self._give(events.ChunkStored(placement))
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
                case events.Say(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def _dial(self, number: int, endpoint: str) -> None:
        hello = self._session.job.hello
        try:
            context = self._contexts.take(endpoint)
            try:
                link = Link(number, endpoint, hello, self._keys, context, self._wrap_slot)
            except FeederError:
                self._contexts.give_back(endpoint)
                raise
        except FeederError as error:
            self._give(events.NodeIncompatible(number, error))
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
            self._contexts.give_back(link.endpoint)

    def _claim(self, link: Link, wanted: events.ClaimSlots) -> None:
        self._drop_claim(link)
        outcome = link.begin_claim(wanted)
        if outcome is not None:
            self._give(outcome)
        elif link.claim is not None:
            self._poller.register(link.claim.fileno(), zmq.POLLIN)

    def _drop_claim(self, link: Link) -> None:
        if link.claim is not None:
            self._poller.unregister(link.claim.fileno())
            link.drop_claim()

    def _fail(self, error: FeederError) -> None:
        with self._changed:
            self._session.fail(error)
