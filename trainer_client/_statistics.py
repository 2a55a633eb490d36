"""The counters of a loader, how long its steps have waited, and a progress line with that."""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from feeder.errors import ConfigError

AnyBatch = TypeVar("AnyBatch")

_FEEDER_IS_LATE: Final = 0.02  # a smaller share of the time is not worth a second thought


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTimes:
    """How the steps of the latest epoch have waited for their batches so far."""

    steps: int = 0
    """Steps that were timed: all but the loader's first, which waits for the feeder to start."""
    seconds: float = 0.0
    """Time from the start of the first of them to the last one's batch."""
    wait_s: float = 0.0
    """The part of this time in which the consumer waited."""
    wait_p50_s: float = 0.0
    """Median wait of a step."""
    wait_p99_s: float = 0.0
    """99th percentile of the waits."""
    images_per_s: float = 0.0
    """Real images, without padding."""
    bytes_per_s: float = 0.0
    """Pixels, labels and sample ids delivered, by whatever way."""

    @property
    def wait_share(self) -> float:
        """Share of the time in which the consumer waited for batches, 0 to 1."""
        return self.wait_s / self.seconds if self.seconds else 0.0

    @property
    def late(self) -> Literal["feeder", "trainer"] | None:
        """Which side the other waits for; None before any step was timed.

        The feeder, if the consumer has waited for more than 2 % of the time.
        """
        if not self.steps:
            return None
        return "feeder" if self.wait_share > _FEEDER_IS_LATE else "trainer"

    def __str__(self) -> str:
        """Return one line that answers whether the accelerator waits for data."""
        if not self.steps:
            return "no step was timed: a loader's first one waits for the feeder to start"
        return (
            f"{self.steps:,} steps in {self.seconds:.1f} s, {self.images_per_s:,.0f} images/s, "
            f"{self.bytes_per_s / 1e6:,.0f} MB/s; waited for batches {self.wait_share:.1%} of the "
            f"time (a step: median {1e3 * self.wait_p50_s:.1f} ms, 99th percentile "
            f"{1e3 * self.wait_p99_s:.1f} ms); the {self.late} sets the pace"
        )


class StepClock:
    """Times the steps of one epoch after another."""

    def __init__(self) -> None:
        self.batches = 0  # in all epochs, as the next
        self.images = 0
        self.begin(0)

    def begin(self, batch_bytes: int) -> None:
        """Begin an epoch, whose batches have so many bytes."""
        self._batch_bytes = batch_bytes
        self._waits_s = array("d")
        self._images = 0
        self._began_s = self._ended_s = time.monotonic()

    def add(self, wait_s: float, images: int) -> None:
        """Record a step that has its batch now, after a wait."""
        self._ended_s = time.monotonic()
        if self.batches:
            self._waits_s.append(wait_s)
            self._images += images
        else:  # the loader's first step is not timed
            self._began_s = self._ended_s
        self.batches += 1
        self.images += images

    def read(self) -> EpochTimes:
        waits = sorted(self._waits_s)
        seconds = self._ended_s - self._began_s
        if not waits or not seconds:
            return EpochTimes()
        return EpochTimes(
            steps=len(waits),
            seconds=seconds,
            wait_s=sum(waits),
            wait_p50_s=waits[len(waits) // 2],
            wait_p99_s=waits[99 * len(waits) // 100],
            images_per_s=self._images / seconds,
            bytes_per_s=len(waits) * self._batch_bytes / seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics:
    """Counts since the loader was made, and the times of its latest epoch."""

    batches: int
    """Returned to the consumer."""
    images: int
    """In these batches, without padding."""
    batches_ready: int
    """Complete here, in order, not taken yet: the queue's depth now."""
    epoch: EpochTimes
    """The latest epoch's times so far."""
    feeders: int
    """Node processes that serve this loader now."""
    feeders_left_out: int
    """Endpoints that reply but cannot serve this job; the log has the reason."""
    batches_requested: int
    """Batches that were requested from feeders, each counted once."""
    batches_of_owners: int
    """Those that were first requested from their lane's owner, which has it in its cache."""
    batches_asked_again: int
    """Requested again: their node was lost, or failed to make them."""
    batches_hedged: int
    """Requested from a second node, as they were late or their node silent."""
    batches_lent: int
    """Read from the feeder's own memory, without a copy."""
    copied_because: str | None
    """Why batches are copied over the socket; None when they are lent."""
    verdict: str
    """What sets the pace and what would help, in the words of the feeder that this loader waits for
    most, as in ``feeder status``; "" in a loader's first seconds. The loader's own words where that
    feeder does not answer: it begins with "hung-network", "lost-connection" or "silent-node"."""
    received_bytes: int
    """Pixels, labels and sample ids copied, discarded chunks included."""
    wait_s: float
    """Time that the consumer waited for batches."""
    first_batch_s: float | None
    """From the first request to the first complete batch."""
    reconnects: int
    """Connections that came back after a daemon restarted or a connection broke."""
    chunks_discarded: int
    """Duplicates, and chunks of an epoch that was dropped."""
    compile_failures: int = 0
    """When not 0, normalising runs uncompiled and is slower."""
    page_locks_refused: int = 0
    """Slots that CUDA copies through staging memory, which is slower."""


def show_progress(
    batches: Iterable[AnyBatch], *, first: int, steps: int, read: Callable[[], EpochTimes]
) -> Iterator[AnyBatch]:
    """Pass on the batches of an epoch of ``steps``, from step ``first`` on, under a tqdm line.

    ``read`` returns the times so far. Raises ConfigError where tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ConfigError(
            "progress() draws its line with tqdm, which is not installed here: pip install tqdm"
        ) from None

    def show() -> Iterator[AnyBatch]:
        bar: Any
        with tqdm(total=steps, initial=first, unit="step") as bar:  # drawn at the first batch
            for batch in batches:
                yield batch
                if bar.update():  # it was redrawn
                    bar.set_postfix_str(describe(), refresh=False)
            bar.set_postfix_str(describe())

    def describe() -> str:  # what fits beside the bar on a line of 80 columns
        times = read()
        return f"{times.images_per_s:,.0f} images/s, waits {times.wait_share:.0%}"

    return show()
