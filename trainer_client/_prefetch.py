"""Which batches are wanted, and what has arrived of them: book-keeping without input or output.

Batches are wanted in one order, the *course*: this rank's indices of an epoch, then those of the
next epoch, without end. Each batch of the course passes through these states:

    open      has a buffer; to be asked for, or asked for; its chunks arrive in any order
    settled   every row is there, or the node said that it cannot be had
    taken     the consumer owns the buffer until it gives it back

A batch that the node lends in place settles at once. Its rows are in the node's slot instead of the
buffer, so it is released later: when the consumer gives it back.

Invariants. Only the course's next batch is ever taken, so none is repeated, skipped or reordered,
whatever a node does. Buffers are assigned in ``want`` and nowhere else: whoever writes chunks also
calls ``want``, in one thread, so no buffer is written for two batches at once. A batch that was
asked for is released exactly once, when it is settled or given up, and one that was lent when the
consumer has read it or never will; never in another session than the one it was asked for in. A
slot is read by nobody once it was released: a Lent counts only if it answers the latest request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from feeder.errors import DatasetError, ProtocolError
from feeder.packing import pixel_layout_of
from feeder.plan import rank_indices
from feeder.recipe import Recipe
from feeder.wire import Chunk, Lent
from trainer_client._batch import HostBatch

Key = tuple[int, int]  # (epoch, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the rows of an arriving chunk belong."""

    key: Key
    buffer: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteBatch:
    """A batch that the consumer may take; ``padding`` ones came from no node and are unwritten."""

    key: Key
    buffer: int
    valid: int
    padding: bool
    lent: HostBatch | None = None
    """Where its rows are, when not in the buffer."""


@dataclass(frozen=True, slots=True)
class Course:
    """All batches of one rank from a step of an epoch on, in order and without end."""

    epoch: int
    indices: range
    step: int = 0

    def key(self, position: int) -> Key:
        """Return the batch at ``position``, counted from the course's start."""
        epochs, step = divmod(self.step + position, len(self.indices))
        return self.epoch + epochs, self.indices[step]


@dataclass(slots=True, kw_only=True)
class _Assembly:
    """A batch of the course that has a buffer."""

    buffer: int
    valid: int
    asked: bool = False
    request: int = 0  # the number of the latest one
    settled: bool = False
    lent: HostBatch | None = None
    failure: str | None = None
    chunks: int = 0
    missing: set[int] = field(default_factory=set)  # first rows of the chunks still to come

    def ask(self, request: int, batch_size: int, chunk_images: int) -> None:
        self.asked = True
        self.request = request
        self.chunks = -(-batch_size // chunk_images)
        self.missing = set(range(0, batch_size, chunk_images))


class Prefetch:
    """The batches between the node and the consumer. Not thread-safe."""

    def __init__(self, recipe: Recipe, *, rank: int, world_size: int, buffers: int) -> None:
        """Start with all buffers, numbered from 0, free and nothing wanted."""
        self.recipe = recipe
        self.rank = rank
        self.world_size = world_size
        self.chunks_discarded = 0
        self.completed = 0
        self.lent = 0  # of the completed
        self.request = 0  # number of the latest ``want`` that asked for anything
        self._free = list(range(buffers))
        self._held: dict[Key, _Assembly] = {}  # in the course's order
        self._course: Course | None = None
        self._position = 0  # in the course, of the next batch that gets a buffer
        self._releases: list[Key] = []
        self._borrowed: dict[int, Key] = {}  # taken and lent in this session, by buffer

    def begin(self, epoch: int, batches: int, step: int = 0) -> None:
        """Start a course at a step of ``epoch``, keeping what is already held of it."""
        indices = rank_indices(batches, self.rank, self.world_size, self.recipe.last_batch)
        course = Course(epoch, indices, step)
        kept: dict[Key, _Assembly] = {}
        while (key := course.key(len(kept))) in self._held:
            kept[key] = self._held.pop(key)
        for key, assembly in self._held.items():
            self._free.append(assembly.buffer)
            self._release(key, assembly)
        self._course, self._held, self._position = course, kept, len(kept)

    @property
    def is_next_settled(self) -> bool:
        """Whether the course's next batch is there, or known not to be had."""
        return next((assembly.settled for assembly in self._held.values()), False)

    def take(self) -> CompleteBatch | None:
        """Return the course's next batch once it is settled; the caller then owns its buffer.

        Raises DatasetError, once, for a batch that cannot be had.
        """
        key, assembly = next(iter(self._held.items()), (None, None))
        if key is None or assembly is None or not assembly.settled:
            return None
        del self._held[key]
        if assembly.failure is not None:
            self._free.append(assembly.buffer)
            raise DatasetError(f"{name_batch(key)} cannot be had: {assembly.failure}")
        if assembly.asked:  # lent, and not yet released
            self._borrowed[assembly.buffer] = key
        return CompleteBatch(
            key=key,
            buffer=assembly.buffer,
            valid=assembly.valid,
            padding=assembly.valid == 0,
            lent=assembly.lent,
        )

    def give_back(self, buffer: int) -> None:
        """Make a taken batch's buffer free, and if the batch was lent, release it."""
        key = self._borrowed.pop(buffer, None)
        if key is not None:
            self._releases.append(key)
        self._free.append(buffer)

    def want(self, window: int, samples: int, chunk_images: int) -> list[Key]:
        """Assign free buffers and return the batches to ask for, ``window`` being asked at most."""
        asked = sum(assembly.asked for assembly in self._held.values())
        room = window - asked - len(self._borrowed)
        wants: list[Key] = []
        request = self.request + 1
        for key, assembly in self._held.items():  # first what a lost session left open
            if not assembly.settled and not assembly.asked and len(wants) < room:
                assembly.ask(request, self.recipe.batch_size, chunk_images)
                wants.append(key)
        while self._course is not None and self._free and len(wants) < room:
            key = self._course.key(self._position)
            if key in self._borrowed.values():  # of a course before: the node would take it for one
                break
            valid = max(0, min(self.recipe.batch_size, samples - key[1] * self.recipe.batch_size))
            # An index past the end is all padding, the same for everybody: nobody need send it.
            assembly = _Assembly(buffer=self._free.pop(), valid=valid, settled=valid == 0)
            self._held[key] = assembly
            self._position += 1
            if not assembly.settled:
                assembly.ask(request, self.recipe.batch_size, chunk_images)
                wants.append(key)
        if wants:
            self.request = request
        return wants

    def take_releases(self) -> list[Key]:
        """Return the batches whose slots the node may reuse, each once."""
        releases, self._releases = self._releases, []
        return releases

    def forget_requests(self) -> None:
        """Note that a session is lost: what is open must be asked for again, from the start."""
        self._releases.clear()
        self._borrowed.clear()  # what was lent stays readable, but nobody waits for its release
        for assembly in self._held.values():
            assembly.asked = False

    def place(self, chunk: Chunk, sizes: Sequence[int], chunk_images: int) -> Placement | None:
        """Return where a chunk with frames of ``sizes`` bytes belongs, None when nobody wants it.

        Raises ProtocolError when it is not what a chunk of its batch must look like.
        """
        key = (chunk.epoch, chunk.index)
        assembly = self._held.get(key)
        if assembly is None or not assembly.asked:
            self.chunks_discarded += 1
            return None
        self._check_chunk(chunk, sizes, chunk_images, assembly.valid)
        if chunk.first not in assembly.missing:
            self.chunks_discarded += 1
            return None
        return Placement(key=key, buffer=assembly.buffer, first=chunk.first)

    def stored(self, placement: Placement) -> None:
        """Note that the chunk's rows are in the buffer."""
        assembly = self._held.get(placement.key)
        if assembly is None:  # the consumer began another course meanwhile
            return
        assembly.missing.discard(placement.first)
        if not assembly.missing:
            assembly.settled = True
            self.completed += 1
            self._release(placement.key, assembly)

    def lend(self, message: Lent, rows: HostBatch) -> None:
        """Note that all rows of a batch are where the node has lent them.

        Raises ProtocolError when it cannot be that batch.
        """
        key = (message.epoch, message.index)
        assembly = self._held.get(key)
        if assembly is None or not assembly.asked or assembly.request != message.request:
            return  # given up meanwhile, and released by that
        if assembly.settled:
            raise ProtocolError(f"{name_batch(key)} was lent twice")
        if message.valid != assembly.valid:
            raise ProtocolError(
                f"{name_batch(key)} was lent with {message.valid} real rows, it must have "
                f"{assembly.valid}"
            )
        assembly.settled, assembly.lent = True, rows
        assembly.missing.clear()
        self.completed += 1
        self.lent += 1

    def drop_held(self) -> None:
        """Forget all batches; nothing is taken any more after this."""
        self._held.clear()

    def failed(self, key: Key, reason: str) -> None:
        """Note that the node cannot make a batch: the consumer hears of it in the batch's turn."""
        assembly = self._held.get(key)
        if assembly is not None and assembly.asked and not assembly.settled:
            assembly.settled = True
            assembly.failure = reason
            self._release(key, assembly)

    def progress(self) -> str:
        """Say how much of the course's next batch is there."""
        for assembly in self._held.values():
            if assembly.asked and not assembly.settled:
                arrived = assembly.chunks - len(assembly.missing)
                return f"{arrived} of {assembly.chunks} chunks are here"
        return "it was not asked for yet"

    def _release(self, key: Key, assembly: _Assembly) -> None:
        if assembly.asked:
            assembly.asked = False
            self._releases.append(key)

    def _check_chunk(
        self, chunk: Chunk, sizes: Sequence[int], chunk_images: int, valid: int
    ) -> None:
        batch_size = self.recipe.batch_size
        what = f"a chunk of {name_batch((chunk.epoch, chunk.index))}"
        rows = min(chunk_images, batch_size - chunk.first)
        if chunk.first % chunk_images or rows <= 0 or chunk.images != rows:
            raise ProtocolError(
                f"{what} has {chunk.images} rows from {chunk.first} on, which is no chunk of "
                f"{chunk_images} in a batch of {batch_size}"
            )
        if chunk.valid != valid:
            raise ProtocolError(f"{what} says that {chunk.valid} rows are real, it must be {valid}")
        image_bytes = pixel_layout_of(self.recipe.packing).image_bytes(self.recipe.image_size)
        expected = (rows * image_bytes, rows * 8, rows * 8)
        if tuple(sizes) != expected:
            raise ProtocolError(f"{what} has frames of {tuple(sizes)} bytes, not of {expected}")


def name_batch(key: Key) -> str:
    """Name a batch for people."""
    return f"batch {key[1]} of epoch {key[0]}"
