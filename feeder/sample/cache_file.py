"""The decoded cache: pixels of a node process's samples in one anonymous file, for all its workers.

The file has no name, so that nothing remains after a crash; it is passed on by descriptor.
``cache_plan`` has its layout. Pages are allocated as they are written, by the process that writes
them, and so on its NUMA node.

    absent ── reserve ──► reserved: has a range ── publish ──► published: pixels that never change

Readers take no lock: one word of an entry of the directory holds the offset of its pixels and
whether it is published. Writers lock a byte of the file: byte 0 for the directory, another one for
each entry that is being filled. The kernel releases the locks of a process that dies, so an entry
whose filler was killed is reserved and not published, and the next filler takes the same range.

Invariant: a published entry holds all of its pixels; each key has one entry; ranges neither overlap
nor leave the file.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ResourceError
from feeder.jpeg import _native
from feeder.sample.cache_plan import ENTRY_BYTES, PAGE_BYTES, CachePlan, aligned_bytes

PROBES_MAX: Final = 64
"""Most entries that are probed for a key; the directory is at most half full, so one or two are
enough. A key that would need more is not admitted."""

_MAPPED_BYTES_MAX: Final = 1 << 30
"""Once a process has read this much, it unmaps the pages (MADV_DONTNEED) and maps them again as
needed: mapped pixels count as its resident memory, and their page tables take 2 MB for each GB."""

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

# Words of the head: bytes of pixels reserved; published entries; entry being reserved, plus 1.
_USED, _PUBLISHED_ENTRIES, _PENDING = 0, 1, 2
# Words of an entry, as in native/directory.c.
_SOURCE, _SAMPLE, _BYTES, _OFFSET = 0, 1, 2, 3
_ENTRY_WORDS: Final = ENTRY_BYTES // 8
_HEAD_WORDS: Final = PAGE_BYTES // 8
_PUBLISHED: Final = 1

_DIRECTORY_LOCK: Final = 0  # byte 0; entry i has byte 1 + i


class DecodedCache:
    """One process's view of the cache, for one thread; ``close()`` is idempotent.

    A process must have only one object for each file: when it closes any descriptor of the file,
    the kernel drops all its locks on it.
    """

    def __init__(self, fd: int, plan: CachePlan) -> None:
        """Map the file of an open descriptor and take ownership of that."""
        self.plan = plan
        self._fd = fd
        self._refused_bytes = plan.pixel_bytes + 1  # there is no room for this size or more
        self._mapped_bytes = 0  # read since pages were last unmapped
        try:
            size = os.fstat(fd).st_size
            if size != plan.total_bytes:
                raise ResourceError(
                    f"the decoded cache has {size} bytes where {plan.total_bytes} were "
                    "announced: the daemon's processes are of different versions, restart it"
                )
            self._control: mmap.mmap | None = mmap.mmap(fd, plan.pixels_at)
            self._mapping: mmap.mmap | None = mmap.mmap(
                fd, plan.pixel_bytes, prot=mmap.PROT_READ, offset=plan.pixels_at
            )
        except BaseException:
            os.close(fd)
            raise
        self._words = memoryview(self._control).cast("Q")
        self._directory = memoryview(self._control)[
            PAGE_BYTES : PAGE_BYTES + plan.entries * ENTRY_BYTES
        ]
        self._pixels: NDArray[np.uint8] | None = np.frombuffer(self._mapping, np.uint8)

    @classmethod
    def create(cls, plan: CachePlan) -> Self:
        """Create the file, empty; ResourceError where the machine has no room for it."""
        fd = os.memfd_create("feeder-decoded", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, plan.total_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            os.close(fd)
            raise ResourceError(
                f"cannot create a decoded cache of {plan.total_bytes} bytes ({error.strerror}): "
                "lower cache.decoded_bytes"
            ) from error
        return cls(fd, plan)

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return self._fd

    @property
    def used_bytes(self) -> int:
        """Bytes of the file in use: head, directory and reserved pixels."""
        return self.plan.pixels_at + self._words[_USED]

    @property
    def entries(self) -> int:
        """How many entries are published."""
        return self._words[_PUBLISHED_ENTRIES]

    def find(
        self, source: int, hashes: NDArray[np.uint64], samples: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the offsets (n,) of published samples (n,) of a source, -1 where there is none.

        ``hashes`` (n,) are where the search in the directory begins.
        """
        offsets = np.empty(len(samples), np.int64)
        _native.find_offsets(self._directory, source, hashes, samples, PROBES_MAX, offsets)
        return offsets

    def pixels(self, read_bytes: int) -> NDArray[np.uint8]:
        """Return all pixels, read-only, of which the caller reads ``read_bytes``."""
        if self._pixels is None or self._mapping is None:
            raise ValueError("the decoded cache is closed")
        self._mapped_bytes += read_bytes
        if self._mapped_bytes > _MAPPED_BYTES_MAX and self._words[_USED] > _MAPPED_BYTES_MAX:
            self._mapped_bytes = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)
        return self._pixels

    def claim(self, source: int, hash_word: int, sample: int, size_bytes: int) -> int | None:
        """Reserve room for a sample and return its entry, for this process to fill.

        None if it is published, another process is filling it, or there is no room. What was
        claimed must be published or abandoned. Waits only for the lock of the directory, which is
        held for microseconds.
        """
        room_bytes = aligned_bytes(size_bytes)
        if room_bytes >= self._refused_bytes:
            return None
        entry = self._reserve(source, hash_word, sample, room_bytes)
        if entry is None:
            return None
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + entry)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return None
        if self._words[_word(entry, _OFFSET)] & _PUBLISHED:
            self.abandon(entry)
            return None
        return entry

    def write(self, entry: int, content: NDArray[np.uint8]) -> bool:
        """Write the content of a claimed entry; False if there is not enough memory.

        It is written to the file, not to the mapping: one call allocates all pages, and lack of
        memory is an error instead of a SIGBUS.
        """
        offset = self._words[_word(entry, _OFFSET)]
        if content.nbytes > self._words[_word(entry, _BYTES)]:
            raise ValueError(f"{content.nbytes} bytes do not fit the claimed entry")
        view, at = content.data.cast("B"), self.plan.pixels_at + offset
        try:
            while view:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        except OSError:
            self._refused_bytes = 0
            return False
        return True

    def publish(self, entry: int) -> None:
        """Publish a claimed entry that is written, and release the claim."""
        with self._locked_directory():
            word = _word(entry, _OFFSET)
            _native.store_word(self._words, word, self._words[word] | _PUBLISHED)
            self._words[_PUBLISHED_ENTRIES] += 1
        self.abandon(entry)

    def abandon(self, entry: int) -> None:
        """Release a claim; unless the entry was published, it can be claimed again."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 1 + entry)

    def close(self) -> None:
        """Close the descriptor and unmap; arrays that still exist keep their pages."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._directory.release()
            self._words.release()
            self._pixels = self._mapping = self._control = None

    def _reserve(self, source: int, hash_word: int, sample: int, size_bytes: int) -> int | None:
        """Return the entry of a key, adding it if necessary; None if there is no room."""
        words, last = self._words, self.plan.entries - 1
        with self._locked_directory():
            for probe in range(PROBES_MAX):
                entry = (hash_word + probe) & last
                key = words[_word(entry, _SAMPLE)]
                if key == sample + 1 and words[_word(entry, _SOURCE)] == source:
                    return entry
                if key == 0:
                    break
            else:
                return None
            used = words[_USED]
            if used + size_bytes > self.plan.pixel_bytes:
                self._refused_bytes = min(self._refused_bytes, size_bytes)
                return None
            words[_PENDING] = entry + 1
            words[_word(entry, _SOURCE)] = source
            words[_word(entry, _BYTES)] = size_bytes
            words[_word(entry, _OFFSET)] = used
            _native.store_word(words, _word(entry, _SAMPLE), sample + 1)
            words[_USED] = used + size_bytes
            words[_PENDING] = 0
            return entry

    @contextmanager
    def _locked_directory(self) -> Iterator[None]:
        """Hold the directory's lock; first finish a reservation that a dead process has begun."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _DIRECTORY_LOCK)
        try:
            words = self._words
            if words[_PENDING]:
                entry = words[_PENDING] - 1
                if words[_word(entry, _SAMPLE)]:
                    words[_USED] = words[_word(entry, _OFFSET)] + words[_word(entry, _BYTES)]
                words[_PENDING] = 0
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _DIRECTORY_LOCK)


def _word(entry: int, field: int) -> int:
    return _HEAD_WORDS + entry * _ENTRY_WORDS + field
