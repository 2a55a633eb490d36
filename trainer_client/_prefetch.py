"""Which batches are wanted, and what has arrived of them: book-keeping without input or output.

Batches are wanted in one order, the *course*: this rank's indices of an epoch, then those of the
next epoch, without end. Each batch of the course passes through these states:

    open      has a buffer; to be asked for, or asked for; its chunks arrive in any order
    settled   every row is there, or the node said that it cannot be had
    taken     the consumer owns the buffer until it gives it back

Invariants. Only the course's next batch is ever taken, so none is repeated, skipped or reordered,
whatever a node does. Buffers are assigned in ``want`` and nowhere else: whoever writes chunks also
calls ``want``, in one thread, so no buffer is written for two batches at once. A batch that was
asked for is released exactly once, when it is settled or given up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from feeder.errors import DatasetError, ProtocolError
from feeder.packing import pixel_layout_of
from feeder.plan import rank_indices
from feeder.recipe import Recipe
from feeder.wire import Chunk

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


@dataclass(frozen=True, slots=True)
class Course:
    """All batches of one rank from an epoch's first on, in order and without end."""

    epoch: int
    indices: range

    def key(self, position: int) -> Key:
        """Return the batch at ``position``, counted from the course's start."""
        epochs, step = divmod(position, len(self.indices))
        return self.epoch + epochs, self.indices[step]


@dataclass(slots=True, kw_only=True)
class _Assembly:
    """A batch of the course that has a buffer."""

    buffer: int
    valid: int
    asked: bool = False
    settled: bool = False
    failure: str | None = None
    chunks: int = 0
    missing: set[int] = field(default_factory=set)  # first rows of the chunks still to come

    def ask(self, batch_size: int, chunk_images: int) -> None:
        self.asked = True
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
        self._free = list(range(buffers))
        self._held: dict[Key, _Assembly] = {}  # in the course's order
        self._course: Course | None = None
        self._position = 0  # in the course, of the next batch that gets a buffer
        self._releases: list[Key] = []

    def begin(self, epoch: int, batches: int) -> None:
        """Start a course at ``epoch``'s first batch, keeping what is already held of it."""
        indices = rank_indices(batches, self.rank, self.world_size, self.recipe.last_batch)
        course = Course(epoch, indices)
        kept: dict[Key, _Assembly] = {}
        while (key := course.key(len(kept))) in self._held:
            kept[key] = self._held.pop(key)
        for key, assembly in self._held.items():
            self._free.append(assembly.buffer)
            self._release(key, assembly)
        self._course, self._held, self._position = course, kept, len(kept)

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
        return CompleteBatch(
            key=key, buffer=assembly.buffer, valid=assembly.valid, padding=assembly.valid == 0
        )

    def give_back(self, buffer: int) -> None:
        """Make a taken batch's buffer free."""
        self._free.append(buffer)

    def want(self, window: int, samples: int, chunk_images: int) -> list[Key]:
        """Assign free buffers and return the batches to ask for, ``window`` being asked at most."""
        room = window - sum(assembly.asked for assembly in self._held.values())
        wants: list[Key] = []
        for key, assembly in self._held.items():  # first what a lost session left open
            if not assembly.settled and not assembly.asked and len(wants) < room:
                assembly.ask(self.recipe.batch_size, chunk_images)
                wants.append(key)
        while self._course is not None and self._free and len(wants) < room:
            key = self._course.key(self._position)
            valid = max(0, min(self.recipe.batch_size, samples - key[1] * self.recipe.batch_size))
            # An index past the end is all padding, the same for everybody: nobody need send it.
            assembly = _Assembly(buffer=self._free.pop(), valid=valid, settled=valid == 0)
            self._held[key] = assembly
            self._position += 1
            if not assembly.settled:
                assembly.ask(self.recipe.batch_size, chunk_images)
                wants.append(key)
        return wants

    def take_releases(self) -> list[Key]:
        """Return the batches whose slots the node may reuse, each once."""
        releases, self._releases = self._releases, []
        return releases

    def forget_requests(self) -> None:
        """Note that a session is lost: what is open must be asked for again, from the start."""
        self._releases.clear()
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

    def failed(self, key: Key, reason: str) -> None:
        """Note that the node cannot make a batch: the consumer hears of it in the batch's turn."""
        assembly = self._held.get(key)
        if assembly is not None and assembly.asked:
            assembly.settled = True
            assembly.failure = reason
            self._release(key, assembly)

    def progress(self) -> str:
        """Say how much of the course's next batch is there."""
        for assembly in self._held.values():
            if assembly.asked:
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
