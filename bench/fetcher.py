"""A client of one feeder on the engine of the training loaders, without what they make of batches.

    with BatchFetcher(endpoint, recipe=recipe) as fetcher:
        for batch in fetcher.fetch(first=0, count=8): ...

It requests those batches and no others, so that contenders can take turns.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.host_memory import SlotBuffer
from feeder.client.transport import Transport
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.security.keys import ClientKeys
from feeder.wire.messages import BatchKey, Hello

from .daemon import DATASET_NAME


class _Run(BatchSequence, frozen=True):
    count: int = 0

    def __len__(self) -> int:
        return self.count


class FetchedBatch(NamedTuple):
    """One batch, valid until the next one is taken unless it is kept. Only read it."""

    key: BatchKey
    valid: int
    pixels: Pixels
    labels: LabelRows
    sample_ids: NDArray[np.int64]
    slot: SlotBuffer | None  # None where the batch was copied over the socket


class BatchFetcher:
    """A session with one feeder; a context manager."""

    def __init__(
        self,
        endpoint: str,
        *,
        recipe: Recipe,
        dataset: str = DATASET_NAME,
        seed: int = 0,
        window: int = 4,
        timeout_s: float = 60.0,
        client: str = "feeder-bench",
        share_memory: bool = True,
        keys: ClientKeys | None = None,
    ) -> None:
        """Open the session; ``timeout_s`` is the deadline of that, and then of each batch."""
        self._timeout_s = timeout_s
        hello = Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client=client)
        job = Job(name=endpoint, hello=hello, share_memory=share_memory, rank=os.getpid())
        self.session = ClientSession(job, buffers=window)
        self._transport = Transport(self.session, Directory(endpoint, keys), keys)
        self._held: int | None = None  # the buffer of the batch that was taken last
        self._next = 0  # the first batch that ``advance`` has not fetched
        try:
            self.welcome = self._transport.wait_for_welcome(timeout_s, for_packing=False)
        except BaseException:
            self.close()
            raise

    def fetch(self, first: int = 0, count: int = 1) -> Iterator[FetchedBatch]:
        """Yield ``count`` batches from ``first`` on, counted through the epochs."""
        self.give_back()
        wanted = _Run(0, range(self.welcome.batches), first, count=count)
        self._transport.begin(wanted)
        for position in range(count):
            yield self.take(wanted.key(position))

    def replay(self, first: int, end: int) -> None:
        """As a contender: fetch batches first .. end - 1, the same in each round."""
        for _ in self.fetch(first, end - first):
            pass

    def advance(self, first: int, end: int) -> None:
        """As a contender: fetch the next end - first batches, through the epochs."""
        self.replay(self._next, self._next + end - first)
        self._next += end - first

    def take(self, key: BatchKey) -> FetchedBatch:
        """Wait for the next batch, which is ``key``, and give back the one before."""
        give_back = partial(self.give_back, before_waiting=True)
        batch = self._transport.take(key, self._timeout_s, give_back)
        self.give_back()
        self._held = batch.buffer
        rows = self._transport.rows(batch)
        slot = rows if isinstance(rows, SlotBuffer) else None
        return FetchedBatch(key, batch.valid, rows.pixels, rows.labels, rows.sample_ids, slot)

    def give_back(self, *, before_waiting: bool = False) -> None:
        if self._held is not None:
            self._transport.return_buffers([self._held], before_waiting=before_waiting)
            self._held = None

    def keep(self) -> None:
        """Keep the batch that was taken last until the end of the session."""
        self._held = None

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
