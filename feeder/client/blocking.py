"""The simplest client: asks one node for batches and waits for them, without threads.

It is what ``feeder preview`` and the bench look at a daemon with. Training uses ``trainer_client``,
which works ahead in a thread of its own and survives a daemon's restart; this one gives up instead.
Over ipc it reads batches in the node process's slots; where these cannot be shared it gets copies.
"""

import itertools
import logging
import math
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NoReturn, Self

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.client.arriving_batch import ArrivingBatch
from feeder.client.contexts import open_context
from feeder.client.core.answer_checks import check_welcome, count_valid, name_batch
from feeder.client.mapped_slots import NotSharedError, SlotClaim
from feeder.errors import ConfigError, DatasetError, PeerError, ProtocolError, ResourceError
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.process.name_lookup import resolve_endpoint
from feeder.security.handshake import MONITORED, HandshakeWatch, await_message, dial, send_first
from feeder.security.keys import ClientKeys
from feeder.wire.claim import claim_path
from feeder.wire.messages import (
    MAX_NODE_HEADER_BYTES,
    BatchKey,
    Bye,
    Chunk,
    ClientMessage,
    Failed,
    Hello,
    Lent,
    NodeMessage,
    Refused,
    Request,
    Stats,
    Welcome,
    decode_from_node,
    encode,
)
from feeder.wire.slot_layout import ChunkArrays, SlotLayout

_log = logging.getLogger(__name__)

_FAREWELL_MS: Final = 200
_CLAIM_S: Final = 5.0
_REQUEST: Final = 0  # the number of all our requests: none is made anew while it is not answered
_REFUSALS: Final = {
    "unknown-dataset": DatasetError,
    "bad-recipe": ConfigError,
    "version": ProtocolError,
    "memory": ResourceError,
    "clients": ResourceError,
    "recipes": ResourceError,
}


class FetchedBatch(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """One batch; the arrays are another batch's once the next one is asked for. Only read them.

    A Struct, as a frozen dataclass would take a sixth of the time of a whole hand-over.
    """

    key: BatchKey
    """(epoch, index)."""
    valid: int
    """Rows that are real; those after them pad."""
    pixels: Pixels
    """(batch_size, image_size, image_size, 3) as int8, or as the recipe's packing has it."""
    labels: NDArray[np.int64]
    """(batch_size,)."""
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
        """Open the session. Raises what stands in its way, naming ``endpoint`` and deadline.

        ``timeout_s`` is the deadline of opening, name look-up included, and then of each batch,
        counted from the latest rows that came; ``total_s`` that of all together.
        ``keys`` (``read_client_keys``) are for tcp, where the feeder asks for them.
        ``share_memory=False`` has batches copied over the socket even where slots can be mapped.
        ``copied_because`` says why they are copied; it is None where they are read in place.
        ``received_bytes`` counts all that came over the socket.
        """
        self._endpoint = endpoint
        self._recipe = recipe
        self._timeout_s = timeout_s
        self._total_s = total_s
        self._end_s = time.monotonic() + total_s
        self._keys = keys
        self.received_bytes = 0
        until_s = self._deadline_s()
        address = resolve_endpoint(endpoint, until_s - time.monotonic())
        self._context = open_context(endpoint)
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(MONITORED)
        try:
            self._connect(address)
            hello = Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client=client)
            send_first(self._socket, encode(hello))
            self.welcome = self._await_welcome(hello, address, until_s)
            self._slots: Sequence[ChunkArrays] = ()  # where they are mapped
            self.copied_because: str | None = None
            try:
                self._slots = self._map_slots(share_memory, until_s)
            except NotSharedError as error:
                self.copied_because = str(error)
                _log.info("%s: batches are copied over the socket: %s", endpoint, error)
        except BaseException:
            self._destroy()
            raise
        chunk_images = self.welcome.chunk_images
        self._free = [ArrivingBatch(recipe, chunk_images) for _ in range(self.welcome.window)]
        self._buffers: dict[BatchKey, ArrivingBatch] = {}  # wanted and not yet released
        self._open = True

    def fetch(self, keys: Iterable[BatchKey]) -> Iterator[FetchedBatch]:
        """Yield the batches ``keys`` (pairs of epoch and index) in that order.

        As many are asked for ahead as the node granted. A batch is valid until the next is taken.
        Raises PeerError when no row comes for the timeout, DatasetError when the node cannot make a
        batch, ProtocolError when it breaks the protocol, ConfigError for a key that is asked for
        again while it is still on its way.
        """
        self._finish_abandoned()
        coming = iter(keys)
        self._want(coming, self.welcome.window)
        while self._buffers:
            key = next(iter(self._buffers))  # a dict keeps the order in which they were asked for
            buffer = self._buffers[key]
            self._await(buffer)
            yield FetchedBatch(
                key=key,
                valid=buffer.valid,
                pixels=buffer.pixels,
                labels=buffer.labels,
                sample_ids=buffer.sample_ids,
            )
            self._want(coming, 1, (key,))

    def wait(self, timeout_s: float) -> bool:
        """Wait until the node has said something new; return whether it has."""
        return bool(self._socket.poll(int(timeout_s * 1000)))

    def close(self) -> None:
        """Say Bye and close the socket; idempotent, takes at most 0.2 s."""
        if self._open:
            self._open = False
            try:
                self._socket.send(encode(Bye(session=self.welcome.session)), zmq.DONTWAIT)
            except zmq.Again:
                pass  # the node is gone: there is nobody to say it to
            finally:
                self._buffers.clear()
                self._free.clear()
                self._slots = ()
                self._destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _map_slots(self, is_wanted: bool, until_s: float) -> Sequence[ChunkArrays]:
        path = claim_path(self._endpoint)
        if not is_wanted or path is None:
            raise NotSharedError("share_memory is off" if path else "it is no ipc endpoint")
        layout = SlotLayout.of_recipe(self._recipe, slots=self.welcome.window)
        claim = SlotClaim(path, self.welcome.session)
        try:
            answer = select.poll()
            answer.register(claim, select.POLLIN)
            left_s = max(0.0, min(_CLAIM_S, until_s - time.monotonic()))
            answer.poll(left_s * 1000)
            memory = claim.take(layout)
            if memory is None:
                raise NotSharedError(f"no answer to the claim within {left_s:.2g} s")
        except BaseException:
            claim.close()
            raise
        slots = [memory.slot(number) for number in range(layout.slots)]
        for slot in slots:
            for array in (slot.pixels, slot.labels, slot.sample_ids):
                array.flags.writeable = False
        return slots

    def _connect(self, address: str) -> None:
        self._socket.linger = _FAREWELL_MS
        pixel_bytes = SlotLayout.of_recipe(self._recipe, slots=1).pixel_bytes
        self._socket.maxmsgsize = max(MAX_NODE_HEADER_BYTES, pixel_bytes)
        self._socket.rcvhwm = 0  # what arrives is bounded by the window
        try:
            dial(self._socket, address, self._keys)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"endpoint {self._endpoint!r} cannot be dialled ({error}): use tcp://HOST:PORT or "
                "ipc://PATH"
            ) from None

    def _finish_abandoned(self) -> None:
        """Take in and release what a ``fetch`` that was not used up had asked for."""
        for buffer in self._buffers.values():
            self._await(buffer)
        self._want(iter(()), 0, tuple(self._buffers))

    def _want(
        self, coming: Iterator[BatchKey], count: int, release: tuple[BatchKey, ...] = ()
    ) -> None:
        """Release batches and ask for the next ``count``.

        Where ``coming`` raises, or has a key that is on its way, neither happens: what is wanted
        here is still what the node holds for the session.
        """
        more = tuple(itertools.islice(coming, count))
        for number, key in enumerate(more):
            if (key in self._buffers and key not in release) or key in more[:number]:
                raise ConfigError(
                    f"{name_batch(key)} is asked for twice at once: ask again when it has come"
                )
        self._free.extend(self._buffers.pop(key) for key in release)
        for key in more:
            buffer = self._free.pop()
            buffer.begin(key, count_valid(self._recipe, self.welcome.samples, key[1]))
            self._buffers[key] = buffer
        if more or release:
            self._send(Request(session=self.welcome.session, want=more, release=release))

    def _deadline_s(self) -> float:
        return min(time.monotonic() + self._timeout_s, self._end_s)

    def _await(self, buffer: ArrivingBatch) -> None:
        until_s = self._deadline_s()
        while buffer.missing:
            message, frames = self._receive(until_s)
            try:
                if self._take(message, frames):
                    until_s = self._deadline_s()
            except ProtocolError as error:
                raise self._broken(error) from None

    def _take(self, message: NodeMessage, frames: Sequence[zmq.Frame]) -> bool:
        """Take in what the node says; return whether rows have come."""
        match message:
            case Chunk() if message.session == self.welcome.session:
                if self._slots:
                    raise ProtocolError("it sent a chunk where it lends whole batches")
                self._find_wanted(message).write(message, frames)
                return True
            case Lent() if message.session == self.welcome.session:
                self._borrow(message)
                return True
            case Failed() if message.session == self.welcome.session:
                if not self._find_wanted(message).missing:
                    raise ProtocolError(
                        f"it cannot make {name_batch((message.epoch, message.index))}, which it "
                        "has sent"
                    )
                raise DatasetError(
                    f"{self._endpoint} cannot make batch {message.index} of epoch "
                    f"{message.epoch}: {message.message}"
                )
            case Refused() if message.session in (None, self.welcome.session):
                self._refuse(message)
            case Welcome() | Stats():
                raise ProtocolError(f"it sent a {type(message).__name__} that nobody asked for")
            case _:
                pass  # pongs, word of draining, and what belongs to other sessions
        return False

    def _find_wanted(self, message: Chunk | Lent | Failed) -> ArrivingBatch:
        key = (message.epoch, message.index)
        if key not in self._buffers:
            raise ProtocolError(f"it sent {name_batch(key)}, which nobody asked for")
        return self._buffers[key]

    def _borrow(self, lent: Lent) -> None:
        buffer = self._find_wanted(lent)
        if lent.request != _REQUEST:
            raise ProtocolError(f"it answered request {lent.request}, which was never made")
        if lent.slot >= len(self._slots):
            raise ProtocolError(f"slot {lent.slot} was lent, {len(self._slots)} are mapped here")
        if any(other.slot == lent.slot for other in self._buffers.values()):
            raise ProtocolError(f"slot {lent.slot} was lent while a batch in it is still read")
        buffer.view(lent, self._slots[lent.slot])

    def _await_welcome(self, hello: Hello, address: str, until_s: float) -> Welcome:
        watch = HandshakeWatch(self._endpoint, self._keys, address=address)
        while await_message(self._socket, self._monitor, watch, until_s - time.monotonic()):
            message, _ = self._receive(until_s)
            if isinstance(message, Refused):
                self._refuse(message)
            if isinstance(message, Welcome):
                self._end_monitor()
                try:
                    check_welcome(hello, message)
                    if message.window > hello.window:
                        raise ProtocolError(
                            f"it grants {message.window} batches at once, {hello.window} were "
                            "asked for"
                        )
                except ProtocolError as error:
                    raise self._broken(error) from None
                return message
        raise self._silence(until_s)

    def _end_monitor(self) -> None:
        if not self._monitor.closed:
            self._socket.disable_monitor()
            self._monitor.close(0)

    def _refuse(self, refused: Refused) -> NoReturn:
        kind = _REFUSALS.get(refused.code, PeerError)
        raise kind(f"{self._endpoint} refuses ({refused.code}): {refused.message}")

    def _send(self, message: ClientMessage) -> None:
        frame = encode(message)
        try:
            self._socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            until_s = self._deadline_s()
            left_s = max(0.0, until_s - time.monotonic())
            if not self._socket.poll(int(left_s * 1000), zmq.POLLOUT):
                raise self._silence(until_s) from None
            self._socket.send(frame)

    def _receive(self, until_s: float) -> tuple[NodeMessage, Sequence[zmq.Frame]]:
        try:
            frames = [self._socket.recv(zmq.DONTWAIT, copy=False)]
        except zmq.Again:
            if not self.wait(max(0.0, until_s - time.monotonic())):
                raise self._silence(until_s) from None
            frames = [self._socket.recv(copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        self.received_bytes += sum(map(len, frames))
        try:
            message = decode_from_node(frames[0].buffer)
        except ProtocolError as error:
            raise self._broken(error) from None
        if len(frames) > 1 and not isinstance(message, Chunk):
            raise self._broken(f"a {type(message).__name__} came with frames it must not have")
        return message, frames[1:]

    def _broken(self, reason: ProtocolError | str) -> ProtocolError:
        return ProtocolError(f"{self._endpoint} breaks the protocol: {reason}")

    def _silence(self, until_s: float) -> PeerError:
        """Return the error for the deadline ``until_s``, which has passed."""
        limit = f"{self._timeout_s:g} s"
        if until_s >= self._end_s:
            limit = f"{self._total_s:g} s in all"
        return PeerError(
            f"no answer from {self._endpoint} within {limit}: is `feeder serve` running and "
            "listening there?"
        )

    def _destroy(self) -> None:
        self._end_monitor()
        self._socket.close()
        self._context.term()
