"""The host memory that batches are in: a node process's slots, mapped read-only, or buffers.

The mapping of slots lives as long as anything views it, and the connection by which it was claimed
as long as the mapping: the node process sees it end exactly when the slots are no longer read.
The size is checked before mapping and sealed against change, so neither side can truncate the pages
under the other.
"""

import atexit
import contextlib
import fcntl
import mmap
import os
import queue
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ProtocolError
from feeder.plan.labels import LabelRows, LabelSpec
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.wire.claim import ANSWER_BYTES_MAX, FAREWELL, decode_answer, encode_claim
from feeder.wire.messages import PADDING_SAMPLE_ID, Chunk
from feeder.wire.slot_layout import SlotLayout

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Returns a new array of a shape and type, whatever its contents."""

CLAIM_S: Final = 2.0  # a node answers a claim at once, unless it is stopped or overloaded

EXIT_S: Final = 10.0  # pages are unlocked in milliseconds

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK

_connections: Final[weakref.WeakSet[socket.socket]] = weakref.WeakSet()


def _close_in_fork() -> None:
    # In a child that outlives its parent the copies would hide the parent's death.
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_in_fork)

# At exit a thread is ended when it takes the GIL back, which aborts the process if it is in C++, as
# it is while CUDA unlocks pages. So exit waits for an unmapping under way and lets no other begin.
_unmapping: Final = threading.Lock()
atexit.register(_unmapping.acquire, timeout=EXIT_S)


class NotSharedError(Exception):
    """Raised when the slots cannot be mapped here; the message is the reason, as one clause."""


class LentMemory:
    """A mapping of all slots of a session, unmapped when it and all its views are garbage."""

    def __init__(self, fd: int, layout: SlotLayout, connection: socket.socket) -> None:
        """Map the file; takes over the connection, but not ``fd``."""
        size_bytes = os.fstat(fd).st_size
        if size_bytes != layout.total_bytes:
            raise NotSharedError(
                f"the file has {size_bytes} bytes, it must have {layout.total_bytes}"
            )
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:  # it is no memfd
            raise NotSharedError(f"its size is not sealed: {error.strerror}") from error
        if seals & _SEALS != _SEALS:
            raise NotSharedError("its size is not sealed: it could be truncated while it is read")
        try:
            mapping = mmap.mmap(fd, layout.total_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise NotSharedError(f"they cannot be mapped: {error.strerror}") from error
        self.layout = layout
        self.address: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
        self._callbacks: list[Callable[[], object]] = []
        # Whatever a signal handler raises in Python code that the garbage collector calls is lost,
        # a KeyboardInterrupt for example. So the collector calls this method, which is C, and a
        # thread does the rest, where no signal handler runs. At exit and in a fork it does nothing.
        garbage: queue.SimpleQueue[object] = queue.SimpleQueue()
        reference = weakref.ref(self, garbage.put)
        unmapper = threading.Thread(
            target=_unmap,
            args=(garbage, reference, self._callbacks, mapping, connection),
            name="feeder unmaps slots",
            daemon=True,
        )
        try:
            unmapper.start()
        except RuntimeError as error:
            raise NotSharedError(f"no thread can be started to unmap them: {error}") from error

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Let numpy view the pages. They are declared writable, or torch would warn of every tensor
        of them, but the kernel maps them read-only: a write is a segmentation fault."""
        return {
            "version": 3,
            "shape": (self.layout.total_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def slots(self) -> list["SlotBuffer"]:
        """All slots, never to be written to."""
        pages = np.asarray(self)  # whose views keep this object
        starts = range(0, self.layout.total_bytes, self.layout.slot_bytes)
        return [
            SlotBuffer(self, number, pages[start : start + self.layout.slot_bytes])
            for number, start in enumerate(starts)
        ]

    def before_unmapping(self, call: Callable[[], object]) -> None:
        """Register a callback before unmapping; it must not refer to this object."""
        self._callbacks.append(call)


def claim_slots(path: str, session: int, layout: SlotLayout) -> LentMemory:
    """Claim a session's slots at a socket, and map them; waits up to CLAIM_S.

    NotSharedError if nothing listens there, for a refusal or a wrong file.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CLAIM_S)
    _connections.add(connection)  # at once: a thread may fork while the claim waits
    fds: list[int] = []
    try:
        connection.connect(path)
        connection.send(encode_claim(session))
        packet, fds, _, _ = socket.recv_fds(connection, ANSWER_BYTES_MAX, 1)
        if not packet:
            raise NotSharedError("the feeder closed the connection")
        refusal = decode_answer(packet)
        if refusal or not fds:
            raise NotSharedError(refusal or "no descriptor came with the answer")
        return LentMemory(fds[0], layout, connection)
    except (OSError, ProtocolError, NotSharedError) as error:
        connection.close()
        reason = str(error)
        if isinstance(error, TimeoutError):
            reason = f"no answer to the claim within {CLAIM_S:g} s"
        elif isinstance(error, OSError):
            reason = f"{path}: {error.strerror or error}"
        raise NotSharedError(reason) from error
    finally:
        for fd in fds:
            os.close(fd)


def _unmap(
    garbage: "queue.SimpleQueue[object]",
    _reference: object,  # its callback is called only while it exists
    callbacks: list[Callable[[], object]],
    mapping: mmap.mmap,
    connection: socket.socket,
) -> None:
    garbage.get()
    with _unmapping:
        for call in callbacks:
            call()
    mapping.close()
    with contextlib.suppress(OSError):  # the node process may be gone
        connection.send(FAREWELL)
    connection.close()


# --- Batches, as the consumer reads them ------------------------------------------------------


class _Rows:
    """The arrays of one batch in memory that is laid out as a slot.

    They are those of the layout's epoch 0 until ``show``.
    """

    def __init__(self, layout: SlotLayout, memory: NDArray[np.uint8]) -> None:
        """Take the layout of slots, and the memory of one, uint8 (slot_bytes,)."""
        self._first = layout
        self._memory = memory
        self._lay_out(layout)

    def _lay_out(self, layout: SlotLayout) -> None:
        self.layout = layout
        rows = layout.chunk(self._memory, 0, 0, layout.batch_size)
        self.pixels: Pixels = rows.pixels
        """(batch_size, …); of the first crop, where there are several."""
        self.labels: LabelRows = rows.labels
        self.sample_ids: NDArray[np.int64] = rows.sample_ids
        self._crops = (rows.pixels, *rows.further)

    def show(self, epoch: int) -> None:
        """Set the arrays to those of a batch of ``epoch``: images may have another size then."""
        layout = self._first.at(epoch)
        if layout is not self.layout:
            self._lay_out(layout)

    @property
    def all_pixels(self) -> NDArray[np.uint8]:
        """The memory of the pixels of all crops; ``layout.groups`` has the arrays in it."""
        return self._memory[: self.layout.pixel_bytes]

    @property
    def groups(self) -> tuple[Pixels, ...]:
        """The pixels of each group of crops, (crops, batch_size, …)."""
        return self.layout.groups(self.all_pixels)


class SlotBuffer(_Rows):
    """A lent slot, which nothing may write; its arrays keep all slots mapped."""

    def __init__(self, memory: LentMemory, number: int, slot: NDArray[np.uint8]) -> None:
        super().__init__(memory.layout, slot)
        self.memory = memory
        self.address = memory.address + number * memory.layout.slot_bytes
        self.is_page_locked: bool | None = None  # None: not tried yet


class BatchBuffer(_Rows):
    """Memory for one batch, which is laid out as a slot."""

    def __init__(self, recipe: Recipe, labels: LabelSpec, allocate: Allocate = np.empty) -> None:
        layout = SlotLayout.of_recipe(recipe, labels, slots=1)
        super().__init__(layout, allocate((layout.slot_bytes,), np.dtype(np.uint8)))

    def write(self, chunk: Chunk, frames: Sequence[bytes | memoryview]) -> None:
        """Copy a chunk's frames to its rows; callers check the sizes."""
        self.show(chunk.epoch)
        rows = slice(chunk.first, chunk.first + chunk.images)
        for frame, array in zip(frames, (*self._crops, self.labels, self.sample_ids), strict=True):
            to = array[rows]
            to[...] = np.frombuffer(frame, to.dtype).reshape(to.shape)

    def fill_padding(self) -> None:
        """Make all rows padding: grey pixels, no label, no sample."""
        for pixels in self._crops:
            pixels[:] = self.layout.pixel_layout.grey
        self.labels[:] = self.layout.labels.padding
        self.sample_ids[:] = PADDING_SAMPLE_ID


HostRows: TypeAlias = SlotBuffer | BatchBuffer
"""A complete batch in host memory: pixels, labels and int64 ids, as they are on the wire."""
