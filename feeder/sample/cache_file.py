"""The decoded cache: pixels of a node process's samples in one anonymous file, for all its workers.

The file has no name, so nothing is left behind whatever dies; it is handed on by descriptor. It is
laid out as ``cache_plan`` says; pages are taken from the machine as they are written, by the
process that writes them, and so on its NUMA node.

    absent ── reserve ──► reserved: has a place ── publish ──► published: pixels that never change

Readers take no lock: a word of the directory's entry holds its place and whether it is published.
Who changes something holds a lock of the file's: one byte stands for the directory, another one for
each entry that is being filled. The kernel takes these locks from a process that dies, so an entry
whose filler was killed is reserved and not published, and the next one fills the same place.

Invariant: a published entry holds all of its pixels; there is one for each key; no two places
overlap, and none leaves the file.
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
from feeder.sample.cache_plan import ENTRY_BYTES, PAGE_BYTES, CachePlan, place_bytes

PROBES_MAX: Final = 64
"""Entries that are looked at for a key; the directory is at most half full, so it takes one or two.
A key that would need more is not let in."""

_MAPPED_BYTES_MAX: Final = 1 << 30
"""What of the pixels a process has mapped counts as its resident memory, and its page tables take
2 MB for each GB: so where there are more than these, they are forgotten now and then, and mapped
again as touched."""

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

# Words of the head: bytes of pixels given out; published entries; entry under way to one, plus 1.
_USED, _PUBLISHED_ENTRIES, _PENDING = 0, 1, 2
# Words of an entry, as in native/directory.c.
_SOURCE, _SAMPLE, _BYTES, _PLACE = 0, 1, 2, 3
_ENTRY_WORDS: Final = ENTRY_BYTES // 8
_HEAD_WORDS: Final = PAGE_BYTES // 8
_PUBLISHED: Final = 1

_DIRECTORY_LOCK: Final = 0  # byte 0; entry i has byte 1 + i


class DecodedCache:
    """The cache as one process sees it, for one thread; ``close()`` is idempotent.

    A process must have one object for each file only: the kernel drops all locks of a process on a
    file when any of its descriptors of it is closed.
    """

    def __init__(self, fd: int, plan: CachePlan) -> None:
        """Map the file of an open descriptor, and own that descriptor from now on."""
        self.plan = plan
        self._fd = fd
        self._refused_bytes = plan.pixel_bytes + 1  # nothing of this size or more has room
        self._mapped_bytes = 0  # read since pages were last forgotten
        try:
            size = os.fstat(fd).st_size
            if size != plan.total_bytes:
                raise ResourceError(
                    f"a decoded cache of {size} bytes came where {plan.total_bytes} were "
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
                f"there can be no decoded cache of {plan.total_bytes} bytes ({error.strerror}): "
                "lower cache.decoded_bytes"
            ) from error
        return cls(fd, plan)

    def fileno(self) -> int:
        """Return the descriptor, to pass it on; -1 once closed."""
        return self._fd

    @property
    def used_bytes(self) -> int:
        """Bytes of the file in use: head, directory and all places."""
        return self.plan.pixels_at + self._words[_USED]

    @property
    def entries(self) -> int:
        """How many entries are published."""
        return self._words[_PUBLISHED_ENTRIES]

    def find(
        self, source: int, hashes: NDArray[np.uint64], samples: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the places (n,) of published samples (n,) of a source, -1 where there is none.

        ``hashes`` (n,) decide where the directory is searched.
        """
        places = np.empty(len(samples), np.int64)
        _native.find_places(self._directory, source, hashes, samples, PROBES_MAX, places)
        return places

    def pixels(self, read_bytes: int) -> NDArray[np.uint8]:
        """Return what places are positions in, read-only, to read so many bytes of it."""
        if self._pixels is None or self._mapping is None:
            raise ValueError("the decoded cache is closed")
        self._mapped_bytes += read_bytes
        if self._mapped_bytes > _MAPPED_BYTES_MAX and self._words[_USED] > _MAPPED_BYTES_MAX:
            self._mapped_bytes = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)
        return self._pixels

    def claim(self, source: int, hash_word: int, sample: int, size_bytes: int) -> int | None:
        """Reserve room for a sample and return its entry, for this process to fill; None if not.

        Not where it is published, another process fills it just now, or there is no room. What was
        claimed must be published or abandoned; claiming waits for nobody but for a directory that
        is being changed, which takes microseconds.
        """
        if size_bytes >= self._refused_bytes:
            return None
        entry = self._reserve(source, hash_word, sample, place_bytes(size_bytes))
        if entry is None:
            self._refused_bytes = min(self._refused_bytes, size_bytes)
            return None
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + entry)
        except (BlockingIOError, PermissionError):  # POSIX leaves it open which
            return None
        if self._words[_word(entry, _PLACE)] & _PUBLISHED:
            self.abandon(entry)
            return None
        return entry

    def write(self, entry: int, content: NDArray[np.uint8]) -> bool:
        """Write the content of a claimed entry; False where the machine has no memory for it.

        Through the file and not the mapping: one call takes all pages, and running out of them is
        an error here where it would be a signal there.
        """
        place = self._words[_word(entry, _PLACE)]
        if content.nbytes > self._words[_word(entry, _BYTES)]:
            raise ValueError(f"{content.nbytes} bytes were to be written to a smaller place")
        view, at = content.data.cast("B"), self.plan.pixels_at + place
        try:
            while view:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        except OSError:
            self._refused_bytes = 0
            return False
        return True

    def publish(self, entry: int) -> None:
        """Let everybody read a claimed entry that is written, and give the claim back."""
        with self._locked_directory():
            word = _word(entry, _PLACE)
            _native.store_word(self._words, word, self._words[word] | _PUBLISHED)
            self._words[_PUBLISHED_ENTRIES] += 1
        self.abandon(entry)

    def abandon(self, entry: int) -> None:
        """Give a claim back; unless it was published, somebody else may claim the entry."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 1 + entry)

    def close(self) -> None:
        """Close the descriptor and unmap; views that somebody still holds keep their pages."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._directory.release()
            self._words.release()
            self._pixels = self._mapping = self._control = None

    def _reserve(self, source: int, hash_word: int, sample: int, size_bytes: int) -> int | None:
        """Return the entry of a key, made if need be; None where there is no room."""
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
                return None
            words[_PENDING] = entry + 1
            words[_word(entry, _SOURCE)] = source
            words[_word(entry, _BYTES)] = size_bytes
            words[_word(entry, _PLACE)] = used
            _native.store_word(words, _word(entry, _SAMPLE), sample + 1)
            words[_USED] = used + size_bytes
            words[_PENDING] = 0
            return entry

    @contextmanager
    def _locked_directory(self) -> Iterator[None]:
        """Hold the directory's lock, and finish what a process that died with it has begun."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _DIRECTORY_LOCK)
        try:
            words = self._words
            if words[_PENDING]:
                entry = words[_PENDING] - 1
                if words[_word(entry, _SAMPLE)]:
                    words[_USED] = words[_word(entry, _PLACE)] + words[_word(entry, _BYTES)]
                words[_PENDING] = 0
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _DIRECTORY_LOCK)


def _word(entry: int, field: int) -> int:
    return _HEAD_WORDS + entry * _ENTRY_WORDS + field
