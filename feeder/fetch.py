"""The simplest client: asks one node for batches and waits for them, without threads.

It is what ``feeder preview`` and the bench look at a daemon with. Training uses ``trainer_client``,
which works ahead in a thread of its own and survives a daemon's restart; this one gives up instead.
Over ipc it reads batches in the node process's slots; where these cannot be shared it gets copies.
"""

import itertools
import logging
import select
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, NoReturn, Self

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError, PeerError, ProtocolError, ResourceError
from feeder.handshake import (
    MONITORED,
    HandshakeWatch,
    await_message,
    dial,
    say_first,
)
from feeder.keys import ClientKeys
from feeder.lent_memory import NotSharedError, SlotClaim
from feeder.packing import Pixels, pixel_layout_of
from feeder.recipe import Recipe
from feeder.shortage import ZMQ_THREADS, check_threads
from feeder.slot_claim import door_path
from feeder.slot_layout import ChunkArrays, SlotLayout
from feeder.wire import (
    MAX_NODE_HEADER_BYTES,
    BatchKey,
    Bye,
    Chunk,
    ClientMessage,
    Failed,
    Hello,
    Lent,
    NodeMessage,
    Ping,
    Refused,
    Request,
    Welcome,
    decode_from_node,
    encode,
)

_log = logging.getLogger(__name__)

_FAREWELL_MS: Final = 200
_CLAIM_S: Final = 5.0
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


class _Buffer:
    """Where the chunks of one batch come together, or the slot that it is lent in."""

    def __init__(self, recipe: Recipe) -> None:
        batch_size, layout = recipe.batch_size, pixel_layout_of(recipe.packing)
        shape = (batch_size, *layout.image_shape(recipe.image_size))
        self.pixels: Pixels = np.empty(shape, layout.dtype)
        self.labels = np.empty(batch_size, np.int64)
        self.sample_ids = np.empty(batch_size, np.int64)
        self.missing = batch_size
        self.valid = 0

    def view(self, slot: ChunkArrays, valid: int) -> None:
        """Show a batch that is lent."""
        self.pixels, self.labels, self.sample_ids = slot.pixels, slot.labels, slot.sample_ids
        self.missing, self.valid = 0, valid

    def write(self, chunk: Chunk, frames: Sequence[zmq.Frame]) -> None:
        """Copy a chunk's rows to their place; ProtocolError when they do not fit."""
        if len(frames) != 3 or chunk.first + chunk.images > len(self.labels):
            raise ProtocolError("the node sent a chunk that does not fit its batch")
        rows = slice(chunk.first, chunk.first + chunk.images)
        pixels, labels, sample_ids = frames
        _copy(pixels, self.pixels[rows])
        _copy(labels, self.labels[rows])
        _copy(sample_ids, self.sample_ids[rows])
        self.missing -= chunk.images
        self.valid = chunk.valid


def _copy(frame: zmq.Frame, to: "Pixels | NDArray[np.int64]") -> None:
    if len(frame) != to.nbytes:
        raise ProtocolError(
            f"the node sent a chunk frame of {len(frame)} bytes where {to.nbytes} belong"
        )
    to[...] = np.frombuffer(frame.buffer, to.dtype).reshape(to.shape)


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
        client: str = "feeder fetch",
        share_memory: bool = True,
        keys: ClientKeys | None = None,
    ) -> None:
        """Open the session. Raises what stands in its way, naming ``endpoint`` and deadline.

        ``keys`` (``feeder.keys.read_client_keys``) are for tcp, where the feeder asks for them.
        ``share_memory=False`` has batches copied over the socket even where slots can be mapped.
        ``copied_because`` says why they are copied; it is None where they are read in place.
        ``received_bytes`` counts all that came over the socket.
        """
        self._endpoint = endpoint
        self._recipe = recipe
        self._timeout_s = timeout_s
        self._keys = keys
        self.received_bytes = 0
        check_threads(ZMQ_THREADS)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(MONITORED)
        try:
            self._connect()
            hello = Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client=client)
            say_first(self._socket, encode(hello))
            self.welcome = self._await_welcome()
            self._slots: Sequence[ChunkArrays] = ()  # where they are mapped
            self.copied_because: str | None = None
            try:
                self._slots = self._map_slots(share_memory)
            except NotSharedError as error:
                self.copied_because = str(error)
                _log.info("%s: batches are copied over the socket: %s", endpoint, error)
        except BaseException:
            self._destroy()
            raise
        places = range(self.welcome.window)
        self._free = [_Buffer(recipe) for _ in places]
        self._buffers: dict[BatchKey, _Buffer] = {}  # of the batches wanted and not yet released
        self._open = True

    def fetch(self, keys: Iterable[BatchKey]) -> Iterator[FetchedBatch]:
        """Yield the batches ``keys`` (pairs of epoch and index) in that order.

        As many are asked for ahead as the node granted. A batch is valid until the next is taken.
        Raises PeerError when the node falls silent for the timeout, DatasetError when it cannot
        make a batch.
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
            self._free.append(self._buffers.pop(key))
            self._want(coming, 1, (key,))

    def ping(self) -> None:
        """Keep the session alive through a pause; the answer is read with the next batch."""
        self._send(Ping(session=self.welcome.session))

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _map_slots(self, is_wanted: bool) -> Sequence[ChunkArrays]:
        path = door_path(self._endpoint)
        if not is_wanted or path is None:
            raise NotSharedError("share_memory is off" if path else "it is no ipc endpoint")
        layout = SlotLayout.of_recipe(self._recipe, slots=self.welcome.window)
        claim = SlotClaim(path, self.welcome.session)
        try:
            answer = select.poll()
            answer.register(claim, select.POLLIN)
            answer.poll(_CLAIM_S * 1000)
            memory = claim.take(layout)
            if memory is None:
                raise NotSharedError(f"no answer to the claim within {_CLAIM_S:g} s")
        except BaseException:
            claim.close()
            raise
        slots = [memory.slot(number) for number in range(layout.slots)]
        for slot in slots:
            for array in (slot.pixels, slot.labels, slot.sample_ids):
                array.flags.writeable = False
        return slots

    def _connect(self) -> None:
        self._socket.linger = _FAREWELL_MS
        pixel_bytes = SlotLayout.of_recipe(self._recipe, slots=1).pixel_bytes
        self._socket.maxmsgsize = max(MAX_NODE_HEADER_BYTES, pixel_bytes)
        self._socket.rcvhwm = 0  # what arrives is bounded by the window
        try:
            dial(self._socket, self._endpoint, self._keys)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"endpoint {self._endpoint!r} cannot be dialled ({error}): use tcp://HOST:PORT or "
                "ipc://PATH"
            ) from None

    def _finish_abandoned(self) -> None:
        """Take in and release what a ``fetch`` that was not used up had asked for."""
        for buffer in self._buffers.values():
            self._await(buffer)
        self._free.extend(self._buffers.values())
        released = tuple(self._buffers)
        self._buffers.clear()
        self._want(iter(()), 0, released)

    def _want(
        self, coming: Iterator[BatchKey], count: int, release: tuple[BatchKey, ...] = ()
    ) -> None:
        more = tuple(itertools.islice(coming, count))
        for key in more:
            buffer = self._free.pop()
            buffer.missing = self._recipe.batch_size
            self._buffers[key] = buffer
        if more or release:
            self._send(Request(session=self.welcome.session, want=more, release=release))

    def _await(self, buffer: _Buffer) -> None:
        while buffer.missing:
            self._take_chunk()

    def _take_chunk(self) -> None:
        message, frames = self._receive()
        match message:
            case Chunk() if message.session == self.welcome.session:
                buffer = self._buffers.get((message.epoch, message.index))
                if buffer is None:
                    raise ProtocolError(f"{self._endpoint} sent a batch that nobody asked for")
                buffer.write(message, frames)
            case Lent() if message.session == self.welcome.session:
                buffer = self._buffers.get((message.epoch, message.index))
                if buffer is None or message.slot >= len(self._slots):
                    raise ProtocolError(f"{self._endpoint} lent what nobody asked for")
                buffer.view(self._slots[message.slot], message.valid)
            case Failed() if message.session == self.welcome.session:
                raise DatasetError(
                    f"{self._endpoint} cannot make batch {message.index} of epoch "
                    f"{message.epoch}: {message.message}"
                )
            case Refused():
                self._refuse(message)
            case _:
                pass  # pongs, word of draining, and what belongs to older sessions

    def _await_welcome(self) -> Welcome:
        watch = HandshakeWatch(self._endpoint, self._keys)
        while await_message(self._socket, self._monitor, watch, self._timeout_s):
            message, _ = self._receive()
            if isinstance(message, Welcome):
                self._end_monitor()
                return message
            if isinstance(message, Refused):
                self._refuse(message)
        raise self._silence()

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
            if not self._socket.poll(int(self._timeout_s * 1000), zmq.POLLOUT):
                raise self._silence() from None
            self._socket.send(frame)

    def _receive(self) -> tuple[NodeMessage, Sequence[zmq.Frame]]:
        try:
            frames = [self._socket.recv(zmq.DONTWAIT, copy=False)]
        except zmq.Again:
            if not self.wait(self._timeout_s):
                raise self._silence() from None
            frames = [self._socket.recv(copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        self.received_bytes += sum(map(len, frames))
        return decode_from_node(frames[0].buffer), frames[1:]

    def _silence(self) -> PeerError:
        return PeerError(
            f"no answer from {self._endpoint} within {self._timeout_s:g} s: is `feeder serve` "
            "running and listening there?"
        )

    def _destroy(self) -> None:
        self._end_monitor()
        self._socket.close()
        self._context.term()
