"""The batches of one session, from the feeders to the training loop: connect, fetch ahead, take."""

import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.host_memory import Allocate, HostRows, SlotBuffer
from feeder.client.stats import request_names, request_sources
from feeder.client.transport import Transport
from feeder.errors import ConfigError, DatasetError, FeederError, PeerError
from feeder.plan.labels import INDEX_LABELS
from feeder.plan.recipe import Recipe
from feeder.security.keys import read_client_keys
from feeder.wire.messages import MAX_WINDOW, BatchKey, Hello
from feeder.wire.slot_layout import SlotLayout
from trainer_client._ranks import Ranks

MAX_TIMEOUT_S: Final = 86_400

AnyBatch = TypeVar("AnyBatch")
_Answer = TypeVar("_Answer")

ImageSize: TypeAlias = int | Mapping[int, int] | Mapping[str, int]
"""Pixels, also by epoch: {0: 128, 30: 160}; the keys may be texts, as in JSON and TOML."""


class Delivery(Struct, frozen=True, kw_only=True):
    """A complete batch in host memory."""

    rows: HostRows
    count: int
    """How many of the rows the training loop gets."""
    valid: int
    """How many of these are real."""
    epoch: int
    index: int
    has_groups: bool = False
    """Whether the recipe has ``crops``."""
    views_max: int
    """How many batches the training loop may hold in buffers, this one among them: half of those
    that there are, so that the others suffice for fetching ahead."""

    def copy_labels(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The labels and sample ids, as arrays of their own.

        Several labels a sample alone come as uint8: they become floats, with NaN as padding.
        """
        labels: NDArray[Any] = self.rows.labels[: self.count]
        if labels.dtype == np.uint8:
            labels = labels.astype(np.float32)
            labels[self.valid :] = np.nan
        else:
            labels = labels.copy()
        return labels, self.rows.sample_ids[: self.count].copy()


class Stage(Generic[AnyBatch]):
    """Turns complete host memory into batches as the training loop gets them."""

    buffers_held = 1
    """How many buffers it holds, besides those that batches are fetched into."""

    def __init__(self) -> None:
        self._free: list[int] = []  # loaded, and not returned yet

    def load(self, delivery: Delivery, buffer: int) -> AnyBatch:
        """Make the batch of ``delivery``, which lies in the buffer of this number.

        Even when this raises, e.g. out of device memory, ``reclaim`` returns the buffer later.
        """
        raise NotImplementedError

    def reclaim(self) -> list[int]:
        """The loaded buffers that may be written again."""
        free, self._free = self._free, []
        return free

    def finish(self) -> list[int]:
        """As ``reclaim``, after a wait until nothing reads the loaded buffers."""
        return self.reclaim()

    def counters(self) -> dict[str, int]:
        """The fields of ``LoaderStatistics`` that this stage counts."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The arguments of all loaders' constructors, which ``FeederLoader`` documents."""

    endpoint: str | os.PathLike[str] | Sequence[str]
    dataset: str
    split: Literal["train", "val"]
    batch_size: int
    seed: int
    image_size: ImageSize
    rank: int | None
    world_size: int | None
    window: int
    window_bytes: int
    timeout_s: float
    recipe: Mapping[str, Any] | None
    classes_of: object
    share_memory: bool
    server_key: str | os.PathLike[str] | None
    client_key: str | os.PathLike[str] | None
    summary: Callable[[str], None] | None
    job: str

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Take them from a constructor's arguments by name; ConfigError for an invalid one."""
        options = cls(**{each.name: arguments[each.name] for each in fields(cls)})
        if not 0 < options.timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"timeout_s must be above 0, up to {MAX_TIMEOUT_S}, got {options.timeout_s}"
            )
        if options.window_bytes < 1:
            raise ConfigError(f"window_bytes must be at least 1, got {options.window_bytes}")
        if options.summary is not None and not callable(options.summary):
            raise ConfigError(
                f"summary must be a function that takes a line, print for example, got "
                f"{options.summary!r}"
            )
        return options

    def make_recipe(self) -> Recipe:
        """Return the recipe; ConfigError where an argument or a field of it is invalid."""
        more = self.recipe or {}
        if clash := {"split", "batch_size", "image_size"}.intersection(more):
            raise ConfigError(f"recipe: {min(clash)} is an argument of its own, give it there")
        fields = {"image_size": self.image_size, **more}
        return Recipe.for_split(self.split, batch_size=self.batch_size, **fields)


def describe_images(recipe: Recipe, shape: Callable[[int], tuple[int, ...]]) -> str:
    """The images of a batch's row, for the log; ``shape`` is that of an image of a size."""
    texts = []
    starts = ["", *(f" from epoch {phase.epoch}" for phase in recipe.phases)]
    for start, now in zip(starts, recipe.over_epochs(), strict=True):
        groups = [f"{count} x {shape(size)}" for count, size in now.group_shapes]
        images = f"({' and '.join(groups)})" if recipe.crops else f"{shape(now.image_size)}"
        texts.append(images + start)
    return ", ".join(texts)


class Feed(Generic[AnyBatch]):
    """An open session; ``close()`` ends it, as does losing the last reference to it."""

    def __init__(
        self,
        options: LoaderOptions,
        recipe: Recipe,
        *,
        stage: Stage[AnyBatch],
        allocate: Allocate = np.empty,
        ranks: Ranks | None = None,
    ) -> None:
        """Connect and wait for the first feeder's welcome; raises what a loader documents.

        ``allocate`` makes the memory of batches that are not read in place. ``ranks``, if they are
        known now, are part of the name that feeders log.
        """
        self.stage = stage
        self.wait_s = 0.0
        """Time that the consumer has waited for batches."""
        self._timeout_s = options.timeout_s
        self._has_groups = bool(recipe.crops)
        self._begun: BatchSequence | None = None  # until a batch is taken
        self._keys = keys = read_client_keys(options.server_key, options.client_key)
        directory = Directory(options.endpoint, keys)
        self.name: str = directory.name
        # What labels of another kind take is known only from the welcome, and small beside pixels.
        layout = SlotLayout.of_recipe(recipe, INDEX_LABELS, slots=1)
        window = min(options.window, max(1, options.window_bytes // layout.slot_bytes))
        buffers = window + stage.buffers_held
        slots = window
        lends = options.share_memory and directory.may_be_local
        if lends and 1 <= window <= MAX_WINDOW:
            slots = min(MAX_WINDOW, buffers)  # a lent slot is in use until it is loaded
        client = f"{socket.gethostname()[:64]} pid {os.getpid()}"
        hello = Hello(
            dataset=options.dataset,
            recipe=recipe,
            seed=options.seed,
            window=slots,
            client=client if ranks is None else f"{client} rank {ranks.rank}",
            job=options.job,
        )
        rank, world_size = ranks or (os.getpid(), 1)
        job = Job(
            name=directory.name,
            hello=hello,
            share_memory=options.share_memory,
            rank=rank,
            world_size=world_size,
        )
        self._session = ClientSession(job, buffers=buffers)
        self._prefetch = self._session.prefetch
        transport = self._transport = Transport(self._session, directory, keys, allocate)
        # Runs on close(), when the feed is garbage, and at the interpreter's exit.
        self._finalizer = weakref.finalize(self, _end, transport, stage)
        try:
            self.welcome = transport.wait_for_welcome(options.timeout_s)
        except BaseException:
            self.close()
            raise
        if self.welcome.labels != INDEX_LABELS:
            layout = SlotLayout.of_recipe(recipe, self.welcome.labels, slots=1)
        self._layout = layout

    def batch_bytes(self, epoch: int) -> int:
        """Bytes of a batch: its pixels, labels and sample ids."""
        return self._layout.at(epoch).batch_bytes

    def check_usable(self) -> None:
        """Raise ConfigError in a fork of the process that made this, and after ``close``."""
        self._transport.check_usable()

    def begin(self, sequence: BatchSequence) -> None:
        if self._begun != sequence:
            self._transport.begin(sequence)
            self._begun = sequence

    def take(self, key: BatchKey, *, is_short: bool) -> tuple[AnyBatch, int, float]:
        """Wait for the next batch, ``key``; return it, its real rows, and the wait in seconds.

        ``is_short`` leaves out the rows that are not.
        """
        self._begun = None
        start_s = time.monotonic()
        try:
            complete = self._transport.take(key, self._timeout_s, self._finish_stage)
        finally:
            wait_s = time.monotonic() - start_s
            self.wait_s += wait_s
        rows, buffers = self._transport.rows(complete), self._prefetch.buffers
        if isinstance(rows, SlotBuffer):
            buffers = min(buffers, rows.memory.layout.slots)  # a node may grant fewer
        delivery = Delivery(
            rows=rows,
            count=complete.valid if is_short else len(rows.labels),
            valid=complete.valid,
            epoch=key[0],
            index=key[1],
            has_groups=self._has_groups,
            views_max=buffers // 2,
        )
        try:
            batch = self.stage.load(delivery, complete.buffer)
        finally:
            if free := self.stage.reclaim():
                self._transport.return_buffers(free)
        return batch, complete.valid, wait_s

    def _finish_stage(self) -> None:
        """Give back the slots being read before a wait: the feeder may have no other free."""
        if free := self.stage.finish():
            self._transport.return_buffers(free, before_waiting=True)

    def request_names(self, sample_ids: Iterable[int]) -> dict[int, str]:
        """The names of samples by id, from the first feeder that can read them in time."""
        return self._request(request_names, sample_ids)

    def request_sources(self, sample_ids: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Dataset and id there of samples by id, from the first feeder that replies in time."""
        return self._request(request_sources, sample_ids)[0]

    def _request(self, request: Callable[..., _Answer], sample_ids: Iterable[int]) -> _Answer:
        dataset, content = self._session.job.hello.dataset, self.welcome.content
        problem: FeederError = PeerError(
            f"{self.name}: no feeder serves this loader now: try again later"
        )
        for endpoint in self._session.served_endpoints:
            try:
                return request(
                    endpoint, dataset, sample_ids, self._timeout_s, self._keys, content=content
                )
            except (PeerError, DatasetError) as error:  # another one may read it
                problem = error
        raise problem

    def counters(self) -> dict[str, Any]:
        """The fields of ``LoaderStatistics`` that are counted here."""
        session = self._session
        return {
            "batches_ready": self._prefetch.ready,
            "feeders": len(session.served_endpoints),
            "feeders_left_out": len(session.links.left_out),
            "batches_requested": session.scheduler.requested,
            "batches_of_owners": session.scheduler.owned,
            "batches_asked_again": session.scheduler.retried,
            "batches_hedged": session.scheduler.hedged,
            "batches_lent": self._prefetch.lent,
            "copied_because": session.copied_because,
            "verdict": session.verdict(time.monotonic()),
            "received_bytes": session.received_bytes,
            "wait_s": self.wait_s,
            "first_batch_s": session.first_batch_s,
            "reconnects": session.reconnects,
            "chunks_discarded": self._prefetch.chunks_discarded,
            **self.stage.counters(),
        }

    def close(self) -> None:
        """End the session and free everything, within 2 s. Idempotent."""
        self._finalizer()


def _end(transport: Transport, stage: Stage[Any]) -> None:
    transport.close()
    stage.finish()  # the device must not read a slot that the node reuses
