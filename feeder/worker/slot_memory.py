"""The memory of slots: an anonymous file for each session, mapped by node process and workers.

It has no name, so no crash leaves it behind, and the size of /dev/shm does not limit it. Its size
is sealed: no holder of a descriptor can shrink it under another process. Clients of this machine
get a read-only descriptor (``claim_listener``).

A page that a worker has touched stays mapped, and counts as resident in each such process, although
it exists once: mapping pages anew for each chunk took a tenth of a sample's time.
"""

import fcntl
import mmap
import os
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ResourceError
from feeder.wire.slot_layout import ChunkArrays, SlotLayout

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class SlotMemory:
    """A session's slots in one mapped file; ``close()`` unmaps it."""

    def __init__(self, fd: int, layout: SlotLayout) -> None:
        """Map the file of an open descriptor, and take ownership of the descriptor."""
        self.layout = layout
        self._fd = fd
        try:
            size = os.fstat(fd).st_size
            if size != layout.total_bytes:
                raise ResourceError(
                    f"slot memory has {size} bytes, {layout.total_bytes} were announced: the "
                    "daemon's processes are of different versions, restart it"
                )
            self._mapping = mmap.mmap(fd, layout.total_bytes)
            self._memory: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create(cls, layout: SlotLayout) -> Self:
        """Create the file, filled with zeros; a page takes memory once it is written.

        Raises OSError if the machine has no descriptor or address space left.
        """
        fd = os.memfd_create("feeder-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o400)  # a read-only descriptor cannot be reopened for writing
            os.ftruncate(fd, layout.total_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, layout)

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        return self._fd

    def open_read_only(self) -> int:
        """Open the file again, read-only: such a descriptor cannot be mapped writable.

        Raises OSError if /proc is missing or no descriptor is left.
        """
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def chunk(self, slot: int, first: int, count: int, epoch: int = 0) -> ChunkArrays:
        """Views of rows first .. first + count - 1 of a slot with a batch of an epoch."""
        return self.layout.at(epoch).chunk(self._memory, slot, first, count)

    def discard(self) -> None:
        """Free the pages; processes that still map the file then read zeros."""
        self._mapping.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Close the descriptor and unmap; existing views keep their pages."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            del self._memory, self._mapping
