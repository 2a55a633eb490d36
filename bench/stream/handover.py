"""The cost of handing a batch to a client on the same host: time, and bytes through the socket.

The client first waits, untimed, for the message that announces a batch. ``handover/client`` is the
time from reading that message to having the arrays; ``handover/client-whole`` adds what precedes
it: giving back the previous batch and requesting the next one. Between two batches the caches are
filled with other data, as in training, by copying the pixels; that copy, the least that any socket
would cost, is the baseline.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import zmq

from feeder.client.blocking import BatchFetcher
from feeder.errors import PeerError
from feeder.wire.messages import BatchKey, NodeMessage

from ..report import Result, single, summarise

BATCHES: Final = 12
_TIMEOUT_S: Final = 60.0


class TimedFetcher(BatchFetcher):
    """Records when it began to read the latest message, and how many it has read."""

    began_s = 0.0
    messages = 0

    @property
    def is_next_here(self) -> bool:
        """Whether the batch after the current one is already complete."""
        return any(not buffer.missing for buffer in list(self._window.batches.values())[1:2])

    def _receive(self, until_s: float) -> tuple[NodeMessage, Sequence[zmq.Frame]]:
        self.began_s = time.perf_counter()
        self.messages += 1
        return super()._receive(until_s)


def measure_handover(
    lent: TimedFetcher, copied: BatchFetcher, keys: Sequence[BatchKey], suffix: str
) -> list[Result]:
    """Return the rows; ``lent`` reads its batches in place, ``copied`` over the socket."""
    whole_us: list[float] = []
    handed_us: list[float] = []
    copy_us: list[float] = []
    received_before = lent.received_bytes
    batches = lent.fetch(keys)
    spare = np.zeros_like(next(batches).pixels)
    for _ in keys[1:]:
        if not lent.is_next_here and not lent.wait(_TIMEOUT_S):
            raise PeerError(f"no batch within {_TIMEOUT_S:g} s: is the machine overloaded?")
        messages_before = lent.messages
        began_s = time.perf_counter()
        batch = next(batches)
        ended_s = time.perf_counter()
        if lent.messages != messages_before + 1:
            continue  # out of order: the batch was here before, or several messages were read
        whole_us.append(1e6 * (ended_s - began_s))
        handed_us.append(1e6 * (ended_s - lent.began_s))
        np.copyto(spare, batch.pixels)
        copy_us.append(1e6 * (time.perf_counter() - ended_s))
    for _ in batches:
        pass
    through_socket = (lent.received_bytes - received_before) / len(keys)
    received_before = copied.received_bytes
    for _ in copied.fetch(keys[:1]):
        pass
    if not handed_us:
        raise PeerError("no batch came in its order: is the machine overloaded?")
    memcpy = summarise(f"handover/memcpy{suffix}", "µs", copy_us)
    rows = [memcpy]
    for name, values in (("client", handed_us), ("client-whole", whole_us)):
        rows.append(
            summarise(
                f"handover/{name}{suffix}", "µs", values, baseline=memcpy, baseline_values=copy_us
            )
        )
    rows.append(single(f"handover/socket-bytes{suffix}", "bytes a batch", through_socket))
    through_copying = copied.received_bytes - received_before
    rows.append(single(f"handover/socket-bytes-copy{suffix}", "bytes a batch", through_copying))
    return rows
