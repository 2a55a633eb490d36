"""What all loaders share: batches of a feeder, in the order of the plan. Needs no torch.

Epochs. An iterator finds its place when its first batch is taken, not when it is made: epoch 0,
then 1, 2, …, or the one that ``set_epoch`` chose. So an ``iter(loader)`` that nothing is taken from
uses up no epoch. Unlike with a DistributedSampler, forgetting ``set_epoch`` does not repeat the
previous epoch's order. The next epoch's first batches are fetched while this one's last batches are
consumed, so there is no gap between epochs. Breaking out of an epoch drops the rest of it. A loader
has one iterator at a time: the first batch of a newer one ends an older one.

Ranks. Rank r of W gets the batches r, r + W, r + 2W, … of the epoch. They are known when the first
iterator is made at the latest, see ``_ranks``. All ranks take the same number of steps,
``len(loader)``. Dropping (training) leaves out samples that do not fill a batch on every rank. In
evaluation the last batch is short on one rank; several are filled up with padding, see ``Batch``.

Resuming. ``state_dict()`` is the position of the next batch, a few integers and strings. A loader
of a new process resumes there, as fast as at an epoch's start:

    loader.load_state_dict(state)
    for epoch in range(state["epoch"], 90):
        loader.set_epoch(epoch)            # the loaded epoch keeps its position, others begin at 0
        for images, labels in loader: ...

Only batches that the iterator has returned count, not those fetched ahead. Any rank's state serves
all ranks, and another number of them as long as ``batch_size × world_size`` stays the same: the
global order continues. As with torchdata's StatefulDataLoader, the state is that of the latest
iterator, also after a break. Unlike there, no step stores or computes anything for it; after an
epoch's last batch it is the start of the next epoch, never an epoch without a batch; and loading is
an error once a batch was taken, or for another dataset, recipe, seed or global batch.
"""

import logging
import operator
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from feeder.client.core.prefetch import BatchSequence
from feeder.client.host_memory import Allocate
from feeder.errors import ConfigError, DatasetError
from feeder.plan.epoch import MAX_EPOCH, rank_indices
from feeder.plan.lanes import resolve_shape
from feeder.plan.recipe import Recipe
from feeder.wire.messages import PADDING_SAMPLE_ID, SAMPLES_LIMIT
from trainer_client._epoch import EpochIterator
from trainer_client._feed import Feed, LoaderOptions, Stage
from trainer_client._like_dataloader import DatasetInfo, LikeDataLoader, describe_samples
from trainer_client._ranks import Ranks, RankSource, check_process
from trainer_client._state import Cursor, LoaderState, check_step
from trainer_client._statistics import LoaderStatistics, StepClock, show_progress

AnyBatch = TypeVar("AnyBatch")

_log = logging.getLogger("trainer_client")


class Loader(LikeDataLoader, Generic[AnyBatch]):
    """Batches from a feeder; see the module's docstring for epochs and ranks.

    Use it as a context manager or call ``close()``. One thread may iterate at a time.
    """

    recipe: Recipe
    """The recipe that the feeder was asked for."""
    dataset: DatasetInfo
    """The dataset: ``len()``, ``name``, ``classes``, ``label_kind``, ``fingerprint``."""
    _feed: Feed[AnyBatch]

    def __init__(
        self,
        options: LoaderOptions,
        recipe: Recipe,
        stage: Stage[AnyBatch],
        *,
        described: str,
        allocate: Allocate = np.empty,
    ) -> None:
        """Connect and wait for the first feeder's welcome.

        ``described`` are the images, for the log. ``allocate`` makes the memory of batches that are
        not read in place.
        """
        check_process()
        self.recipe = recipe
        self._options = options
        self._described = described
        self._open = partial(Feed[AnyBatch], options, stage=stage, allocate=allocate)
        self._state_recipe = recipe.without_order().fingerprint()
        self._ranks = RankSource(options.rank, options.world_size)
        self._cursor = Cursor()
        self._loaded: LoaderState | None = None  # while its global batch is not checked
        self._running: weakref.ref[EpochIterator[AnyBatch]] | None = None  # the latest that began
        self._users: list[int] = []  # the thread that takes a batch now
        self._indices: range | None = None  # of this rank, once the ranks are fixed
        self._is_alone = False  # without other ranks; known once an epoch begins
        self._feed = self._open(recipe, ranks=self._ranks.known)
        self._clock = StepClock()
        welcome = self._feed.welcome
        self.dataset = DatasetInfo(
            name=options.dataset,
            classes=tuple(welcome.classes),
            fingerprint=welcome.content,
            samples=welcome.samples,
            label_kind=welcome.labels.kind,
            label_width=welcome.labels.width,
        )
        try:
            if options.classes_of is not None:
                self.dataset.check_classes(options.classes_of)
            if self._ranks.fixed is not None:
                self._indices = self._find_indices()
        except BaseException:
            self.close()
            raise
        self._is_made = True

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, the same for every rank.

        An epoch resumed in the middle has fewer remaining. Raises ConfigError while the ranks are
        not known, and for a dataset that is too small for them.
        """
        return len(self._indices if self._indices is not None else self._find_indices())

    # --- Epochs -------------------------------------------------------------------------------

    def __iter__(self) -> EpochIterator[AnyBatch]:
        """Return an iterator over the next epoch, which begins when its first batch is taken."""
        check_process()
        self._feed.check_usable()
        self._fix_ranks()
        self._fetch_ahead()
        # Its methods keep the loader alive.
        return EpochIterator(self._begin_epoch, self._take, self._users)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch``, an integer of any type, the next iterator's.

        It begins at its first batch, or at a loaded state's position in this epoch. An iterator
        that has begun continues in its own epoch.
        """
        self._feed.check_usable()
        epoch = _whole_number("epoch", epoch)
        if epoch >= MAX_EPOCH:
            raise ConfigError(f"epoch must be 0 .. {MAX_EPOCH - 1}, got {epoch}")
        self._cursor.set_epoch(epoch, is_between=self._live_iterator() is None)
        self._fetch_ahead()

    def skip_first_batches(self, count: int) -> Self:
        """Have the next iterator begin ``count`` batches later, without fetching those.

        For jobs that count their steps themselves, as with ``accelerate.skip_first_batches``; later
        epochs begin at their first batch. Returns the loader.

        Raises ConfigError where a loaded state has placed the loader in mid-epoch already, and if
        an epoch has no more batches than that: at the next ``iter`` while the ranks are not known.
        """
        self._feed.check_usable()
        count = _whole_number("the number of batches to skip", count)
        steps = None if self._indices is None else len(self._indices)
        self._cursor.skip(count, steps, is_between=self._live_iterator() is None)
        self._fetch_ahead()
        return self

    def progress(self) -> Iterator[AnyBatch]:
        """Return an iterator over the next epoch that shows a progress line with the waits.

        Raises ConfigError where tqdm is not installed.
        """
        batches = iter(self)
        return show_progress(
            batches, first=self._cursor.next.step, steps=len(self), read=self._clock.read
        )

    # --- State --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, int | str]:
        """Return the loader's position, to be saved with the model: the next batch's.

        Only batches that the iterator has returned count, not those fetched ahead. After an epoch's
        last batch it is the start of the next one. Any rank's state serves all ranks. Takes
        microseconds, is under 1 KB as JSON, and may be called at any time, also in another thread,
        after an error and after ``close``.
        """
        return self._state(self._ranks.peek()).to_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Resume at ``state``, from another loader's ``state_dict``.

        The order is that of the batch size, lanes and working set that the job began with. If this
        loader's differ, the session is reopened; ``recipe={"order_batch_size": …, "lanes": …,
        "working_set": (…["working_set"], …["piece"])}`` with the state's values avoids that.

        Raises ConfigError for an invalid state, one of another dataset, recipe or seed, and in a
        loader that has given a batch. A state of another global batch is a ConfigError, too: at
        the next ``iter`` if the ranks are not known yet.
        """
        self._feed.check_usable()
        parsed = LoaderState.parse(state)
        here = self._state(Ranks(0, 1))
        parsed.check_order(here)
        resolve_shape(
            self.dataset.samples, shuffle=self.recipe.shuffle, **parsed.order
        )  # or ConfigError
        if self._ranks.fixed is not None:
            parsed.check_global_batch(self._state(self._ranks.peek()))
            check_step(parsed.position, len(self))
        self._cursor.load(parsed.position)
        self._loaded = parsed
        if parsed.order != here.order:
            self._reopen(parsed)
        self._fetch_ahead()

    # --- Samples, statistics and the end ------------------------------------------------------

    def names(self, sample_ids: ArrayLike) -> list[str]:
        """Return the names that samples had in the source of the dataset, in the order of the ids.

        ``sample_ids``: any number of integers in one dimension, such as ``batch.sample_ids``; an id
        may come several times. -1, that of padding rows, has the name "". Names are as packing
        found them: a path below the source's folder, a key in a tar. A feeder reads them beside its
        work, some thousand names a second; a call takes several milliseconds at least.

        Raises ConfigError for ids that the dataset has not, DatasetError where a shard cannot be
        read, PeerError when no feeder replies within ``timeout_s``. Any thread may call it.
        """
        self._feed.check_usable()
        ids = _check_ids(sample_ids, self.dataset)
        names = self._feed.request_names({each for each in ids if each >= 0})
        return [names.get(each, "") for each in ids]

    def source_ids(self, batch: AnyBatch | ArrayLike) -> list[tuple[str, int]]:
        """Return the dataset and the sample id there of each row of a batch of a selection.

        ``batch`` may also be sample ids, as for ``names``. A sample of a dataset, which is no
        selection, is from itself. Padding rows have ("", -1). Datasets are named as the selection
        names them: by the last part of their folder or URL. Raises what ``names`` raises.
        """
        self._feed.check_usable()
        given: Any = batch
        ids = _check_ids(getattr(given, "sample_ids", given), self.dataset)
        sources = self._feed.request_sources({each for each in ids if each >= 0})
        return [sources.get(each, ("", -1)) for each in ids]

    def statistics(self) -> LoaderStatistics:
        """Return the counters so far, and the latest epoch's times; also after ``close``."""
        return LoaderStatistics(
            batches=self._clock.batches,
            images=self._clock.images,
            epoch=self._clock.read(),
            **self._feed.counters(),
        )

    def close(self) -> None:
        """End the session and free everything, within 2 s. Idempotent."""
        self._feed.close()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # --- Inside -------------------------------------------------------------------------------

    def _state(self, ranks: Ranks) -> LoaderState:
        recipe, dataset, welcome = self.recipe, self.dataset, self._feed.welcome
        return LoaderState(
            **self._cursor.at._asdict(),
            world_size=ranks.world_size,
            batch_size=recipe.batch_size,
            order_batch_size=recipe.order_batch_size,
            lanes=welcome.lanes,
            working_set=welcome.working_set,
            piece=welcome.piece,
            seed=self._options.seed,
            dataset=dataset.name,
            fingerprint=dataset.fingerprint,
            recipe=self._state_recipe,
        )

    def _fix_ranks(self) -> range:
        """Return this rank's indices, of ranks that are final from now on; check what needs them.

        Raises ConfigError for ranks that are not known or have changed, a dataset that is too small
        for them, and a position that does not fit them.
        """
        ranks = self._ranks.fix()
        if self._indices is None:
            self._indices = self._find_indices()
        if self._loaded is not None:
            self._loaded.check_global_batch(self._state(ranks))
        check_step(self._cursor.next, len(self._indices))
        return self._indices

    def _find_indices(self) -> range:
        ranks, batches = self._ranks.peek(), self._feed.welcome.batches
        indices = rank_indices(batches, ranks.rank, ranks.world_size, self.recipe.last_batch)
        if not indices:
            raise ConfigError(
                f"an epoch of dataset {self.dataset.name!r} has {batches} whole batches of "
                f"{self.batch_size}, fewer than the {ranks.world_size} ranks: use smaller batches"
            )
        return indices

    def _log_plan(self) -> None:
        ranks, counters = self._ranks.peek(), self._feed.counters()
        welcome = self._feed.welcome
        lanes = f"{welcome.lanes:,} lane{'s' * (welcome.lanes != 1)}"
        feeders, copied = counters["feeders"], counters["copied_because"]
        way = "read in place" if copied is None else f"copied over the socket ({copied})"
        _log.info(
            f"rank {ranks.rank} of {ranks.world_size}: {len(self):,} steps an epoch, "
            f"{self.batch_size} x {self._described}; {self.samples:,} "
            f"{describe_samples(self.dataset)} in dataset {self.dataset.name}; {lanes}, "
            f"working set {welcome.working_set:,} samples; recipe "
            f"{self.recipe.fingerprint()}; {feeders} feeder{'s' * (feeders != 1)}, batches are "
            f"{way}"
        )

    def _live_iterator(self) -> EpochIterator[AnyBatch] | None:
        iterator = self._running() if self._running is not None else None
        return iterator if iterator is not None and not iterator.is_over else None

    def _fetch_ahead(self) -> None:
        """Begin to fetch the next iterator's batches, if that is known and nothing else goes on."""
        if self._indices is not None and self._live_iterator() is None:
            position = self._cursor.next
            self._feed.begin(BatchSequence(position.epoch, self._indices, position.step))

    def _begin_epoch(self, iterator: EpochIterator[AnyBatch]) -> tuple[int, range]:
        self._feed.check_usable()
        indices = self._fix_ranks()
        if (previous := self._live_iterator()) is not None:
            previous.supersede()
        self._loaded = None
        epoch, step = self._cursor.start()
        self._is_alone = self.world_size == 1
        self._running = weakref.ref(iterator)
        self._feed.begin(BatchSequence(epoch, indices, step))
        self._clock.begin(self._feed.batch_bytes(epoch))
        return epoch, indices[step:]

    def _take(self, epoch: int, index: int) -> AnyBatch:
        assert self._indices is not None, "an epoch has begun"
        batch, valid, wait_s = self._feed.take((epoch, index), is_short=self._is_alone)
        if not self._clock.batches:  # by now it is known how they come
            self._log_plan()
        self._cursor.advance(len(self._indices))
        self._clock.add(wait_s, valid)
        if self._options.summary is not None and index == self._indices[-1]:
            self._options.summary(f"epoch {epoch}: {self._clock.read()}")
        return batch

    def _reopen(self, loaded: LoaderState) -> None:
        """Open another session, for the order of a job that began with another batch size."""
        self._feed.close()
        recipe = msgspec.structs.replace(self.recipe, **loaded.order)
        vars(self)["recipe"] = recipe  # past the refusal to set it
        self._feed = self._open(recipe, ranks=self._ranks.known)
        content = self._feed.welcome.content
        if content != self.dataset.fingerprint:
            self.close()
            raise DatasetError(
                f"{self.endpoint}: dataset {self.dataset.name!r} changed while the state was "
                f"loaded: its content fingerprint is {content}, it was "
                f"{self.dataset.fingerprint}; serve the old one"
            )


def _check_ids(sample_ids: ArrayLike, dataset: DatasetInfo) -> list[int]:
    """Return the ids as integers; ConfigError for what are no ids of the dataset or of padding."""
    ids = np.asarray(sample_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ConfigError(
            f"sample ids are whole numbers in one dimension, such as batch.sample_ids, got "
            f"{ids.dtype} {ids.shape}"
        )
    # The feeder knows the last id: where samples are drawn by weight, ``samples`` counts draws.
    beyond = ids[(ids < PADDING_SAMPLE_ID) | (ids >= SAMPLES_LIMIT)]
    if beyond.size:
        raise ConfigError(f"dataset {dataset.name!r} has no sample {beyond[0]}")
    return [int(each) for each in ids]


def _whole_number(name: str, value: object) -> int:
    """Return a number from 0 on, of any integer's type; ConfigError, about ``name``, for others."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"{name} must be a whole number, 0 or more, got {value!r}")
    return number
