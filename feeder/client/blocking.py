"""The simplest client: requests batches from one node and waits for them, without threads.

``feeder preview`` and the bench use it. Training uses ``trainer_client``, which prefetches in a
thread of its own and survives a daemon's restart; this client gives up instead. It has the engine's
connection (``Link``) and state (``LinkState``), but no more than one link and no retries.
"""

import itertools
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NoReturn, Self, cast

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.client.arriving_batch import ArrivingBatch, BatchWindow
from feeder.client.connection import Link
from feeder.client.contexts import open_context
from feeder.client.core import events
from feeder.client.core.answer_checks import check_welcome
from feeder.client.core.node_link import LinkState
from feeder.client.mapped_slots import LentMemory
from feeder.errors import ConfigError, DatasetError, PeerError, ProtocolError, ResourceError
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.process.name_lookup import resolve_endpoint
from feeder.security.keys import ClientKeys
from feeder.wire.messages import (
    BatchKey,
    Chunk,
    Failed,
    Hello,
    HostStats,
    Lent,
    NodeMessage,
    NotReady,
    Refused,
    Stats,
    Welcome,
)
from feeder.wire.slot_layout import ChunkArrays

_log = logging.getLogger(__name__)

_REFUSALS: Final = {
    "unknown-dataset": DatasetError,
    "dataset": DatasetError,
    "bad-recipe": ConfigError,
    "version": ProtocolError,
    "memory": ResourceError,
    "clients": ResourceError,
    "recipes": ResourceError,
}


class FetchedBatch(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """One batch; its arrays are reused once the next one is taken. Only read them.

    A Struct, because making a frozen dataclass would take a sixth of the time of a whole hand-over.
    """

    key: BatchKey
    """(epoch, index)."""
    valid: int
    """Rows that are real; those after them pad."""
    pixels: Pixels
    """(batch_size, image_size, image_size, 3) as int8, or as the recipe's packing has it."""
    labels: LabelRows
    """(batch_size,), or as ``welcome.labels`` have them; see ``feeder.wire.messages``."""
    sample_ids: NDArray[np.int64]
    """(batch_size,)."""


class BatchFetcher:
    """A session with one node, for one thread; a context manager."""

    def __init__(
        self,
        endpoint: str,
        *,
        dataset: str,
        recipe: Recipe,
        seed: int = 0,
        window: int = 4,
        timeout_s: float = 30.0,
        total_s: float = math.inf,
        client: str = "feeder fetch",
        share_memory: bool = True,
        keys: ClientKeys | None = None,
    ) -> None:
        """Open the session; every error names ``endpoint``, a PeerError the deadline too.

        ``timeout_s`` is the deadline of opening, name look-up included, and then of each batch,
        counted from the latest rows that came; ``total_s`` that of all together.
        ``keys`` (``read_client_keys``) are for tcp, where the feeder requires them.
        ``share_memory=False`` has batches copied over the socket even where slots can be mapped.
        """
        self._endpoint = endpoint
        self._recipe = recipe
        self._timeout_s = timeout_s
        self._total_s = total_s
        self._end_s = time.monotonic() + total_s
        until_s = self._deadline_s()
        address = resolve_endpoint(endpoint, until_s - time.monotonic())
        hello = Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client=client)
        self._state = LinkState(0, endpoint, hello, share_memory=share_memory)
        with ExitStack() as stack:
            context = open_context(endpoint)
            stack.callback(context.term)
            self._link = Link(
                0,
                endpoint,
                hello,
                keys,
                context,
                _map_slot,
                address=address,
                heartbeats=False,  # each batch has a deadline, and a lost session is not replaced
            )
            stack.callback(self._link.close)
            self.welcome = self._greet(hello, until_s)
            self._link.stop_monitor()
            self._exits = stack.pop_all()
        slots = cast(Sequence[ChunkArrays], self._state.slots)
        self._window = BatchWindow(recipe, self.welcome, slots)
        self._is_open = True

    @property
    def copied_because(self) -> str | None:
        """Why batches are copied over the socket; None where they are read in place."""
        return self._state.copied_because

    @property
    def received_bytes(self) -> int:
        """All bytes received over the socket."""
        return self._link.received_bytes

    def fetch(self, keys: Iterable[BatchKey]) -> Iterator[FetchedBatch]:
        """Yield the batches ``keys`` (pairs of epoch and index) in that order.

        As many are requested ahead as the node granted. A batch is valid until the next is taken.
        Raises PeerError when no row comes for the timeout, DatasetError when the node cannot make a
        batch, ProtocolError when it breaks the protocol, ConfigError for a key that is already in
        flight.
        """
        for batch in self._window.batches.values():  # of a fetch that was not used up
            self._await(batch)
        self._request(iter(()), 0, tuple(self._window.batches))
        coming = iter(keys)
        self._request(coming, self.welcome.window)
        while self._window.batches:
            key, batch = next(iter(self._window.batches.items()))  # in the order of the requests
            self._await(batch)
            yield FetchedBatch(
                key=key,
                valid=batch.valid,
                pixels=batch.pixels,
                labels=batch.labels,
                sample_ids=batch.sample_ids,
            )
            self._request(coming, 1, (key,))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the node's next message; return whether it has come."""
        return bool(self._link.dealer.poll(int(timeout_s * 1000)))

    def close(self) -> None:
        """Send Bye and close the socket; idempotent, takes at most 0.2 s."""
        if self._is_open:
            self._is_open = False
            with self._exits:
                self._state.leave(time.monotonic())
                self._execute()
            self._window.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Opening ------------------------------------------------------------------------------

    def _greet(self, hello: Hello, until_s: float) -> Welcome:
        """Open the session, and map the node's slots if it lends them; return its welcome."""
        link, state = self._link, self._state
        while not state.is_served:
            poller = zmq.Poller()
            poller.register(link.monitor, zmq.POLLIN)
            poller.register(link.dealer, zmq.POLLIN | zmq.POLLOUT * link.has_unsent)
            if link.claim is not None:
                poller.register(link.claim.fileno(), zmq.POLLIN)
            due_s = state.due_s() if state.awaits_slots else until_s
            poller.poll(_remaining_ms(min(until_s, due_s)))
            for event in link.read_connection():
                self._on_event(event)
            link.flush()
            if link.claim is not None and (outcome := link.take_claim()) is not None:
                self._on_event(outcome)
            while (received := self._read()) is not None:
                match received[0]:
                    case Refused() as refused:
                        self._refuse(refused)
                    case NotReady(text=text):
                        raise PeerError(f"{self._endpoint} is {text}: try again then")
                    case Welcome() as welcome if state.is_connected and state.session is None:
                        try:
                            check_welcome(hello, welcome)
                        except ProtocolError as error:
                            raise self._broken(error) from None
                        state.accept(welcome, time.monotonic())
                        self._execute()
            if state.awaits_slots:
                state.run_due(time.monotonic())
                self._execute()
            if not state.is_served and time.monotonic() >= until_s:
                raise self._silence(until_s)
        if state.copied_because is not None:
            _log.info("%s", state.describe_transfer())
        assert state.welcome is not None, "it is served"
        return state.welcome

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.NodeIncompatible):
            raise event.error
        self._state.handle(event, time.monotonic())
        self._execute()

    def _execute(self) -> None:
        for instruction in self._state.take_instructions():
            match instruction:
                case events.Send(_, message):
                    self._link.send(message)
                case events.ClaimSlots():
                    outcome = self._link.begin_claim(instruction)
                    if outcome is not None:
                        self._on_event(outcome)
                case events.DropClaim():
                    self._link.drop_claim()

    # --- Batches ------------------------------------------------------------------------------

    def _request(
        self, coming: Iterator[BatchKey], count: int, release: tuple[BatchKey, ...] = ()
    ) -> None:
        request = self._window.request(tuple(itertools.islice(coming, count)), release)
        if request is not None:
            self._link.send(request)

    def _await(self, batch: ArrivingBatch) -> None:
        until_s = self._deadline_s()
        while batch.missing:
            message, frames = self._receive(until_s)
            try:
                if self._take(message, frames):
                    until_s = self._deadline_s()
            except ProtocolError as error:
                raise self._broken(error) from None

    def _take(self, message: NodeMessage, frames: Sequence[zmq.Frame]) -> bool:
        """Handle a message; return whether it has brought rows."""
        match message:
            case Chunk() if message.session == self.welcome.session:
                self._window.write(message, frames)
                return True
            case Lent() if message.session == self.welcome.session:
                self._window.borrow(message)
                return True
            case Failed() if message.session == self.welcome.session:
                self._window.check_failed(message)
                raise DatasetError(
                    f"{self._endpoint} cannot make batch {message.index} of epoch "
                    f"{message.epoch}: {message.message}"
                )
            case Refused() if message.session in (None, self.welcome.session):
                self._refuse(message)
            case Welcome() | Stats() | HostStats():
                raise ProtocolError(f"it sent a {type(message).__name__} that was not requested")
            case _:
                pass  # Pong, Draining, and messages of other sessions
        return False

    # --- Messages and errors ------------------------------------------------------------------

    def _receive(self, until_s: float) -> tuple[NodeMessage, Sequence[zmq.Frame]]:
        link = self._link
        while (received := self._read()) is None:
            wanted = zmq.POLLIN | zmq.POLLOUT * link.has_unsent
            if not link.dealer.poll(_remaining_ms(until_s), wanted):
                raise self._silence(until_s)
            link.flush()
        self._state.on_message(time.monotonic())
        return received

    def _read(self) -> tuple[NodeMessage, Sequence[zmq.Frame]] | None:
        try:
            return self._link.receive()
        except ProtocolError as error:
            raise self._broken(error) from None

    def _deadline_s(self) -> float:
        return min(time.monotonic() + self._timeout_s, self._end_s)

    def _refuse(self, refused: Refused) -> NoReturn:
        kind = _REFUSALS.get(refused.code, PeerError)
        raise kind(f"{self._endpoint} refuses ({refused.code}): {refused.message}")

    def _broken(self, reason: ProtocolError) -> ProtocolError:
        return ProtocolError(f"{self._endpoint} breaks the protocol: {reason}")

    def _silence(self, until_s: float) -> PeerError:
        """Return the error for the deadline ``until_s``, which has passed."""
        limit = f"{self._timeout_s:g} s"
        if until_s >= self._end_s:
            limit = f"{self._total_s:g} s in all"
        # The connection is no longer watched: it may be lost.
        progress = "the next batch is not complete; is `feeder serve` still running there?"
        reason = self._state.explain(time.monotonic(), progress)
        return PeerError(f"no answer from {self._endpoint} within {limit}: {reason}")


def _map_slot(memory: LentMemory, number: int) -> ChunkArrays:
    """Return a slot's arrays, which numpy then refuses to write as the kernel does."""
    slot = memory.slot(number)
    for array in (slot.pixels, slot.labels, slot.sample_ids):
        array.flags.writeable = False
    return slot


def _remaining_ms(until_s: float) -> int:
    return max(0, int((until_s - time.monotonic()) * 1000))
