"""``FeederLoader``: the batches of a feeder in the order of the plan, ready on the device.

    with FeederLoader("tcp://127.0.0.1:5555", dataset="name", batch_size=256) as loader:
        for epoch in range(90):
            loader.set_epoch(epoch)
            for images, labels in loader: ...

Epochs. Every ``iter(loader)`` starts an epoch from its first batch: epoch 0, then 1, 2, …, or the
one that ``set_epoch`` names. Unlike with a DistributedSampler, forgetting ``set_epoch`` does not
repeat the order of the epoch before. The first batches of the next epoch are fetched while the last
ones of this epoch are consumed: there is no gap between epochs. Breaking out of an epoch is fine,
the rest of it is dropped; starting another iterator ends the one before.

Ranks. Rank r of W gets the batches r, r + W, r + 2W, … of the epoch. All ranks take the same number
of steps, ``len(loader)``. Dropping the last batch leaves out what does not fill it for everybody;
padding (evaluation) fills up with rows labelled -100, see ``Batch``.

Resuming. ``state_dict()`` says in a few integers which batch comes next; a loader of a new process
that is given it goes on there, as fast as from an epoch's start:

    loader.load_state_dict(state)
    for epoch in range(state["epoch"], 90):
        loader.set_epoch(epoch)            # the loaded epoch keeps its position, others begin at 0
        for images, labels in loader: ...

Batches that were fetched ahead do not count, only those that the iterator has returned. The state
of any rank does for all, also for another number of them, as long as ``batch_size × world_size``
stays the same: they go on with the same global order. As with torchdata's StatefulDataLoader the
state is that of the latest iterator, also after a break. What differs: nothing is kept or computed
for it in every step; after an epoch's last batch it is the next epoch's start, never an epoch
without a batch; loading into a loader that has started, or has another dataset, recipe, seed or
global batch, is an error.
"""

import operator
import os
import socket
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NoReturn, Self, cast

import msgspec
import torch
import torch.distributed

from feeder.client.core.answer_checks import name_batch
from feeder.client.core.prefetch import Prefetch
from feeder.client.core.session import ClientSession, Job
from feeder.client.endpoints import Directory
from feeder.client.transport import Transport
from feeder.errors import ConfigError, DatasetError, ProtocolError
from feeder.plan.epoch import MAX_EPOCH, rank_indices
from feeder.plan.recipe import Recipe
from feeder.security.keys import read_client_keys
from feeder.wire.messages import MAX_WINDOW, Hello, Welcome, encode
from feeder.wire.slot_layout import SlotLayout
from trainer_client._batch import Batch, BatchBuffer, BatchBuffers, SlotBuffer
from trainer_client._defaults import resolve_device, resolve_rank
from trainer_client._device import IMAGENET_MEAN, IMAGENET_STD, Normaliser
from trainer_client._staging import Stage, make_stage
from trainer_client._state import Cursor, LoaderState, Position, state_recipe
from trainer_client._statistics import LoaderStatistics

MAX_TIMEOUT_S: Final = 86_400


class FeederLoader:
    """Batches from a feeder; see the module's docstring for epochs and ranks.

    ``classes`` are the dataset's class names by label, ``samples`` its size and ``fingerprint`` its
    identity. Use it as a context manager or call ``close()``. One thread may iterate at a time.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str] | Sequence[str],
        *,
        dataset: str,
        split: Literal["train", "val"] = "train",
        batch_size: int,
        seed: int = 0,
        image_size: int = 224,
        rank: int | None = None,
        world_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float16,
        window: int = 4,
        window_bytes: int = 2 << 30,
        timeout_s: float = 60.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        recipe: Mapping[str, object] | None = None,
        share_memory: bool = True,
        server_key: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
    ) -> None:
        """Connect and wait for the first feeder's welcome.

        ``endpoint`` is one or several of tcp://HOST:PORT, ipc:///PATH, dns://NAME:PORT (every
        address of the name) and file:///PATH (one a line, read again when it changes). Any one of
        a host leads to all of that host's node processes. Feeders may come and go: batches are
        the same whoever sends them. Feeders that would send others are an error at the start, and
        later left out, see ``statistics().feeders_left_out``.

        ``rank`` and ``world_size`` default to torch.distributed's when that is initialised, else
        to 0 of 1; ``device`` to CUDA's current device, else the CPU. ``window`` batches are asked
        for ahead, or as many as fit into ``window_bytes``, at least one: 2 to 4 hide the latency of
        decoding, and 2 more for each further feeder let all work at once; more only costs memory on
        both sides.
        ``timeout_s`` bounds every wait for the feeder, the first one included; a daemon that
        restarts within it goes unnoticed but for ``statistics().reconnects``. ``recipe`` sets
        further fields of the recipe, such as ``{"scale": (0.35, 1.0)}``. At an ipc endpoint batches
        are read in the feeder's own memory; where that cannot be, or with ``share_memory=False``,
        they are copied over the socket, and ``statistics().copied_because`` says why.
        ``server_key``, the feeder's public key (a file or its 40 characters), and ``client_key``,
        the file of this client's secret key, are for tcp where the feeder has keys.

        Raises ConfigError for arguments without meaning (also where only the feeder can know),
        DatasetError when the feeder does not serve the dataset, PeerError when nobody answers
        within ``timeout_s`` or, at once, when keys do not fit, and ProtocolError when the peer
        speaks another version or no protocol of ours.
        """
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(f"timeout_s must be above 0, up to {MAX_TIMEOUT_S}, got {timeout_s}")
        if window_bytes < 1:
            raise ConfigError(f"window_bytes must be at least 1, got {window_bytes}")
        if clash := {"split", "batch_size", "image_size"}.intersection(recipe or {}):
            raise ConfigError(f"recipe: {min(clash)} is an argument of its own, give it there")
        directory = Directory(endpoint)
        self._endpoints = endpoint
        self.endpoint = directory.name
        self.dataset = dataset
        self.device = resolve_device(device)
        self.dtype = dtype
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self.recipe = Recipe.for_split(
            split, batch_size=batch_size, image_size=image_size, **(recipe or {})
        )
        self._seed = seed
        self._share_memory = share_memory
        self._keys = read_client_keys(server_key, client_key)
        self._timeout_s = timeout_s
        self._normaliser = Normaliser(self.device, dtype, mean, std, packing=self.recipe.packing)
        self._stage = make_stage(self._normaliser)
        batch_bytes = SlotLayout.of_recipe(self.recipe, slots=1).slot_bytes
        self._window = min(window, max(1, window_bytes // batch_bytes))
        self._iterator: weakref.ref[EpochIterator] | None = None
        self._batches = self._images = 0
        self._wait_s = 0.0
        welcome = self._connect(directory)
        self.classes: tuple[str, ...] = tuple(welcome.classes)
        self.samples: int = welcome.samples
        self.fingerprint: str = welcome.fingerprint
        self._cursor = Cursor(len(self._indices))
        self._state_recipe = state_recipe(self.recipe)

    def _connect(self, directory: Directory) -> Welcome:
        """Open a session for the recipe and wait for the first welcome."""
        window, recipe = self._window, self.recipe
        buffers = window + self._stage.buffers_held
        slots = window
        lends = self._share_memory and directory.may_be_local
        if lends and 1 <= window <= MAX_WINDOW:
            slots = min(MAX_WINDOW, buffers)  # what is lent is the node's until it is loaded
        hello = Hello(
            dataset=self.dataset,
            recipe=recipe,
            seed=self._seed,
            window=slots,
            client=f"{socket.gethostname()[:64]} pid {os.getpid()} rank {self.rank}",
        )
        try:
            encode(hello)
        except ProtocolError as error:
            raise ConfigError(f"dataset, seed or window is out of range: {error}") from None
        self._buffers = BatchBuffers(recipe, pinned=self.device.type == "cuda")
        self._prefetch = Prefetch(
            recipe, rank=self.rank, world_size=self.world_size, buffers=buffers
        )
        job = Job(name=directory.name, hello=hello, share_memory=self._share_memory)
        self._session = ClientSession(job, self._prefetch)
        transport = Transport(self._session, directory, self._buffers, SlotBuffer, self._keys)
        self._transport = transport
        # Runs on close(), when the loader is garbage, and at the interpreter's exit.
        self._finalizer = weakref.finalize(self, _end, transport, self._stage)
        try:
            welcome = transport.wait_for_welcome(self._timeout_s)
            self._indices = rank_indices(
                welcome.batches, self.rank, self.world_size, recipe.last_batch
            )
            if not self._indices:
                raise ConfigError(
                    f"an epoch of dataset {self.dataset!r} has {welcome.batches} whole batches of "
                    f"{recipe.batch_size}, fewer than the {self.world_size} ranks: use smaller "
                    "batches"
                )
        except BaseException:
            self.close()
            raise
        return welcome

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, the same for every rank.

        Of an epoch that a state was loaded in the middle of, fewer are left to iterate over.
        """
        return len(self._indices)

    def __iter__(self) -> "EpochIterator":
        """Start the next epoch, at its first batch or where a state was loaded."""
        self._transport.check_usable()
        former = self._live_iterator()
        if former is not None:
            former.close()
        epoch, step = self._cursor.next
        self._transport.begin(epoch, step)
        self._cursor.start()
        iterator = EpochIterator(self, epoch, self._indices[step:])
        self._iterator = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch``, an integer of any type, the next one to iterate over; begin to fetch it.

        It begins at its first batch, the epoch of a state that was loaded where that says.

        Raises ConfigError while an iterator is alive that has batches left and is not closed.
        """
        self._transport.check_usable()
        try:
            epoch = operator.index(epoch)
        except TypeError:
            raise ConfigError(f"epoch must be a whole number, got {epoch!r}") from None
        if not 0 <= epoch < MAX_EPOCH:
            raise ConfigError(f"epoch must be 0 .. {MAX_EPOCH - 1}, got {epoch}")
        iterator = self._live_iterator()
        if iterator is not None:
            raise ConfigError(
                f"set_epoch({epoch}) came in the middle of epoch {iterator.epoch}: call it between "
                "epochs, or close() the iterator first"
            )
        self._transport.begin(*self._cursor.set_epoch(epoch))

    def state_dict(self) -> dict[str, int | str]:
        """Return where the loader is, to be kept with the model: see the module's docstring.

        It takes microseconds, is under 1 KB as JSON, and may be called at any time, also in another
        thread, after an error and after ``close``.
        """
        return self._state(self._cursor.at).to_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where another loader was when it gave ``state``, and begin to fetch.

        With another batch size than that of the job's start, the session is opened anew, as the
        epoch's order is that of the start; ``recipe={"order_batch_size": …}`` with the state's
        value saves that.

        Raises ConfigError for what is no state, a state of another dataset, recipe, seed or global
        batch, and in a loader that has started: after ``iter`` or ``set_epoch``.
        """
        self._transport.check_usable()
        parsed = LoaderState.parse(state)
        parsed.check_fits(self._state(self._cursor.at))
        self._cursor.load(parsed.position)
        if parsed.order_batch_size != self.recipe.order_batch_size:
            self.close()
            self.recipe = msgspec.structs.replace(
                self.recipe, order_batch_size=parsed.order_batch_size
            )
            welcome = self._connect(Directory(self._endpoints))
            if welcome.fingerprint != self.fingerprint:
                self.close()
                raise DatasetError(
                    f"{self.endpoint}: dataset {self.dataset!r} changed while the state was "
                    f"loaded: its fingerprint is {welcome.fingerprint}, it was {self.fingerprint}; "
                    "serve the old one"
                )
        self._transport.begin(*parsed.position)

    def statistics(self) -> LoaderStatistics:
        """Return what the loader did so far; also after ``close``."""
        return LoaderStatistics(
            batches=self._batches,
            images=self._images,
            feeders=self._session.feeders,
            feeders_left_out=self._session.feeders_left_out,
            batches_asked_again=self._session.batches_asked_again,
            batches_hedged=self._session.batches_hedged,
            batches_lent=self._prefetch.lent,
            copied_because=self._session.copied_because,
            received_bytes=self._session.received_bytes,
            wait_s=self._wait_s,
            first_batch_s=self._session.first_batch_s,
            reconnects=self._session.reconnects,
            chunks_discarded=self._prefetch.chunks_discarded,
            compile_failures=self._normaliser.compile_failures,
            page_locks_refused=self._stage.page_locks_refused,
        )

    def close(self) -> None:
        """Say goodbye and free everything, within 2 s. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse with what to do: threads and connections stay with their process."""
        raise TypeError(
            f"the loader of {self.endpoint} cannot be pickled or copied: make a loader in each "
            "process, and take state_dict() along to go on where this one is"
        )

    def _state(self, position: Position) -> LoaderState:
        return LoaderState(
            epoch=position.epoch,
            step=position.step,
            world_size=self.world_size,
            batch_size=self.recipe.batch_size,
            order_batch_size=self.recipe.order_batch_size,
            seed=self._seed,
            dataset=self.dataset,
            fingerprint=self.fingerprint,
            recipe=self._state_recipe,
        )

    def _live_iterator(self) -> "EpochIterator | None":
        iterator = self._iterator() if self._iterator is not None else None
        return iterator if iterator is not None and not iterator.is_over else None

    def _take(self, epoch: int, index: int) -> Batch:
        """Wait for a batch, which must be this one, and load it onto the device."""
        name = name_batch((epoch, index))
        start_s = time.monotonic()
        try:
            complete = self._transport.take(name, self._timeout_s, self._finish_copies)
        finally:
            self._wait_s += time.monotonic() - start_s
        if complete.key != (epoch, index):
            raise AssertionError(f"{name} is due, the prefetch gave {name_batch(complete.key)}")
        buffer: SlotBuffer | BatchBuffer
        if complete.lent is not None:
            buffer = cast(SlotBuffer, complete.lent)  # made by the factory that _connect passes on
        else:
            buffer = self._buffers[complete.buffer]
            if complete.padding:
                buffer.fill_padding()
        sample_ids = buffer.sample_ids.clone()
        try:
            images, labels = self._stage.load(buffer, complete.buffer)
        finally:
            self._transport.give_back(self._stage.reclaim())
        self._batches += 1
        self._images += complete.valid
        self._cursor.advance()
        return Batch(
            images=images,
            labels=labels,
            sample_ids=sample_ids,
            valid=complete.valid,
            epoch=epoch,
            index=index,
        )

    def _finish_copies(self) -> None:
        """Before a wait for the feeder, which may wait for the slots that are being copied."""
        buffers = self._stage.finish()
        if buffers:
            self._transport.give_back(buffers)


class EpochIterator:
    """The batches of one epoch. It ends when exhausted, closed, or when a newer one starts."""

    def __init__(self, loader: FeederLoader, epoch: int, indices: range) -> None:
        self.epoch = epoch
        self._loader = loader
        self._indices = indices  # still to come
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether the epoch's last batch was returned, or the iterator was closed."""
        return not self._indices

    def __iter__(self) -> Iterator[Batch]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch; PeerError when it is not there within the loader's timeout."""
        if self._is_closed:
            raise ConfigError(f"this iterator of epoch {self.epoch} was closed")
        if not self._indices:
            raise StopIteration
        try:
            batch = self._loader._take(self.epoch, self._indices[0])
        except BaseException:
            self.close()
            raise
        self._indices = self._indices[1:]  # not before: until then the epoch is not over
        return batch

    def close(self) -> None:
        """Give up the rest of the epoch."""
        self._indices, self._is_closed = range(0), True


def _end(transport: Transport, stage: Stage) -> None:
    transport.close()
    stage.finish()  # so that nothing reads a slot that the node gets back
