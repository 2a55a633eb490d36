"""``FeederLoader``: the batches of a feeder in the order of the plan, ready on the device.

    with FeederLoader("tcp://127.0.0.1:5555", dataset="name", batch_size=256) as loader:
        for epoch in range(90):
            loader.set_epoch(epoch)
            for images, labels in loader: ...

Epochs. Every ``iter(loader)`` starts an epoch at its first batch: epoch 0, then 1, 2, …, or the one
that ``set_epoch`` chose. Unlike with a DistributedSampler, forgetting ``set_epoch`` does not repeat
the previous epoch's order. The next epoch's first batches are fetched while this one's last batches
are consumed, so there is no gap between epochs. Breaking out of an epoch drops the rest of it;
starting another iterator ends the previous one.

Ranks. Rank r of W gets the batches r, r + W, r + 2W, … of the epoch. All ranks take the same number
of steps, ``len(loader)``. Dropping (training) leaves out samples that do not fill a batch on every
rank; padding (evaluation) fills up with rows labelled -100, see ``Batch``.

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
an error once the loader has started, or for another dataset, recipe, seed or global batch.
"""

import operator
import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
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
from trainer_client._epoch import EpochIterator
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
        address of the name) and file:///PATH (one a line, read again when it changes). One endpoint
        of a host leads to all of its node processes. Feeders may come and go: all send the same
        batches. A feeder that would send different ones is an error at the start; later it is left
        out, see ``statistics().feeders_left_out``.

        ``rank`` and ``world_size`` default to torch.distributed's when that is initialised, else
        to 0 of 1; ``device`` to CUDA's current device, else the CPU. ``window`` batches are
        requested ahead, or as many as fit into ``window_bytes``, at least one: 2 to 4 hide the
        latency of decoding, and 2 more for each further feeder keep all of them busy; more only
        costs memory on both sides.
        ``timeout_s`` bounds every wait for the feeder, the first one included; a daemon that
        restarts within it only shows in ``statistics().reconnects``. ``recipe`` sets further fields
        of the recipe, such as ``{"scale": (0.35, 1.0)}``. At an ipc endpoint batches are read from
        the feeder's own memory; where that fails, or with ``share_memory=False``, they are copied
        over the socket, and ``statistics().copied_because`` has the reason.
        ``server_key``, the feeder's public key (a file or its 40 characters), and ``client_key``,
        the file of this client's secret key, are for tcp where the feeder has keys.

        Raises ConfigError for invalid arguments (also those that only the feeder can check),
        DatasetError when the feeder does not serve the dataset, PeerError when no feeder replies
        within ``timeout_s`` or, at once, when keys do not match, and ProtocolError when the peer
        has another protocol version or is no feeder.
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
            slots = min(MAX_WINDOW, buffers)  # a lent slot is in use until it is loaded
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

        An epoch resumed in the middle has fewer remaining.
        """
        return len(self._indices)

    def __iter__(self) -> "EpochIterator":
        """Start the next epoch, at its first batch or at a loaded state's position."""
        self._transport.check_usable()
        previous = self._live_iterator()
        if previous is not None:
            previous.close()
        epoch, step = self._cursor.next
        self._transport.begin(epoch, step)
        self._cursor.start()
        iterator = EpochIterator(self._take, epoch, self._indices[step:])  # keeps the loader alive
        self._iterator = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch``, an integer of any type, the next one to iterate over; begin to fetch it.

        It begins at its first batch, or at a loaded state's position in this epoch.

        Raises ConfigError while an iterator has batches remaining and is not closed.
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
                f"set_epoch({epoch}) was called in the middle of epoch {iterator.epoch}: call it "
                "between epochs, or close() the iterator first"
            )
        self._transport.begin(*self._cursor.set_epoch(epoch))

    def state_dict(self) -> dict[str, int | str]:
        """Return the loader's position, to be saved with the model: see the module's docstring.

        Takes microseconds, is under 1 KB as JSON, and may be called at any time, also in another
        thread, after an error and after ``close``.
        """
        return self._state(self._cursor.at).to_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Resume at ``state``, from another loader's ``state_dict``, and begin to fetch.

        The order is that of the batch size that the job began with. If this loader's differs, the
        session is reopened; ``recipe={"order_batch_size": …}`` with the state's value avoids that.

        Raises ConfigError for an invalid state, one of another dataset, recipe, seed or global
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
        """Return the counters so far; also after ``close``."""
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
        """End the session and free everything, within 2 s. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: threads and connections belong to one process."""
        raise TypeError(
            f"the loader of {self.endpoint} cannot be pickled or copied: make a loader in each "
            "process, and pass state_dict() on to resume at this one's position"
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
        """Wait for the batch and load it onto the device."""
        name = name_batch((epoch, index))
        start_s = time.monotonic()
        try:
            complete = self._transport.take(name, self._timeout_s, self._finish_copies)
        finally:
            self._wait_s += time.monotonic() - start_s
        if complete.key != (epoch, index):
            raise AssertionError(f"{name} is due, prefetch returned {name_batch(complete.key)}")
        buffer: SlotBuffer | BatchBuffer
        if complete.lent is not None:
            buffer = cast(SlotBuffer, complete.lent)  # from the factory that _connect passes on
        else:
            buffer = self._buffers[complete.buffer]
            if complete.padding:
                buffer.fill_padding()
        sample_ids = buffer.sample_ids.clone()
        try:
            images, labels = self._stage.load(buffer, complete.buffer)
        finally:
            self._transport.return_buffers(self._stage.reclaim())
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
        """Give back the slots being copied before a wait: the feeder may have no other free."""
        buffers = self._stage.finish()
        if buffers:
            self._transport.return_buffers(buffers)


def _end(transport: Transport, stage: Stage) -> None:
    transport.close()
    stage.finish()  # the device must not read a slot that the node reuses
