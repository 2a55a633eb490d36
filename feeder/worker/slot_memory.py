"""The memory of slots: an anonymous file for each session, mapped by node process and workers.

It has no name, so nothing is left behind whatever dies, and it is no part of /dev/shm, whose size
does not limit it. Its size is sealed: no holder of the descriptor can shrink it under another one.

Clients of the machine get a descriptor for reading only (``claim_listener``).

A slot is lent while the socket may still read it. SlotLoans keeps the socket's trackers, which are
looked at only when a slot is to come back, not for each chunk.
"""

import contextlib
import fcntl
import mmap
import os
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ResourceError
from feeder.wire.slot_layout import ChunkArrays, SlotLayout

_MADV_POPULATE_WRITE: Final = 23  # not yet in Python's mmap
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class SlotMemory:
    """A session's slots in one mapped file; ``close()`` gives them back, once nobody reads them."""

    def __init__(self, fd: int, layout: SlotLayout) -> None:
        """Map the file of an open descriptor, and own that descriptor from now on."""
        self.layout = layout
        self._fd = fd
        try:
            size = os.fstat(fd).st_size
            if size != layout.total_bytes:
                raise ResourceError(
                    f"slot memory of {size} bytes came where {layout.total_bytes} were announced: "
                    "the daemon's processes are of different versions, restart it"
                )
            self._mapping: mmap.mmap | None = mmap.mmap(fd, layout.total_bytes)
            self._memory: NDArray[np.uint8] | None = np.frombuffer(self._mapping, np.uint8)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create(cls, layout: SlotLayout) -> Self:
        """Create the file, of zeros; pages are taken from the machine as they are written.

        Raises OSError when the machine has no descriptor or address space left.
        """
        fd = os.memfd_create("feeder-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o400)  # who is given a descriptor for reading cannot reopen it to write
            os.ftruncate(fd, layout.total_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, layout)

    def fileno(self) -> int:
        """Return the descriptor, to pass it on; -1 once closed."""
        return self._fd

    def open_read_only(self) -> int:
        """Return another descriptor of the file, through which it can only be read.

        Whoever maps that one cannot write, and the seals keep anybody from cutting the file short
        under a reader. OSError where /proc is missing or no descriptor is left.
        """
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def chunk(self, slot: int, first: int, count: int) -> ChunkArrays:
        """Return views of rows first .. first + count - 1 of a slot."""
        if self._memory is None:
            raise ValueError("the slots of this session are closed")
        return self.layout.chunk(self._memory, slot, first, count)

    def map_pages(self, chunk: ChunkArrays) -> None:
        """Have the pages of a chunk's pixels mapped for writing, all at once.

        One by one, as they are first written, they would cost 4 % of a sample. A kernel before 5.14
        does not know how; there, as where memory is short, writing them does what it always did.
        """
        if self._mapping is not None and self._memory is not None:
            start = chunk.pixels.ctypes.data - self._memory.ctypes.data
            first = start - start % mmap.PAGESIZE
            with contextlib.suppress(OSError):
                self._mapping.madvise(
                    _MADV_POPULATE_WRITE, first, start + chunk.pixels.nbytes - first
                )

    def forget_pages(self) -> None:
        """Let this process's page table forget the slots; their contents stay as they are."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def discard(self) -> None:
        """Give the pages back to the machine, whoever still maps the file and reads zeros then."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Close the descriptor and unmap; views that somebody still holds keep their pages."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._memory = self._mapping = None


class Tracker(Protocol):
    """What tells whether the socket still reads a frame: zmq.MessageTracker."""

    @property
    def done(self) -> bool:
        """Whether it has let go."""


class SlotLoans:
    """Which frames of a session's slots the socket may still be reading."""

    def __init__(self) -> None:
        self._trackers: dict[int, list[Tracker]] = {}

    def lend(self, slot: int, tracker: Tracker) -> None:
        """Remember that a frame of the slot was given to the socket."""
        self._trackers.setdefault(slot, []).append(tracker)

    def is_back(self, slot: int) -> bool:
        """Whether the socket has let go of all frames of the slot."""
        left = [tracker for tracker in self._trackers.pop(slot, ()) if not tracker.done]
        if left:
            self._trackers[slot] = left
        return not left

    def are_all_back(self) -> bool:
        """Whether the socket has let go of all frames of all slots."""
        return all(self.is_back(slot) for slot in list(self._trackers))
