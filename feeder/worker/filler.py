"""Fills chunks into the slots of sessions, in a worker process.

Rows depend on (dataset, recipe, seed, epoch, index) alone. Between chunks only scratch, open shards
and the plans of recent epochs are kept. A dataset is opened for its first chunk, so if its files
are missing or changed, only its own chunks fail. If its file system hangs, it blocks a worker until
that is killed (``feeder.session.worker_watch``).
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from time import perf_counter, thread_time
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.errors import DatasetError
from feeder.jpeg.decoders import Decoder
from feeder.plan.draws import split_words
from feeder.plan.epoch import EpochPlan
from feeder.plan.recipe import Recipe
from feeder.process.path_text import encode_name, path_from_bytes
from feeder.sample.cache import COUNTS, part_of
from feeder.sample.cache_file import DecodedCache
from feeder.sample.reader import SampleReader
from feeder.sample.selected_reader import SelectedReader
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import MAX_BLOBS_BYTES, PADDING_SAMPLE_ID
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.index_memory import WorkerIndexes
from feeder.worker.messages import DatasetSource, OpenSession, SelectionSource
from feeder.worker.slot_memory import SlotMemory

_NAMES_S: Final = 0.02
"""How long names are read for, since chunks wait meanwhile; some 0.2 ms for the names of a shard,
which are read together."""

_NAMES_BYTES: Final = 48 * 1024
"""More names than this are not begun: with one of 64 KiB they fit into a packet."""

_BLOBS_S: Final = 0.02
"""How long blobs are read for, as names are; 100 MB of them where the page cache has them."""

_BLOBS_AT_ONCE: Final = 16
"""The shards of so many may have to be opened and proven before the time is looked at."""

_PLANS_MAX: Final = 4  # the last batches of one epoch and the first of the next, with some to spare


@dataclass(slots=True, eq=False)
class _Session:
    opened: OpenSession
    memory: SlotMemory
    plan: Callable[[int], EpochPlan]  # by epoch
    reader: Callable[[int], SampleReader | SelectedReader]  # by epoch, likewise
    lanes: set[int] = field(default_factory=set)  # whose batches have come here


class ChunkFiller:
    """Fills chunks into the slots of sessions."""

    def __init__(
        self,
        sources: Mapping[str, DatasetSource],
        open_shards: int,
        cache: DecodedCache | None = None,
        decoder: Decoder = "own",
        page_cache_bytes: int = sys.maxsize,
        indexes: WorkerIndexes | None = None,
        selections: Mapping[str, SelectionSource] | None = None,
    ) -> None:
        """Fill from datasets, by name, with at most ``open_shards`` descriptors each, and from the
        decoded cache, if there is one. ``page_cache_bytes`` is Configure's; without ``indexes``,
        those of datasets are in the worker's own memory; ``selections`` are read from there."""
        self._sources = sources
        self._selections = selections or {}
        self._open_shards = open_shards
        self._decoder = decoder
        self._cache = cache
        self._page_cache_bytes = page_cache_bytes
        self._indexes = indexes
        self._open = contextlib.ExitStack()
        self._dataset = functools.cache(self._open_dataset)  # on first use
        self._selected = functools.cache(self._open_selection)
        self._sessions: dict[int, _Session] = {}
        # By dataset and recipe, for as long as a session has it.
        self._readers = WeakValueDictionary[tuple[str, str], SampleReader]()

    def test_decoding(self) -> None:
        """Decode the first sample of each dataset; DatasetError or ResourceError if that fails."""
        for name in self._sources:
            dataset, recipe = self._dataset(name), Recipe.for_split("val", batch_size=1)
            layout = SlotLayout.of_recipe(recipe, dataset.labels, slots=1)
            row = layout.chunk(np.empty(layout.total_bytes, np.uint8), 0, 0, 1)
            reader = SampleReader(dataset, recipe, decoder=self._decoder)
            first = np.zeros(1, np.int64)
            reader.fill(first, seed=0, epoch=0, pixels=row.pixels, labels=row.labels)

    def open_session(self, message: OpenSession, fd: int) -> None:
        """Map the session's slots and prepare for its recipe."""
        recipe = message.recipe
        layout = SlotLayout.of_recipe(recipe, message.labels, slots=message.slots)
        memory = SlotMemory(fd, layout)

        @functools.lru_cache(_PLANS_MAX)
        def plan(epoch: int) -> EpochPlan:
            shards = self._samples(message.dataset).layout
            return recipe.plan_epoch(shards, seed=message.seed, epoch=epoch)

        @functools.lru_cache(_PLANS_MAX)
        def reader(epoch: int) -> SampleReader | SelectedReader:
            return self._find_reader(message.dataset, recipe.at(epoch))

        self._sessions[message.session] = _Session(message, memory, plan, reader)

    def close_session(self, number: int) -> None:
        """Unmap the session's slots."""
        self._sessions.pop(number).memory.close()

    def close(self) -> None:
        """Close the datasets."""
        self._open.close()

    def fill(self, chunk: Fill) -> Filled:
        """Write the chunk into its slot; return what it took.

        Raises SampleError with the sample that is damaged or does not decode; DatasetError with the
        shard or manifest that cannot be opened, verified or read; ResourceError if too many files
        are open; MemoryError or an OSError of mmap if memory runs out.
        """
        started_s, cpu_before_s = perf_counter(), thread_time()
        session = self._sessions[chunk.session]
        reader = session.reader(chunk.epoch)
        arrays = session.memory.chunk(chunk.slot, chunk.first, chunk.count, chunk.epoch)
        plan = session.plan(chunk.epoch)
        ids, draws = plan.words(chunk.index, chunk.first, chunk.count), None
        if plan.layout.draws is not None:
            ids, draws = split_words(ids)
        stages, counts = _stage_seconds(reader), reader.cache_counts
        decoded, fallbacks = reader.decoded_bytes, reader.fallbacks
        real = len(ids)
        if real:
            try:
                reader.fill(
                    ids,
                    draws=draws,
                    seed=session.opened.seed,
                    epoch=chunk.epoch,
                    pixels=arrays.pixels[:real],
                    labels=arrays.labels[:real],
                    further=[crop[:real] for crop in arrays.further],
                )
            except DatasetError:
                # Shards are opened again: a deleted one may have a successor.
                self._samples(session.opened.dataset).close()
                raise
            arrays.sample_ids[:real] = ids
        if chunk.first == 0:
            self._advise(session, reader, plan, chunk.index)
        if real < chunk.count:
            layout = session.memory.layout
            for crop in (arrays.pixels, *arrays.further):
                crop[real:] = layout.pixel_layout.grey
            arrays.labels[real:] = layout.labels.padding
            arrays.sample_ids[real:] = PADDING_SAMPLE_ID
        return Filled(
            ticket=chunk.ticket,
            busy_s=perf_counter() - started_s,
            cpu_s=thread_time() - cpu_before_s,
            decoded_bytes=reader.decoded_bytes - decoded,
            fallbacks=reader.fallbacks - fallbacks,
            stage_seconds={name: s - stages[name] for name, s in _stage_seconds(reader).items()},
            cache_counts=dict(zip(COUNTS, map(sub, reader.cache_counts, counts), strict=True)),
        )

    def _advise(
        self,
        session: _Session,
        reader: SampleReader | SelectedReader,
        plan: EpochPlan,
        index: int,
    ) -> None:
        """Have the kernel read what the lane of a batch needs next, and drop what it has used up.

        Not where the decoded cache has most images. Of what is used up, as large a part is kept for
        the next epoch, always the same, as memory allows beside the working set. By itself the
        kernel would keep what was read last, which the next epoch needs last.
        """
        hits, misses, *_ = reader.cache_counts
        if hits > misses:
            return
        started_s = perf_counter()
        dataset, layout = self._samples(session.opened.dataset), plan.layout
        dataset.advise(plan.pieces_ahead(index), needed=True)
        if (lane := plan.lane(index)) is not None:  # leftovers are of all lanes
            session.lanes.add(lane)
        # Only lanes whose batches come here count: other feeders read the others.
        lanes_bytes = layout.size_bytes * len(session.lanes) / plan.shape.lanes
        working_bytes = lanes_bytes * plan.shape.working_set / layout.samples
        room_bytes = self._page_cache_bytes - working_bytes
        others_bytes, behind = lanes_bytes - working_bytes, plan.pieces_behind(index)
        dropped = [piece for piece in behind if _spread(piece[0]) * others_bytes >= room_bytes]
        dataset.advise(dropped, needed=False)
        reader.seconds["read"] += perf_counter() - started_s

    def read_names(self, dataset: str, sample_ids: Iterable[int]) -> tuple[bytes, ...]:
        """Read source names of the first of the samples, at least one, until it takes long.

        Raises DatasetError and ResourceError as ``fill``.
        """
        by_s, size_bytes, names = perf_counter() + _NAMES_S, 0, []
        for sample_id in sample_ids:
            names.append(encode_name(self._samples(dataset).read_name(sample_id)))
            size_bytes += len(names[-1])
            if size_bytes > _NAMES_BYTES or perf_counter() > by_s:
                break
        return tuple(names)

    def read_blobs(self, dataset: str, sample_ids: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Read the blobs of the first of the samples, at least one, until it takes long or they
        fill a message; a size of 0 is that of one that is damaged or too large.

        Returns their sizes and the descriptor of an anonymous file that holds them without gaps.
        Raises as ``fill``, and OSError.
        """
        by_s, sizes, total = perf_counter() + _BLOBS_S, list[int](), 0
        with open(os.memfd_create("feeder-blobs", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            for blob in _blobs(self._dataset(dataset), np.array(sample_ids, np.int64)):
                total += len(blob)
                if total > MAX_BLOBS_BYTES:
                    break
                file.write(blob)
                sizes.append(len(blob))
                if perf_counter() > by_s:
                    break
            return tuple(sizes or [0]), os.dup(file.fileno())

    def shard_path(self, session: int, sample_id: int) -> str:
        """The file that holds a sample of an open session."""
        return self._samples(self._sessions[session].opened.dataset).shard_path(sample_id)

    def _samples(self, name: str) -> Dataset | SelectedDataset:
        """The dataset or selection of this name, opened on first use."""
        return self._selected(name) if name in self._selections else self._dataset(name)

    def _open_selection(self, name: str) -> SelectedDataset:
        source = self._selections[name]
        assert self._indexes is not None, "the node process has put selections there"
        where = str(path_from_bytes(source.path))
        selection = self._indexes.read_selection(name, where)
        members = [functools.partial(self._dataset, member) for member in source.members]
        return SelectedDataset(selection, members)

    def _open_dataset(self, name: str) -> Dataset:
        """Open a dataset; DatasetError if its fingerprint differs."""
        source = self._sources[name]
        path, shards = path_from_bytes(source.folder), self._open_shards
        dataset = Dataset.open(path, open_shards=shards, fingerprint=source.fingerprint)
        if self._indexes is not None:
            self._indexes.share(name, dataset)
        return self._open.enter_context(dataset)

    def _find_reader(self, name: str, recipe: Recipe) -> SampleReader | SelectedReader:
        """The reader; all sessions of a recipe on a dataset, or on selections of it, share one."""
        if name in self._selections:
            members = self._selections[name].members
            return SelectedReader(
                self._selected(name), lambda number: self._share_reader(members[number], recipe)
            )
        return self._share_reader(name, recipe)

    def _share_reader(self, name: str, recipe: Recipe) -> SampleReader:
        key = name, recipe.fingerprint()
        reader = self._readers.get(key)
        if reader is None:
            dataset, cached = self._dataset(name), None
            if self._cache is not None:
                cached = part_of(self._cache, name, dataset, recipe)
            reader = SampleReader(dataset, recipe, cached, decoder=self._decoder)
            self._readers[key] = reader
        return reader


def _blobs(dataset: Dataset, sample_ids: NDArray[np.int64]) -> Iterator[memoryview]:
    """Yield the blob of each sample, valid until the next one; an empty one for a damaged one."""
    scratch = np.empty(0, np.uint8)
    for first in range(0, len(sample_ids), _BLOBS_AT_ONCE):
        ids = sample_ids[first : first + _BLOBS_AT_ONCE]
        try:
            locations = dataset.find_blobs(ids, dataset.read_records(ids))
        except DatasetError:
            yield from [memoryview(b"")] * len(ids)
            continue
        for location in locations:
            if location.blob_bytes > len(scratch):
                scratch = np.empty(2 * location.blob_bytes, np.uint8)
            try:
                blob = dataset.read_blob(location, scratch)
            except DatasetError:
                blob = memoryview(b"")
            yield blob


def _spread(number: int) -> float:
    """Return a number in [0, 1) that depends on nothing else, evenly spread over many of them."""
    return (number * 0x9E3779B1 & 0xFFFFFFFF) / 2**32  # Knuth's multiplicative hash


def _stage_seconds(reader: SampleReader | SelectedReader) -> dict[str, float]:
    return {**reader.seconds, "fill": reader.fill_seconds}  # of the decoded cache
