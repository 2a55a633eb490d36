"""What handing a batch over costs a client of the same host: time, and bytes through the socket.

Each batch is waited for first, untimed, until word of it is there; then is timed what the client
does about it: give the batch before back, ask for the next one, read the message, have the arrays.
Beside it stands a plain copy of the same pixels, which is the least that any socket would cost.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.report import Result, single, summarise
from feeder.errors import PeerError
from feeder.fetch import BatchFetcher
from feeder.wire import BatchKey

BATCHES: Final = 8
_TIMEOUT_S: Final = 60.0


def measure_handover(
    lent: BatchFetcher, copied: BatchFetcher, keys: Sequence[BatchKey], suffix: str
) -> list[Result]:
    """Return the rows; ``lent`` reads its batches in place, ``copied`` over the socket."""
    handed_us: list[float] = []
    copy_us: list[float] = []
    received_before = lent.received_bytes
    batches = lent.fetch(keys)
    next(batches)
    for _ in keys[1:]:
        if not lent.wait(_TIMEOUT_S):
            raise PeerError(f"no batch within {_TIMEOUT_S:g} s: is the machine overloaded?")
        began_s = time.perf_counter()
        batch = next(batches)
        handed_us.append(1e6 * (time.perf_counter() - began_s))
        spare = np.empty_like(batch.pixels)
        np.copyto(spare, batch.pixels)  # touches the pages, which a reused buffer has behind it
        began_s = time.perf_counter()
        np.copyto(spare, batch.pixels)
        copy_us.append(1e6 * (time.perf_counter() - began_s))
    for _ in batches:
        pass
    through_socket = (lent.received_bytes - received_before) / len(keys)
    received_before = copied.received_bytes
    copied_keys = keys[:1]
    for _ in copied.fetch(copied_keys):
        pass
    through_copying = copied.received_bytes - received_before
    memcpy = summarise(f"handover/memcpy{suffix}", "µs", copy_us)
    return [
        memcpy,
        summarise(
            f"handover/client{suffix}", "µs", handed_us, baseline=memcpy, baseline_values=copy_us
        ),
        single(f"handover/socket-bytes{suffix}", "bytes a batch", through_socket),
        single(f"handover/socket-bytes-copy{suffix}", "bytes a batch", through_copying),
    ]
