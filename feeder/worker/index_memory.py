"""The proven indexes of all datasets of a node process, in one anonymous file for its workers.

Selections lie there, too, so that what their files become meanwhile does not matter.

    worker                                   node process
    proves the index of a shard
    IndexProven + a copy of its rows ─────►  copies them to their place, then sets the shard's word
    drops its own rows, and reads these, as all workers do from now on

So the node process, which must not wait for a file system, reads no shard. The file is sealed once
it has mapped it: no descriptor of it can be written or mapped writable any more, and its size
cannot change. It is sparse: memory is taken as shards are proven.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Final

from feeder.dataset.opened import Dataset
from feeder.dataset.proven_index import ProvenIndex, index_bytes
from feeder.dataset.reader import ShardIndex
from feeder.dataset.selection import Selection
from feeder.errors import ResourceError
from feeder.plan.epoch import ShardLayout

_F_SEAL_FUTURE_WRITE: Final = 0x10  # Linux 5.1; the module fcntl has it from Python 3.13 on
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE


class IndexMemory:
    """The node process's end, which alone can write."""

    def __init__(
        self,
        datasets: Mapping[str, tuple[ShardLayout, int]],
        selections: Mapping[str, Selection] | None = None,
    ) -> None:
        """``datasets`` has the layout of each, and the bytes of a label row.

        Raises ResourceError if the system refuses such a file.
        """
        selections = selections or {}
        self._contents = {name: selection.content for name, selection in selections.items()}
        sizes = {name: index_bytes(*described) for name, described in datasets.items()}
        self.starts: dict[str, int] = {}
        """Where the part of each dataset begins."""
        self.selections: dict[str, tuple[int, int]] = {}
        """Where each selection begins and ends."""
        end = 0
        for name, size_bytes in sizes.items():
            self.starts[name] = end
            end = _next_page(end + size_bytes)
        for name, selection in selections.items():
            self.selections[name] = end, end + len(selection.memory)
            end = _next_page(end + len(selection.memory))
        self._fd = -1
        try:
            self._fd = os.memfd_create("feeder-index", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self._fd, max(end, mmap.PAGESIZE))  # an empty file cannot be mapped
            for name, selection in selections.items():
                _write(self._fd, selection.memory, self.selections[name][0])
            memory = memoryview(mmap.mmap(self._fd, 0))
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            self.close()
            raise ResourceError(
                f"cannot create {end / 1e6:.0f} MB of memory for the indexes of datasets "
                f"({error.strerror}): lift the limits on address space (ulimit -v) and open files "
                "(ulimit -n); Linux 5.1 is needed"
            ) from error
        self._parts = {
            name: ProvenIndex(*described, memory[self.starts[name] :][: sizes[name]])
            for name, described in datasets.items()
        }

        self._memory = memory

    def read_selection(self, name: str, where: str) -> Selection:
        """Return a selection, which is ``where`` in messages, in this memory."""
        start, end = self.selections[name]
        selection = Selection.parse(self._memory[start:end].toreadonly(), where)
        selection.check(self._contents[name])  # its file may have changed while it was copied
        return selection

    def fileno(self) -> int:
        """The descriptor, for workers; -1 once closed."""
        return self._fd

    def take(self, dataset: str, shard: int, fd: int) -> None:
        """Copy the proven rows of a shard from the file ``fd`` to their place; OSError."""
        part = self._parts[dataset]
        if part.is_here[shard]:
            return  # two workers have proven it, with the same result
        views = part.views(shard)
        # By a call, not by memcpy: then a lack of memory is an error instead of a SIGBUS.
        if os.preadv(fd, views, 0) != sum(map(len, views)):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        part.publish(shard)

    def close(self) -> None:
        """Close the descriptor; what is mapped stays so until nothing refers to it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WorkerIndexes:
    """A worker's end: it reads the file, and sends what it has proven."""

    def __init__(
        self,
        fd: int,
        starts: Mapping[str, int],
        send: Callable[[str, int, int], None],
        selections: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Map the file and close ``fd``; ``send`` a dataset, a shard and a descriptor of rows."""
        with open(fd, "rb") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        self._starts = starts
        self._send = send
        self._selections = selections or {}

    def read_selection(self, name: str, where: str) -> Selection:
        """Return a selection of the node process, which is ``where`` in messages."""
        start, end = self._selections[name]
        return Selection.parse(self._memory[start:end], where)

    def share(self, name: str, dataset: Dataset) -> None:
        """Have a dataset that was just opened read from the file, if that has a part for it.

        It has none where the node process could not open the dataset.
        """
        start = self._starts.get(name)
        if start is not None:
            layout, label_bytes = dataset.layout, dataset.labels.stored_bytes
            memory = self._memory[start:][: index_bytes(layout, label_bytes)]
            dataset.index = _SentIndex(layout, label_bytes, memory, name, self._send)


def _write(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _next_page(at: int) -> int:
    return -(-at // mmap.PAGESIZE) * mmap.PAGESIZE


class _SentIndex(ProvenIndex):
    """Sends what is to be added; it is here once the node process has it."""

    def __init__(
        self,
        layout: ShardLayout,
        label_bytes: int,
        memory: memoryview,
        name: str,
        send: Callable[[str, int, int], None],
    ) -> None:
        super().__init__(layout, label_bytes, memory)
        self._name = name
        self._send = send

    def add(self, shard: int, index: ShardIndex) -> None:
        fd = os.memfd_create("feeder-proven", os.MFD_CLOEXEC)
        with open(fd, "wb", buffering=0) as file:
            file.write(index.records.view("u1").data)
            file.write(index.label_rows.reshape(-1).data)
            self._send(self._name, shard, fd)
