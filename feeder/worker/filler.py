"""Fills chunks into the slots of sessions, in a worker process.

Rows depend on (dataset, recipe, seed, epoch, index) alone. Between chunks only scratch, open shards
and the plans of recent epochs are kept. A dataset is opened for its first chunk, so if its files
are missing or changed, only its own chunks fail. If its file system hangs, it blocks a worker until
that is killed (``feeder.session.worker_watch``).
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

import numpy as np

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.plan.epoch import EpochPlan
from feeder.plan.recipe import Recipe
from feeder.process.path_text import encode_name, path_from_bytes
from feeder.sample.cache import part_of
from feeder.sample.cache_file import DecodedCache
from feeder.sample.reader import STAGES as SAMPLE_STAGES
from feeder.sample.reader import SampleReader
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import PADDING_SAMPLE_ID
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.messages import DatasetSource, OpenSession
from feeder.worker.slot_memory import SlotMemory

STAGES: Final = (*SAMPLE_STAGES, "fill")
"""The stages that ``fill`` times; the last is filling the decoded cache."""

_NAMES_S: Final = 0.02
"""How long names are read for, since chunks wait meanwhile; some 15 µs each in an open shard."""

_NAMES_BYTES: Final = 48 * 1024
"""More names than this are not begun: with one of 64 KiB they fit into a packet."""

_PLANS_MAX: Final = 4  # the last batches of one epoch and the first of the next, with some to spare


@dataclass(slots=True, eq=False)
class _Session:
    opened: OpenSession
    memory: SlotMemory
    reader_key: tuple[str, str]
    plan: Callable[[int], EpochPlan]
    """By epoch; the first chunk makes it."""


class ChunkFiller:
    """Fills chunks into the slots of sessions."""

    def __init__(
        self,
        sources: Mapping[str, DatasetSource],
        open_shards: int,
        cache: DecodedCache | None = None,
        decoder: Decoder = "own",
    ) -> None:
        """Fill from datasets, by name, with at most ``open_shards`` descriptors each, and from the
        decoded cache, if there is one."""
        self._sources = sources
        self._open_shards = open_shards
        self._decoder = decoder
        self._datasets: dict[str, Dataset] = {}
        self._cache = cache
        self._sessions: dict[int, _Session] = {}
        self._readers: dict[tuple[str, str], SampleReader] = {}  # by dataset and recipe

    def test_decoding(self) -> None:
        """Decode the first sample of each dataset; DatasetError or ResourceError if that fails."""
        for name in self._sources:
            recipe = Recipe.for_split("val", batch_size=1)
            size, dataset = recipe.image_size, self._dataset(name)
            SampleReader(dataset, recipe, decoder=self._decoder).fill(
                np.zeros(1, np.int64),
                seed=0,
                epoch=0,
                pixels=np.empty((1, size, size, 3), np.int8),
                labels=np.empty((1, *dataset.labels.row_shape), dataset.labels.dtype),
            )

    def open_session(self, message: OpenSession, fd: int) -> None:
        """Map the session's slots and prepare for its recipe."""
        recipe = message.recipe
        layout = SlotLayout.of_recipe(recipe, message.labels, slots=message.slots)
        memory = SlotMemory(fd, layout)

        @functools.lru_cache(_PLANS_MAX)
        def plan(epoch: int) -> EpochPlan:
            shards = self._dataset(message.dataset).layout
            return recipe.plan_epoch(shards, seed=message.seed, epoch=epoch)

        reader_key = message.dataset, recipe.fingerprint()
        self._sessions[message.session] = _Session(message, memory, reader_key, plan)

    def close_session(self, number: int) -> None:
        """Unmap the session's slots; drop its reader with the last session that uses it."""
        session = self._sessions.pop(number)
        session.memory.close()
        if all(other.reader_key != session.reader_key for other in self._sessions.values()):
            self._readers.pop(session.reader_key, None)

    def close(self) -> None:
        """Close the datasets."""
        while self._datasets:
            self._datasets.popitem()[1].close()

    def fill(self, chunk: Fill) -> Filled:
        """Write the chunk into its slot; return what it took, with the seconds of each of STAGES.

        Raises SampleError with the sample that is damaged or does not decode; DatasetError with the
        shard or manifest that cannot be opened, verified or read; ResourceError if too many files
        are open; MemoryError or an OSError of mmap if memory runs out.
        """
        started_s, cpu_before_s = perf_counter(), thread_time()
        session = self._sessions[chunk.session]
        reader = self._reader(session)
        arrays = session.memory.chunk(chunk.slot, chunk.first, chunk.count)
        ids = session.plan(chunk.epoch).samples(chunk.index, chunk.first, chunk.count)
        seconds, counts = _spent(reader), reader.cache_counts
        decoded, fallbacks = reader.decoded_bytes, reader.fallbacks
        real = len(ids)
        if real:
            reader.fill(
                ids,
                seed=session.opened.seed,
                epoch=chunk.epoch,
                pixels=arrays.pixels[:real],
                labels=arrays.labels[:real],
            )
            arrays.sample_ids[:real] = ids
        if real < chunk.count:
            layout = session.memory.layout
            arrays.pixels[real:] = layout.pixel_layout.grey
            arrays.labels[real:] = layout.labels.padding
            arrays.sample_ids[real:] = PADDING_SAMPLE_ID
        return Filled(
            ticket=chunk.ticket,
            busy_s=perf_counter() - started_s,
            cpu_s=thread_time() - cpu_before_s,
            decoded_bytes=reader.decoded_bytes - decoded,
            fallbacks=reader.fallbacks - fallbacks,
            stage_seconds=tuple(
                now - then for now, then in zip(_spent(reader), seconds, strict=True)
            ),
            cache_counts=tuple(
                now - then for now, then in zip(reader.cache_counts, counts, strict=True)
            ),
        )

    def read_names(self, dataset: str, sample_ids: Iterable[int]) -> tuple[bytes, ...]:
        """Read source names of the first of the samples, at least one, until it takes long.

        Raises DatasetError and ResourceError as ``fill``.
        """
        by_s, size_bytes, names = perf_counter() + _NAMES_S, 0, []
        for sample_id in sample_ids:
            names.append(encode_name(self._dataset(dataset).read_name(sample_id)))
            size_bytes += len(names[-1])
            if size_bytes > _NAMES_BYTES or perf_counter() > by_s:
                break
        return tuple(names)

    def shard_path(self, session: int, sample_id: int) -> str:
        """The file that holds a sample of an open session."""
        return str(self._dataset(self._sessions[session].opened.dataset).shard_path(sample_id))

    def _dataset(self, name: str) -> Dataset:
        """A dataset, opened on first use; DatasetError if its fingerprint differs."""
        dataset = self._datasets.get(name)
        if dataset is None:
            source = self._sources[name]
            path, shards = path_from_bytes(source.folder), self._open_shards
            dataset = Dataset.open(path, open_shards=shards, fingerprint=source.fingerprint)
            self._datasets[name] = dataset
        return dataset

    def _reader(self, session: _Session) -> SampleReader:
        """The reader, which all sessions of this dataset and recipe share."""
        reader = self._readers.get(session.reader_key)
        if reader is None:
            name, recipe = session.opened.dataset, session.opened.recipe
            dataset, cached = self._dataset(name), None
            if self._cache is not None:
                cached = part_of(self._cache, name, dataset, recipe)
            reader = SampleReader(dataset, recipe, cached, decoder=self._decoder)
            self._readers[session.reader_key] = reader
        return reader


def _spent(reader: SampleReader) -> tuple[float, ...]:
    """The seconds that a reader has spent in each of STAGES."""
    return (*reader.seconds.values(), reader.fill_seconds)
