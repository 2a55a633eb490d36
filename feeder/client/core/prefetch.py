"""Which batches are wanted, requested and complete: book-keeping, no I/O.

Batches are wanted in one order, the *sequence*: this rank's indices of an epoch, then those of the
next epoch. Each batch of the sequence passes through these states:

    open      has a buffer; requested on no link yet, on one or on several; chunks arrive
    settled   every row is there, or no node can make it
    taken     the consumer owns the buffer until it returns it

The first complete answer settles a batch; all answers have the same bytes. A batch that is lent in
place settles at once. Its rows are in the node's slot instead of the buffer, so it is released
later: when the consumer returns it, or when its slot is needed for an earlier batch.

Invariants. Only the sequence's next batch is ever taken, so none is repeated, skipped or reordered,
whatever nodes do. Buffers are assigned in ``extend`` only; the thread that writes chunks calls it,
so no buffer is written for two batches at once. Each request on a link is released on that link
exactly once, in the session it was made in: when the batch is settled or given up; a lent one when
the consumer has read it or never will. No slot is read after its release: a Lent counts only if it
answers the link's latest request.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import TypeAlias

from msgspec import Struct, field

from feeder.client.core.answers import check_chunk, name_batch
from feeder.errors import ProtocolError
from feeder.plan.epoch import MAX_EPOCH
from feeder.plan.labels import INDEX_LABELS
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Failed, Lent

HostBatch: TypeAlias = object
"""A lent batch's rows as the consumer wrapped them. Opaque to the engine."""


class BatchSequence(Struct, frozen=True):
    """All batches of one rank from a step of an epoch on, in order, to the last epoch's end."""

    epoch: int
    indices: range  # this rank's batches of every epoch; its step is the number of ranks
    step: int = 0

    def __len__(self) -> int:
        return (MAX_EPOCH + 1 - self.epoch) * len(self.indices) - self.step

    def key(self, position: int) -> BatchKey:
        """The batch at ``position``, counted from the sequence's start."""
        epochs, step = divmod(self.step + position, len(self.indices))
        return self.epoch + epochs, self.indices[step]


class BatchRequest(Struct, kw_only=True):
    """A batch requested on one link, and not complete yet or lent."""

    number: int  # of the wire's Request
    requested_s: float
    missing: int  # the rows still to come, a bit each


class Batch(Struct, kw_only=True, eq=False):
    """A batch of the sequence, from the assignment of its buffer until the consumer returns it."""

    key: BatchKey
    buffer: int
    valid: int  # its real rows; a batch without any comes from no node
    requests: dict[int, BatchRequest] = field(default_factory=dict)  # by link
    failures: dict[int, str] = field(default_factory=dict)  # by link
    requested_s: float = inf  # the latest request's time
    settled: bool = False
    failure: str | None = None
    lent: HostBatch | None = None  # where its rows are, when not in the buffer
    loan: "Batch | None" = None  # the same batch of a former sequence, still read by the consumer


class Prefetch:
    """The batches between the nodes and the consumer. Not thread-safe."""

    def __init__(self, recipe: Recipe, *, buffers: int, world_size: int = 1) -> None:
        """``world_size`` is that known before the first sequence, which has the final one."""
        self.recipe = recipe
        self.labels = INDEX_LABELS  # until the first welcome
        self.buffers = buffers
        self.chunks_discarded = 0
        self.lent = 0  # batches that a node has lent
        self.world_size = world_size  # ranks that share the sequence's epochs
        self.held: dict[BatchKey, Batch] = {}  # in the sequence's order
        # The lent batches that the consumer has taken and not yet returned, by its buffer.
        self.borrowed: dict[int, Batch] = {}
        # By link, the batches whose slots its node may reuse; whoever sends them removes them.
        self.releases: defaultdict[int, list[BatchKey]] = defaultdict(list)
        self._free = list(range(buffers))
        self._sequence = BatchSequence(0, range(0))
        self._position = 0  # in the sequence, of the next batch that gets a buffer
        self._end = 0  # of the sequence

    def begin(self, sequence: BatchSequence) -> None:
        """Start a sequence, keeping what is already held of it."""
        self._sequence, self._end = sequence, len(sequence)
        self.world_size = sequence.indices.step
        kept: dict[BatchKey, Batch] = {}
        while len(kept) < self._end and (key := sequence.key(len(kept))) in self.held:
            kept[key] = self.held.pop(key)
        for batch in self.held.values():
            self._free.append(batch.buffer)
            self.release(batch)
        self.held, self._position = kept, len(kept)

    @property
    def ready(self) -> int:
        """Number of batches that can be taken without waiting, one after the other."""
        held = list(self.held.values())  # one copy: another thread may change the dict
        return next((n for n, batch in enumerate(held) if not batch.settled), len(held))

    @property
    def free(self) -> int:
        """Number of buffers that a batch of the sequence could have."""
        return min(len(self._free), self._end - self._position)

    def coming(self, count: int) -> list[BatchKey]:
        """The next ``count`` batches that the consumer takes, with or without a buffer."""
        keys = list(islice(self.held, count))
        end = min(self._position + count - len(keys), self._end)
        return keys + [self._sequence.key(position) for position in range(self._position, end)]

    def take(self) -> Batch | None:
        """The sequence's next batch once it is settled; the caller then owns its buffer, unless no
        node can make the batch: then ``failure`` is the reason."""
        key = next(iter(self.held), None)
        if key is None or not self.held[key].settled:
            return None
        batch = self.held.pop(key)
        if batch.failure is not None:
            self._free.append(batch.buffer)
        # A lent one is still requested on its link, if that has kept its session.
        loan = batch if batch.requests else batch.loan
        if loan is not None:
            self.borrowed[batch.buffer] = loan
        return batch

    @property
    def awaited(self) -> Batch | None:
        """The next batch that is not settled."""
        for batch in self.held.values():
            if not batch.settled:
                return batch
        return None

    def return_buffer(self, buffer: int) -> None:
        """Free a taken batch's buffer; release the batch if it was lent."""
        self._free.append(buffer)
        loan = self.borrowed.pop(buffer, None)
        if loan is None or loan in self.borrowed.values():
            return
        for link in loan.requests:
            self.releases[link].append(loan.key)
        for batch in self.held.values():
            if batch.loan is loan:  # not taken yet: the slot may be needed before that
                batch.settled, batch.lent, batch.loan = False, None, None

    def progress(self) -> str:
        """How much of the next batch has arrived, as a clause."""
        batch, rows = self.awaited, self.recipe.batch_size
        if batch is not None and batch.failures:
            return "; ".join(batch.failures.values())
        if batch is not None and batch.requests:
            missing = min(request.missing.bit_count() for request in batch.requests.values())
            return f"{rows - missing} of its {rows} rows have arrived"
        return "the next batch was not requested yet"

    # --- Requests -----------------------------------------------------------------------------

    def extend(self, samples: int) -> None:
        """Give free buffers to the next batches of the sequence."""
        while self._free and self._position < self._end:
            key = self._sequence.key(self._position)
            rows = self.recipe.batch_size
            valid = max(0, min(rows, samples - key[1] * rows))
            # An index past the end is all padding, which no node need send. What the consumer
            # still reads of a former sequence need not be sent again, and could not be: the node
            # would take it for the same.
            loan = next((loan for loan in self.borrowed.values() if loan.key == key), None)
            self.held[key] = Batch(
                key=key,
                buffer=self._free.pop(),
                valid=valid,
                settled=valid == 0 or loan is not None,
                lent=loan and loan.lent,
                loan=loan,
            )
            self._position += 1

    def load(self, link: int) -> int:
        """How many batches are requested on a link, or lent there and not released."""
        requested = sum(link in batch.requests for batch in self.held.values())
        return requested + sum(link in loan.requests for loan in {*self.borrowed.values()})

    def record_request(self, link: int, key: BatchKey, number: int, now_s: float) -> None:
        """Record a request on a link for an open batch, which has none there."""
        batch = self.held[key]
        missing = _bits(0, self.recipe.batch_size)
        batch.requests[link] = BatchRequest(number=number, requested_s=now_s, missing=missing)
        batch.requested_s = now_s

    def forget(self, link: int) -> None:
        """Record that a link's session is lost: its batches must be requested again. So must those
        that it has lent and that cannot be taken yet: while they are kept the node cannot reuse
        their memory, which it may need for this client's next session."""
        self.releases.pop(link, None)
        for loan in self.borrowed.values():  # stays readable, but no node waits for its release
            loan.requests.pop(link, None)
        is_waiting = False
        for batch in self.held.values():
            is_lost = batch.requests.pop(link, None) is not None
            batch.failures.pop(link, None)
            is_waiting |= not batch.settled
            if is_waiting and is_lost and batch.lent is not None:
                self._reopen(batch)

    def reclaim(self, link: int, key: BatchKey) -> bool:
        """Release and reopen the last batch lent on a link that comes after the open batch ``key``;
        return whether there is one."""
        for later, batch in reversed(self.held.items()):
            if later == key:
                break
            if batch.lent is not None and link in batch.requests:
                self.release(batch)
                self._reopen(batch)
                return True
        return False

    def give_up(self, key: BatchKey) -> None:
        """Settle a batch that no node can make."""
        batch = self.held[key]
        batch.settled = True
        batch.failure = "; ".join(dict.fromkeys(batch.failures.values()))

    # --- Arrivals -----------------------------------------------------------------------------

    def find_buffer(self, link: int, chunk: Chunk, sizes: Sequence[int]) -> int | None:
        """The buffer of a chunk with frames of ``sizes`` bytes, None when it is not wanted.

        Raises ProtocolError when it cannot be a chunk of its batch. A batch that was requested
        twice on a link may have been cut otherwise the first time, so a late chunk may repeat some
        rows: they are the same bytes.
        """
        batch = self._find_requested(link, chunk)
        if batch is not None:
            check_chunk(self.recipe, self.labels, chunk, sizes, valid=batch.valid)
            if batch.requests[link].missing & _bits(chunk.first, chunk.images):
                return batch.buffer
        self.chunks_discarded += 1
        return None

    def stored(self, link: int, chunk: Chunk) -> BatchRequest | None:
        """Record that a chunk's rows are in the buffer; return the request that is complete."""
        batch = self._find_requested(link, chunk)
        if batch is None:  # the consumer has begun another sequence
            return None
        request = batch.requests[link]
        request.missing &= ~_bits(chunk.first, chunk.images)
        if request.missing:
            return None
        batch.settled = True
        self.release(batch)
        return request

    def lend(self, link: int, message: Lent, rows: HostBatch) -> BatchRequest | None:
        """Record that a node has lent ``rows``, all of a batch; return the complete request. Raises
        ProtocolError when it cannot be that batch."""
        batch = self._find_requested(link, message)
        # It may be given up, or settled on another link and released by that, or a duplicate.
        if batch is None or batch.requests[link].number != message.request or batch.settled:
            return None
        if message.valid != batch.valid:
            raise ProtocolError(
                f"{name_batch(batch.key)} was lent with {message.valid} real rows, it must have "
                f"{batch.valid}"
            )
        for other in (*self.held.values(), *self.borrowed.values()):
            if other.lent is rows and link in other.requests:
                raise ProtocolError(
                    f"slot {message.slot} was lent for {name_batch(batch.key)} while the batch in "
                    "it is not yet released"
                )
        request = batch.requests.pop(link)
        self.release(batch)
        batch.requests[link] = request  # until the consumer has read it
        batch.settled, batch.lent = True, rows
        request.missing = 0
        self.lent += 1
        return request

    def failed(self, link: int, message: Failed) -> None:
        """Record that a link's node cannot make a batch; another one may."""
        batch = self._find_requested(link, message)
        if batch is not None and not batch.settled:
            del batch.requests[link]
            batch.failures[link] = f"{message.message} ({message.code})"
            self.releases[link].append(batch.key)

    def _find_requested(self, link: int, message: Chunk | Lent | Failed) -> Batch | None:
        batch = self.held.get((message.epoch, message.index))
        return batch if batch is not None and link in batch.requests else None

    def _reopen(self, batch: Batch) -> None:
        batch.settled, batch.lent = False, None
        self.lent -= 1

    def release(self, batch: Batch) -> None:
        """Give up all requests of a batch."""
        for link in batch.requests:
            self.releases[link].append(batch.key)
        batch.requests.clear()


def _bits(first: int, rows: int) -> int:
    return ((1 << rows) - 1) << first
