"""The copy bandwidth of a node process's CPUs, measured once at its start.

Threads copy arrays with numpy, which releases the GIL, for some tens of milliseconds. What else
runs on these CPUs then lowers the figure. A thread's arrays exceed a core's part of the
last-level cache on most machines; on CPUs with more (64 MB and more for some cores) it is too high.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

THREADS_MAX: Final = 32  # they saturate the controllers of a NUMA node with twelve channels
_ARRAY_BYTES: Final = 16 << 20  # a thread's source, and its destination
_COPY_S: Final = 0.02  # mapping the pages takes as long again
_SPARE_SHARE: Final = 4  # the probe takes at most a quarter of the memory that is available

_Pair: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def measure_copy_bandwidth(cpus: int, available_bytes: int) -> float:
    """Measure bytes read plus bytes written per second, in about 50 ms, with one thread a CPU.

    0.0 where memory or threads are short.
    """
    threads = max(1, min(cpus, THREADS_MAX))
    if 2 * threads * _ARRAY_BYTES * _SPARE_SHARE > available_bytes:
        return 0.0
    try:
        with ThreadPoolExecutor(threads) as pool:
            pairs = list(pool.map(_map_pages, range(threads)))
            started_s = time.perf_counter()
            copied = sum(pool.map(_copy, pairs))
            copied_s = time.perf_counter() - started_s
    except (MemoryError, RuntimeError):  # no memory, or no thread is left to this user
        return 0.0
    return 2 * copied / copied_s


def _map_pages(_thread: int) -> _Pair:
    # Untouched pages are all the same page of zeros.
    return np.full(_ARRAY_BYTES, 1, np.uint8), np.full(_ARRAY_BYTES, 2, np.uint8)


def _copy(pair: _Pair) -> int:
    source, target = pair
    copied, end_s = 0, time.perf_counter() + _COPY_S
    while time.perf_counter() < end_s:
        np.copyto(target, source)
        copied += len(source)
    return copied
