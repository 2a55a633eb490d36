"""A client of one feeder on the engine of the training loaders, without what they make of batches.

    with BatchFetcher(endpoint, recipe=recipe) as fetcher:
        for batch in fetcher.fetch(first=0, count=8): ...

It requests those batches and no others, so that contenders can take turns. ``ClientProcess`` is
one in a process of its own, for benches that need several, or need one to die:

    python -m bench.fetcher PARENT_PID ENDPOINT BATCH_SIZE SEED

It reads lines ``FIRST COUNT`` and fetches COUNT batches starting with FIRST, counted through the
epochs. Its replies are lines too: ``open`` once it has a session, then ``batch AT_S IMAGES`` for
each batch (AT_S is the monotonic clock, one for the whole machine), ``done CPU_S`` (of the whole
process since the request) after the last, and ``error TEXT`` before it ends by itself. Closed input
and SIGTERM end it cleanly, with a Bye to the node.
"""

import os
import selectors
import sys
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.host_memory import SlotBuffer
from feeder.client.transport import Transport
from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.errors import FeederError, PeerError
from feeder.plan.draws import split_words
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.process.stop_signals import StopSignals
from feeder.sample.selected_reader import make_reader
from feeder.security.keys import ClientKeys
from feeder.wire.messages import BatchKey, Hello

from .daemon import DATASET_NAME
from .line_process import LineProcess
from .machine import pinned_to

CHUNK_IMAGES: Final = ServeConfig().chunk_images
TIMEOUT_S: Final = 60.0


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


class LocalBatches:
    """Makes the same batches in this process as a worker does: by chunks, in arrays it reuses."""

    def __init__(
        self, dataset: Dataset | SelectedDataset, recipe: Recipe, *, seed: int = 0
    ) -> None:
        rows = recipe.batch_size
        self.crops = [np.empty((rows, side, side, 3), np.int8) for side in recipe.crop_sizes]
        self.pixels, self.labels = self.crops[0], np.empty(rows, np.int64)
        self.dataset, self.recipe, self._seed = dataset, recipe, seed
        self._plan = lru_cache(1)(partial(recipe.plan_epoch, dataset.layout, seed=seed))
        self.batches = self._plan(epoch=0).batches  # of every epoch
        self._reader = make_reader(dataset, recipe)

    def make(self, number: int) -> NDArray[np.int64]:
        """Make a batch, counted through the epochs; return its sample ids."""
        epoch, index = divmod(number, self.batches)
        ids, draws = split_words(self._plan(epoch=epoch).words(index))
        for start in range(0, len(ids), CHUNK_IMAGES):
            rows = slice(start, start + CHUNK_IMAGES)
            self._reader.fill(
                ids[rows],
                draws=draws[rows],
                seed=self._seed,
                epoch=epoch,
                pixels=self.pixels[rows],
                labels=self.labels[rows],
                further=[crop[rows] for crop in self.crops[1:]],
            )
        return ids


class ClientProcess(LineProcess):
    def __init__(self, endpoint: str, *, batch_size: int, core: int, seed: int = 0) -> None:
        """Start it on ``core``; ``await_open`` waits for its session."""
        self.endpoint = endpoint
        self.has_session = False
        module = f"{__package__}.fetcher"
        with pinned_to(core):
            super().__init__(python_command(module, os.getpid(), endpoint, batch_size, seed))

    def fetch(self, first: int, count: int) -> None:
        self.write_line(f"{first} {count}")

    def read(self) -> list[list[str]]:
        """Return the words of each line so far, without waiting; PeerError when it has ended."""
        lines = self.read_lines()
        if lines is None:
            raise PeerError(
                f"a client over {self.endpoint} gave up: it ended with status {self.wait()}"
            )
        for line in lines:
            if line.startswith("error "):
                reason = line.removeprefix("error ")
                raise PeerError(f"a client over {self.endpoint} gave up: {reason}")
        self.has_session |= bool(lines)  # "open" is the first
        return [line.split() for line in lines]


def await_open(clients: Sequence[ClientProcess]) -> None:
    """Return once all clients have sessions; PeerError when one ends without."""
    until_s = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while not all(client.has_session for client in clients):
            list(read_clients(selector, until_s))


def read_clients(
    selector: selectors.BaseSelector, until_s: float
) -> Iterator[tuple[ClientProcess, list[str]]]:
    """Yield the words of each line until ``until_s``; PeerError when a client has ended."""
    for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
        client = key.fileobj
        assert isinstance(client, ClientProcess)
        for words in client.read():
            yield client, words


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(parent: int, endpoint: str, batch_size: int, seed: int) -> int:
    die_with_parent(parent)
    recipe = Recipe.for_split("train", batch_size=batch_size)
    with StopSignals() as signals:
        try:
            with BatchFetcher(endpoint, recipe=recipe, seed=seed, timeout_s=TIMEOUT_S) as fetcher:
                _print("open")
                for line in sys.stdin:
                    first, count = map(int, line.split())
                    cpu_before_s = time.process_time()
                    for batch in fetcher.fetch(first, count):
                        _print(f"batch {time.monotonic()} {batch.valid}")
                    _print(f"done {time.process_time() - cpu_before_s}")
        except FeederError as error:
            _print(f"error {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
