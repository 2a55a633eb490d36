"""Which batches are wanted, who was asked for them, and what has arrived: book-keeping, no I/O.

Batches are wanted in one order, the *sequence*: this rank's indices of an epoch, then those of the
next epoch, without end. Each batch of the sequence passes through these states:

    open      has a buffer; links are asked for it, one, several or none yet; chunks arrive
    settled   every row is there, or nobody can make it
    taken     the consumer owns the buffer until it gives it back

A *link* is the client's connection to one endpoint, called by a number. Whoever answers first
settles a batch; all answers have the same bytes, so it does not matter who it was. A batch that is
lent in place settles at once. Its rows are in the node's slot instead of the buffer, so it is
released later: when the consumer gives it back, or when its slot is needed for an earlier batch.

Invariants. Only the sequence's next batch is ever taken, so none is repeated, skipped or reordered,
whatever nodes do. Buffers are assigned in ``extend`` and nowhere else: whoever writes chunks also
calls ``extend``, in one thread, so no buffer is written for two batches at once. Each ask of a link
is released to that link exactly once, when the batch is settled or given up, and one that was lent
when the consumer has read it or never will; never in another session than it was asked in. A slot
is read by nobody once it was released: a Lent counts only if it answers the link's latest ask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from feeder.client.core.answer_checks import check_chunk, check_loan, count_valid, name_batch
from feeder.errors import DatasetError, ProtocolError
from feeder.plan.epoch import MAX_EPOCH, rank_indices
from feeder.plan.recipe import Recipe
from feeder.wire.messages import Chunk, Lent

Key = tuple[int, int]  # (epoch, index)

HostBatch: TypeAlias = object
"""A lent batch's rows as the consumer wrapped them. Opaque to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the rows of an arriving chunk belong."""

    link: int
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
class BatchSequence:
    """All batches of one rank from a step of an epoch on, in order and without end."""

    epoch: int
    indices: range
    step: int = 0

    def key(self, position: int) -> Key:
        """Return the batch at ``position``, counted from the sequence's start."""
        epochs, step = divmod(self.step + position, len(self.indices))
        return self.epoch + epochs, self.indices[step]


@dataclass(slots=True, kw_only=True)
class Ask:
    """What one link was asked for and has not answered yet, or has lent."""

    request: int  # the number of the message that asked
    asked_s: float
    missing: set[int]  # first rows of the chunks still to come
    chunks: int


@dataclass(slots=True, kw_only=True)
class Assembly:
    """A batch of the sequence that has a buffer."""

    buffer: int
    valid: int
    asks: dict[int, Ask] = field(default_factory=dict)  # by link
    failures: dict[int, str] = field(default_factory=dict)  # what links said who cannot make it
    was_asked: bool = False
    settled: bool = False
    failure: str | None = None
    lent: HostBatch | None = None
    lender: int | None = None  # the link whose node has lent it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loan:
    """A lent batch that the consumer has taken and not yet given back."""

    link: int
    key: Key
    rows: HostBatch | None


class Prefetch:
    """The batches between the nodes and the consumer. Not thread-safe."""

    def __init__(self, recipe: Recipe, *, rank: int, world_size: int, buffers: int) -> None:
        """Start with all buffers, numbered from 0, free and nothing wanted."""
        self.recipe = recipe
        self.rank = rank
        self.world_size = world_size
        self.buffers = buffers
        self.chunks_discarded = 0
        self.lent = 0  # batches that a node has lent
        self._free = list(range(buffers))
        self._held: dict[Key, Assembly] = {}  # in the sequence's order
        self._sequence: BatchSequence | None = None
        self._position = 0  # in the sequence, of the next batch that gets a buffer
        self._releases: dict[int, list[Key]] = {}  # by link
        self._borrowed: dict[int, _Loan] = {}  # by buffer, of batches that were taken

    # --- The consumer's side ------------------------------------------------------------------

    def begin(self, epoch: int, batches: int, step: int = 0) -> None:
        """Start a sequence at a step of ``epoch``, keeping what is already held of it."""
        indices = rank_indices(batches, self.rank, self.world_size, self.recipe.last_batch)
        sequence = BatchSequence(epoch, indices, step)
        kept: dict[Key, Assembly] = {}
        while (key := sequence.key(len(kept))) in self._held:
            kept[key] = self._held.pop(key)
        for key, assembly in self._held.items():
            self._free.append(assembly.buffer)
            self._release(key, assembly)
        self._sequence, self._held, self._position = sequence, kept, len(kept)

    @property
    def is_next_settled(self) -> bool:
        """Whether the sequence's next batch is there, or known not to be had."""
        return next((assembly.settled for assembly in self._held.values()), False)

    def take(self) -> CompleteBatch | None:
        """Return the sequence's next batch once it is settled; the caller then owns its buffer.

        Raises DatasetError, once, for a batch that cannot be had.
        """
        key, assembly = next(iter(self._held.items()), (None, None))
        if key is None or assembly is None or not assembly.settled:
            return None
        del self._held[key]
        if assembly.failure is not None:
            self._free.append(assembly.buffer)
            raise DatasetError(f"{name_batch(key)} cannot be had: {assembly.failure}")
        for link in assembly.asks:  # of the lender, if it still has its session
            self._borrowed[assembly.buffer] = _Loan(link=link, key=key, rows=assembly.lent)
        return CompleteBatch(
            key=key,
            buffer=assembly.buffer,
            valid=assembly.valid,
            padding=assembly.valid == 0,
            lent=assembly.lent,
        )

    def give_back(self, buffer: int) -> None:
        """Make a taken batch's buffer free, and if the batch was lent, release it."""
        borrowed = self._borrowed.pop(buffer, None)
        if borrowed is not None:
            self._releases.setdefault(borrowed.link, []).append(borrowed.key)
        self._free.append(buffer)

    def drop_held(self) -> None:
        """Forget all batches; nothing is taken any more after this."""
        self._held.clear()

    def progress(self) -> str:
        """Say how much of the sequence's next batch is there."""
        for assembly in self._held.values():
            if assembly.settled:
                continue
            if assembly.failures:
                return "; ".join(assembly.failures.values())
            if assembly.asks:
                chunks, missing = min(
                    ((ask.chunks, len(ask.missing)) for ask in assembly.asks.values()),
                    key=lambda counts: counts[1],
                )
                return f"{chunks - missing} of {chunks} chunks are here"
        return "it was not asked for yet"

    # --- Asking -------------------------------------------------------------------------------

    def extend(self, samples: int) -> None:
        """Give free buffers to the next batches of the sequence."""
        while self._sequence is not None and self._free:
            key = self._sequence.key(self._position)
            if key[0] > MAX_EPOCH:
                break
            valid = count_valid(self.recipe, samples, key[1])
            # An index past the end is all padding, the same for everybody: nobody need send it.
            self._held[key] = Assembly(buffer=self._free.pop(), valid=valid, settled=valid == 0)
            self._position += 1

    def open_batches(self) -> Iterator[tuple[Key, Assembly]]:
        """Yield the batches that are not settled, in the sequence's order."""
        return ((key, held) for key, held in self._held.items() if not held.settled)

    def load(self, link: int) -> int:
        """Return how many batches a link was asked for, or has lent, and not had back."""
        asked = sum(link in assembly.asks for assembly in self._held.values())
        return asked + sum(loan.link == link for loan in self._borrowed.values())

    def may_ask(self, link: int, key: Key) -> bool:
        """Whether a link can be asked for an open batch: it was not, and has not failed to."""
        assembly = self._held[key]
        if link in assembly.asks or link in assembly.failures:
            return False
        # Of a sequence before, and still read: the node would take it for the same.
        return all((loan.link, loan.key) != (link, key) for loan in self._borrowed.values())

    def ask(self, link: int, key: Key, request: int, now_s: float, chunk_images: int) -> None:
        """Note that a link is asked for an open batch; if it was already, that ask is released."""
        assembly = self._held[key]
        if link in assembly.asks:
            self._releases.setdefault(link, []).append(key)
        firsts = range(0, self.recipe.batch_size, chunk_images)
        assembly.asks[link] = Ask(
            request=request, asked_s=now_s, missing=set(firsts), chunks=len(firsts)
        )
        assembly.was_asked = True

    def take_releases(self, link: int) -> list[Key]:
        """Return the batches whose slots the node of a link may reuse, each once."""
        return self._releases.pop(link, [])

    def forget(self, link: int) -> None:
        """Note that a link's session is lost: it is to be asked again, from the start."""
        self._releases.pop(link, None)
        # What was lent stays readable, but nobody waits for its release.
        for buffer in [b for b, loan in self._borrowed.items() if loan.link == link]:
            del self._borrowed[buffer]
        for assembly in self._held.values():
            assembly.asks.pop(link, None)
            assembly.failures.pop(link, None)

    # --- Arrivals -----------------------------------------------------------------------------

    def place(
        self, link: int, chunk: Chunk, sizes: Sequence[int], chunk_images: int
    ) -> Placement | None:
        """Return where a chunk with frames of ``sizes`` bytes belongs, None when nobody wants it.

        Raises ProtocolError when it is not what a chunk of its batch must look like.
        """
        key = (chunk.epoch, chunk.index)
        assembly = self._held.get(key)
        ask = None if assembly is None else assembly.asks.get(link)
        if assembly is None or ask is None:
            self.chunks_discarded += 1
            return None
        check_chunk(self.recipe, chunk, sizes, chunk_images=chunk_images, valid=assembly.valid)
        if chunk.first not in ask.missing:
            self.chunks_discarded += 1
            return None
        return Placement(link=link, key=key, buffer=assembly.buffer, first=chunk.first)

    def stored(self, placement: Placement) -> Ask | None:
        """Note that the chunk's rows are in the buffer; return the ask that this has answered."""
        assembly = self._held.get(placement.key)
        ask = None if assembly is None else assembly.asks.get(placement.link)
        if assembly is None or ask is None:  # the consumer began another sequence meanwhile
            return None
        ask.missing.discard(placement.first)
        if ask.missing:
            return None
        assembly.settled = True
        self._release(placement.key, assembly)
        return ask

    def lend(self, link: int, message: Lent, rows: HostBatch) -> Ask | None:
        """Note that all rows of a batch are where a node has lent them; return the ask.

        Raises ProtocolError when it cannot be that batch.
        """
        key = (message.epoch, message.index)
        assembly = self._held.get(key)
        ask = None if assembly is None else assembly.asks.get(link)
        if assembly is None or ask is None or ask.request != message.request:
            return None  # given up meanwhile, or answered by another link, and released by that
        if assembly.settled:
            return None  # said twice
        check_loan(key, message.valid, assembly.valid)
        if self._is_read(link, rows):
            raise ProtocolError(
                f"slot {message.slot} was lent for {name_batch(key)} while the batch in it is not "
                "yet released"
            )
        del assembly.asks[link]
        self._release(key, assembly)
        assembly.asks[link] = ask  # until the consumer has read it
        assembly.settled, assembly.lent, assembly.lender = True, rows, link
        ask.missing.clear()
        self.lent += 1
        return ask

    def failed(self, link: int, key: Key, reason: str) -> None:
        """Note that a link's node cannot make a batch; another one may."""
        assembly = self._held.get(key)
        if assembly is not None and not assembly.settled and link in assembly.asks:
            del assembly.asks[link]
            assembly.failures[link] = reason
            self._releases.setdefault(link, []).append(key)

    def find_reclaimable(self, link: int, key: Key) -> Key | None:
        """Return the last batch that a link has lent and that comes after an open one."""
        for later, assembly in reversed(self._held.items()):
            if later == key:
                break
            if assembly.lent is not None and link in assembly.asks:
                return later
        return None

    def reclaim(self, key: Key) -> None:
        """Release a lent batch that was not taken yet; it is open again."""
        self._release(key, self._held[key])
        self._reopen(self._held[key])

    def reopen_lost(self, link: int) -> None:
        """Open again what a link has lent in a session that is over, where nobody can take it yet.

        As long as it is kept the node cannot have its memory back, which it may need for us.
        """
        is_waiting = False
        for assembly in self._held.values():
            is_waiting |= not assembly.settled
            if is_waiting and assembly.lender == link and link not in assembly.asks:
                self._reopen(assembly)

    def _reopen(self, assembly: Assembly) -> None:
        assembly.settled, assembly.lent, assembly.lender = False, None, None
        self.lent -= 1

    def give_up(self, key: Key) -> None:
        """Note that nobody can make a batch: the consumer hears of it in the batch's turn."""
        assembly = self._held[key]
        assembly.settled = True
        assembly.failure = "; ".join(dict.fromkeys(assembly.failures.values()))

    def _is_read(self, link: int, rows: HostBatch) -> bool:
        """Whether a slot that a link has lent is not yet released: it holds another batch."""
        waiting = (held for held in self._held.values() if link in held.asks)
        return any(held.lent is rows for held in waiting) or any(
            loan.rows is rows for loan in self._borrowed.values()
        )

    def _release(self, key: Key, assembly: Assembly) -> None:
        for link in assembly.asks:
            self._releases.setdefault(link, []).append(key)
        assembly.asks.clear()
