"""The copy bandwidth of a node process's CPUs, measured once at its start.

Threads copy arrays with numpy, which releases the GIL, for some tens of milliseconds. What else
runs on these CPUs then lowers the figure. A thread's arrays exceed a core's part of the
last-level cache on most machines; on CPUs with more (64 MB and more for some cores) it is too high.
"""

import contextlib
import mmap
import threading
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

THREADS_MAX: Final = 32
"""As many cores saturate the memory controllers of a NUMA node with twelve channels."""

_ARRAY_BYTES: Final = 16 << 20
"""Of a thread's source, and again of its destination."""

_COPY_S: Final = 0.02
"""Of copying; mapping the pages takes as long again."""

_PIECE_BYTES: Final = 4 << 20
"""A thread looks at the clock, for which it needs the GIL, after each piece."""

_SPARE_SHARE: Final = 4
"""The probe is skipped where its memory is more than this part of what is available."""


def measure_copy_bandwidth(cpus: int, available_bytes: int) -> float:
    """Return bytes read plus bytes written per second by copies in one thread a CPU.

    Takes about 50 ms with ``cpus`` free CPUs. 0.0 where memory or threads are short: fewer than
    four times its 32 MiB a thread in ``available_bytes``.
    """
    threads = max(1, min(cpus, THREADS_MAX))
    if 2 * threads * _ARRAY_BYTES * _SPARE_SHARE > available_bytes:
        return 0.0
    copied = [0] * threads
    ends_s = [0.0] * threads
    barrier = threading.Barrier(threads + 1)
    try:
        pairs = [(_map_array(_ARRAY_BYTES), _map_array(_ARRAY_BYTES)) for _ in range(threads)]
    except OSError:
        return 0.0

    def copy(number: int) -> None:
        source, target = pairs[number]
        np.copyto(source, 1)  # maps the pages; untouched ones are all the same page of zeros
        np.copyto(target, 2)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()
            copied[number], ends_s[number] = _copy_for(_COPY_S, source, target)

    running = [threading.Thread(target=copy, args=(n,), daemon=True) for n in range(threads)]
    try:
        for thread in running:
            thread.start()
    except RuntimeError:  # no thread is left to this user
        barrier.abort()
        return 0.0
    barrier.wait()
    started_s = time.perf_counter()
    for thread in running:
        thread.join()
    return 2 * sum(copied) / max(max(ends_s) - started_s, 1e-9)


def _copy_for(
    seconds: float, source: NDArray[np.uint8], target: NDArray[np.uint8]
) -> tuple[int, float]:
    """Copy piece by piece, again and again; return the bytes and when it ended."""
    copied, now_s = 0, time.perf_counter()
    end_s = now_s + seconds
    while now_s < end_s:
        at = copied % len(source)
        np.copyto(target[at : at + _PIECE_BYTES], source[at : at + _PIECE_BYTES])
        copied += _PIECE_BYTES
        now_s = time.perf_counter()
    return copied, now_s


def _map_array(size_bytes: int) -> NDArray[np.uint8]:
    """Return an array in a mapping of its own, which returns to the system with it."""
    mapping = mmap.mmap(-1, size_bytes)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)
