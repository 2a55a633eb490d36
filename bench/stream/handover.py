"""The cost of handing a batch to a client on the same host: time, and bytes through the socket.

The client first waits, untimed, until the daemon has lent the next batch. ``handover/client`` is
the time of taking it: reading the message that announces it, until its arrays can be used.
``handover/client-whole`` adds what precedes that: giving back the previous batch. Between two
batches the caches are filled with other data, as in training, by copying the pixels; that copy, the
least that any socket would cost, is the baseline.

``handover/loader-cpu`` is the CPU time of a training client for a batch that is lent in its slot,
with requests ahead: the consumer's calls, the I/O thread, ZeroMQ's own thread. A ``FeederLoader``
in a separate process takes batches over ipc and does nothing with the pixels:

    python -m bench.stream.handover ENDPOINT BATCH_SIZE
"""

import itertools
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from feeder.client.stats import StatsLink
from feeder.errors import PeerError
from feeder.process.child import python_command
from feeder.wire.messages import Stats, StatsRequest
from trainer_client._feed import Delivery, Stage

from ..daemon import DATASET_NAME
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..report import Result, compare, single

if TYPE_CHECKING:  # torch takes a second to import, in the loader's process only
    import torch

    from trainer_client import Batch

_BATCHES: Final = 12
_TIMEOUT_S: Final = 120.0
_PAUSE_S: Final = 0.15  # a request for counters costs a user 8 of the 64 tokens a second
_LOADER_BATCHES: Final = 48
_LOADER_WARM_UP: Final = 12


def measure_handover(lent: BatchFetcher, copied: BatchFetcher, endpoint: str) -> list[Result]:
    """Return the rows; ``lent`` reads batches in place, ``copied`` over the socket; PeerError."""
    times_us: dict[str, list[float]] = {
        "handover/memcpy": [],
        "handover/client": [],
        "handover/client-whole": [],
    }
    received_before = lent.session.received_bytes
    transport = lent._transport
    usual_s, transport.hand_back_s = transport.hand_back_s, _TIMEOUT_S  # so that this thread reads
    with StatsLink(endpoint) as stats:
        lent_before = _count_lent(stats)
        spare = np.zeros_like(next(lent.fetch(0, 10**9)).pixels)
        number, until_s = 0, time.monotonic() + _TIMEOUT_S
        while len(times_us["handover/client"]) < _BATCHES and time.monotonic() < until_s:
            number += 1
            is_lent = False
            while not is_lent and time.monotonic() < until_s:
                time.sleep(_PAUSE_S)  # lending is not signalled to others
                is_lent = _count_lent(stats) - lent_before > number
            began_s = time.perf_counter()
            lent.give_back()
            gave_back_s = time.perf_counter()
            batch = lent.take(divmod(number, lent.welcome.batches))
            ended_s = time.perf_counter()
            np.copyto(spare, batch.pixels)
            copied_s = time.perf_counter()
            spans_s = copied_s - ended_s, ended_s - gave_back_s, ended_s - began_s
            for values, span_s in zip(times_us.values(), spans_s, strict=True):
                values.append(1e6 * span_s)
    transport.hand_back_s = usual_s
    through_socket = (lent.session.received_bytes - received_before) / (number + 1)
    received_before = copied.session.received_bytes
    next(copied.fetch())
    through_copying = copied.session.received_bytes - received_before
    batch_size = lent.session.job.hello.recipe.batch_size
    return [
        *compare(times_us, "µs"),
        single("handover/socket-bytes", "bytes a batch", through_socket),
        single("handover/socket-bytes-copy", "bytes a batch", through_copying),
        single("handover/loader-cpu", "µs", _measure_loader(endpoint, batch_size)),
    ]


def _count_lent(stats: StatsLink) -> int:
    return int(stats.request(StatsRequest(), Stats, _TIMEOUT_S).counters["batches_lent"])


def _measure_loader(endpoint: str, batch_size: int) -> float:
    """Return the CPU time of a batch in µs, of a loader in a process of its own."""
    command = python_command(f"{__package__}.handover", endpoint, batch_size)
    with LineProcess(command) as process:
        try:
            return float(process.next_line(_TIMEOUT_S))
        except (EOFError, TimeoutError) as error:
            raise PeerError(f"the client failed: {error}") from None


class _IdleStage(Stage["Batch[torch.Tensor]"]):
    """Replaces the device: a batch's buffer is given back when the next batch is taken."""

    def __init__(self, batch: "Batch[torch.Tensor]") -> None:
        super().__init__()
        self._batch = batch

    def load(self, delivery: Delivery, buffer: int) -> "Batch[torch.Tensor]":
        self._free.append(buffer)
        return self._batch


def _take(endpoint: str, batch_size: int) -> float:
    import torch

    from trainer_client import Batch, FeederLoader

    torch.set_num_threads(1)
    with FeederLoader(
        endpoint, dataset=DATASET_NAME, batch_size=batch_size, device="cpu", timeout_s=_TIMEOUT_S
    ) as loader:
        loader._feed.stage = _IdleStage(Batch(torch.empty(0), torch.empty(0)))
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(_LOADER_WARM_UP):
            next(batches)
        before_s = time.process_time()
        for _ in range(_LOADER_BATCHES):
            next(batches)
        return 1e6 * (time.process_time() - before_s) / _LOADER_BATCHES


if __name__ == "__main__":
    print(_take(sys.argv[1], int(sys.argv[2])))
