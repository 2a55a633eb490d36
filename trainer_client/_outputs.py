"""Memory for normalised batches, used again once nothing refers to the batch in it.

The system clears each new page: for 205 MB, 256 images in float32, that takes several times as long
as normalising into memory that has its pages. A consumer holds one batch while it takes the next,
or two where a framework reads ahead. One that keeps its batches gets new memory for each.

Needs numpy alone.
"""

import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 3  # allocations, at most

_ALIGNMENT_BYTES: Final = 64  # a cache line, and what torch's own tensors have


@dataclass(slots=True)
class _Allocation:
    memory: NDArray[np.uint8]
    lent: "weakref.ref[NDArray[np.uint8]]"


class Outputs:
    """Lends memory, which is free again when the lent array and all views of it are gone.

    A tensor made by ``torch.from_numpy`` keeps its array alive, and so do the tensor's views. One
    thread may take memory at a time.
    """

    def __init__(self) -> None:
        self._allocations: list[_Allocation] = []

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return ``size_bytes`` bytes, of any content, aligned to cache lines."""
        for allocation in self._allocations:
            if allocation.lent() is None and len(allocation.memory) >= size_bytes:
                lent = view_of(allocation.memory.data[:size_bytes])
                allocation.lent = weakref.ref(lent)
                return lent
        memory = _allocate(size_bytes)
        lent = view_of(memory.data[:size_bytes])
        held = [each for each in self._allocations if each.lent() is not None]
        self._allocations = held[1 - KEPT :]
        self._allocations.append(_Allocation(memory, weakref.ref(lent)))
        return lent


def _allocate(size_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + size_bytes]


def view_of(memory: memoryview) -> NDArray[np.uint8]:
    """Return the bytes of ``memory`` as an array whose own views keep it alive.

    numpy's view of a view refers to the array that owns the memory, past the first view; it does
    refer to an array that was made from a memoryview.
    """
    return np.frombuffer(memory, np.uint8)
