"""The cost of handing a batch to a client on the same host: time, and bytes through the socket.

The client first waits, untimed, until the daemon has lent the next batch. ``handover/client`` is
the time of taking it: reading the message that announces it, until its arrays can be used.
``handover/client-whole`` adds what precedes that: giving back the previous batch. Between two
batches the caches are filled with other data, as in training, by copying the pixels; that copy, the
least that any socket would cost, is the baseline.
"""

import time
from typing import Final

import numpy as np

from feeder.client.stats import StatsLink
from feeder.errors import PeerError
from feeder.wire.messages import Stats, StatsRequest

from ..fetcher import BatchFetcher
from ..report import Result, single, summarise

_BATCHES: Final = 12
_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.15  # a request for counters costs a user 8 of the 64 tokens a second


def measure_handover(
    lent: BatchFetcher, copied: BatchFetcher, endpoint: str, suffix: str
) -> list[Result]:
    """Return the rows; ``lent`` reads its batches in place, ``copied`` over the socket.

    ``endpoint`` is that of the daemon, which both use.
    """
    whole_us: list[float] = []
    handed_us: list[float] = []
    copy_us: list[float] = []
    received_before = lent.session.received_bytes
    with StatsLink(endpoint) as stats:
        lent_before = _count_lent(stats)
        spare = np.zeros_like(next(lent.fetch_run(0, 10**9)).pixels)
        number, until_s = 0, time.monotonic() + _TIMEOUT_S
        while len(handed_us) < _BATCHES and time.monotonic() < until_s:
            number += 1
            while _count_lent(stats) - lent_before <= number:
                time.sleep(_PAUSE_S)
            is_read = lent.session.prefetch.ready
            began_s = time.perf_counter()
            lent.give_back()
            gave_back_s = time.perf_counter()
            batch = lent.take(divmod(number, lent.welcome.batches))
            ended_s = time.perf_counter()
            np.copyto(spare, batch.pixels)
            copied_s = time.perf_counter()
            if not is_read:  # else the client's thread has read the message while this one waited
                whole_us.append(1e6 * (ended_s - began_s))
                handed_us.append(1e6 * (ended_s - gave_back_s))
                copy_us.append(1e6 * (copied_s - ended_s))
    through_socket = (lent.session.received_bytes - received_before) / (number + 1)
    received_before = copied.session.received_bytes
    next(copied.fetch([(0, 0)]))
    if not handed_us:
        raise PeerError("the client's thread has read all messages: is the machine overloaded?")
    memcpy = summarise(f"handover/memcpy{suffix}", "µs", copy_us)
    rows = [memcpy]
    for name, values in (("client", handed_us), ("client-whole", whole_us)):
        rows.append(
            summarise(
                f"handover/{name}{suffix}", "µs", values, baseline=memcpy, baseline_values=copy_us
            )
        )
    rows.append(single(f"handover/socket-bytes{suffix}", "bytes a batch", through_socket))
    through_copying = copied.session.received_bytes - received_before
    rows.append(single(f"handover/socket-bytes-copy{suffix}", "bytes a batch", through_copying))
    return rows


def _count_lent(stats: StatsLink) -> int:
    return int(stats.request(StatsRequest(), Stats, _TIMEOUT_S).counters["batches_lent"])
