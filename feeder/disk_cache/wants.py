"""What is to be fetched next: pieces that batches wait for, in order, before those ahead. Pure.

    Want ─► all there? ─► Here
         └► its pieces wait ─► take_wanted ─► (in flight) ─► done   ─► Here, or it waits again
    Ahead ─► queue ──────────► take_ahead                 └► failed ─► Absent

A piece is in flight once, however many wait for it. A Want is answered when none of its samples is
missing, whoever fetched them. A Want for a piece in the queue of aheads has it fetched now. Wants
for single samples have a queue of their own: their transfers are many and small.
"""

import heapq
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feeder.disk_cache.messages import Absent, FetcherToNode, Here
from feeder.disk_cache.ranges import Range, Ranges, merge, split_pieces

Key = tuple[str, int]
"""Dataset and piece."""


class Pieces(Protocol):
    """A cached dataset, as far as it matters here."""

    @property
    def piece(self) -> int: ...
    @property
    def samples_there(self) -> NDArray[np.uint8]: ...
    def range_of(self, piece: int) -> Range: ...


class Task(NamedTuple):
    """A piece in flight: those samples in ``ranges`` are fetched that are missing."""

    key: Key
    ranges: tuple[Range, ...]
    """None of them: the piece is checked."""
    is_wanted: bool
    began_s: float


@dataclass(slots=True, eq=False)
class _Want:
    client: int
    number: int
    order: int
    since_s: float
    dataset: str
    is_whole: bool
    parts: dict[int, list[Range]]
    """Its samples by piece."""
    pending: set[int] = field(default_factory=set)
    """Those of its pieces that are not known to have its samples."""


class Wants:
    """The Wants and aheads of all connections; times come from the caller."""

    def __init__(self, datasets: Mapping[str, Pieces], patience_s: float) -> None:
        self._datasets = datasets
        self._patience_s = patience_s
        self._wants: dict[tuple[int, int], _Want] = {}
        self._waiting: dict[Key, list[_Want]] = {}
        # Heaps, for whole pieces and for single samples; what is in flight is pushed again after.
        self._queues: dict[bool, list[tuple[int, Key]]] = {True: [], False: []}
        self._ahead: dict[Key, tuple[int, list[Range]]] = {}  # with their orders
        # Heaps by dataset, as one may be paused; what has left ``_ahead`` is skipped.
        self._aheads: dict[str, list[tuple[int, Key]]] = {}
        self._in_flight: dict[Key, Task] = {}
        self._doubted: set[Key] = set()  # to be checked before Wants are answered
        self._orders = 0
        self.answers: list[tuple[int, FetcherToNode]] = []
        """Connection and message; the caller takes and sends them."""

    @property
    def waiting(self) -> int:
        return len(self._wants)

    @property
    def queued(self) -> int:
        """How many pieces are to be fetched ahead."""
        return len(self._ahead)

    # --- What connections send ------------------------------------------------------------------

    def want(
        self,
        client: int,
        number: int,
        dataset: str,
        ranges: Ranges,
        now_s: float,
        *,
        whole: bool,
        doubted: bool = False,
    ) -> None:
        self.forget(client, number)
        self._orders += 1
        parts = split_pieces(ranges, self._datasets[dataset].piece)
        want = _Want(client, number, self._orders, now_s, dataset, whole, parts)
        self._wants[client, number] = want
        for piece in parts:
            key = dataset, piece
            if doubted:
                self._doubted.add(key)
            if self._is_doubtful(key) or self._misses(dataset, parts[piece]):
                want.pending.add(piece)
                self._waiting.setdefault(key, []).append(want)
                self._push(key)
        self._answer_if_there(want)

    def forget(self, client: int, number: int) -> None:
        want = self._wants.get((client, number))
        if want is not None:
            self._remove(want)

    def forget_all(self, client: int) -> None:
        for want in [want for want in self._wants.values() if want.client == client]:
            self._remove(want)

    def ahead(self, dataset: str, parts: Mapping[int, list[Range]]) -> None:
        """Queue what is missing of these samples, by piece."""
        for piece in parts:
            missing = [part for part in parts[piece] if self._misses(dataset, [part])]
            if missing:
                self._add_ahead((dataset, piece), missing)

    def drop_ahead(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._ahead.pop(key, None)

    # --- Tasks ----------------------------------------------------------------------------------

    def take_wanted(self, now_s: float, *, whole: bool) -> Task | None:
        """Return the first piece that Wants for whole pieces, or for single samples, wait for."""
        queue = self._queues[whole]
        while queue:
            _, key = heapq.heappop(queue)
            wants = self._waiting.get(key)
            if not wants or key in self._in_flight or key in self._doubted:
                continue  # it was forgotten, or is pushed again later
            if any(want.is_whole for want in wants) != whole:
                self._push(key)
            elif whole:
                return self._begin(key, [self._datasets[key[0]].range_of(key[1])], now_s)
            else:
                return self._begin(key, self._wanted_parts(key), now_s)
        return None

    def take_ahead(self, now_s: float, paused: Container[str]) -> Task | None:
        """Return the first piece of the aheads, leaving out those of datasets that are paused."""
        while queues := [q for name, q in self._aheads.items() if q and name not in paused]:
            _, key = heapq.heappop(min(queues))
            if key in self._ahead and key not in self._in_flight and key not in self._doubted:
                parts = [*self._ahead[key][1], *self._wanted_parts(key)]
                return self._begin(key, parts, now_s)
        return None

    def take_doubted(self, now_s: float) -> Task | None:
        """Return a piece that is to be checked."""
        key = next((key for key in self._doubted if key not in self._in_flight), None)
        if key is None:
            return None
        self._doubted.remove(key)  # who doubts it from now on has it checked again
        return self._begin(key, [], now_s)

    def put_back(self, task: Task) -> None:
        """Undo that a task was taken."""
        del self._in_flight[task.key]
        if not task.ranges:
            self._doubted.add(task.key)
        self._push(task.key)
        self._push_ahead(task.key)

    def done(self, task: Task) -> None:
        """A task has ended. Its samples are there, unless they were evicted or found damaged."""
        key = task.key
        del self._in_flight[key]
        _, parts = self._ahead.pop(key, (0, []))
        left = [part for part in parts if not any(_covers(r, part) for r in task.ranges)]
        if left:
            self._add_ahead(key, left)
        self._release(key)

    def failed(
        self, task: Task, kind: str, message: str, now_s: float, *, is_transient: bool
    ) -> int:
        """A task has ended with an error; return how many Wants are answered Absent.

        If it ``is_transient``, the store was tried for ``patience_s``: only Wants that have waited
        for that long fail, all of the dataset, and an ahead stays in the queue.
        """
        key = task.key
        del self._in_flight[key]
        failing = list(self._waiting.get(key, []))
        if task.ranges:  # else it was a check: what the disk has is not known
            failing = [w for w in failing if self._misses(w.dataset, w.parts[key[1]])]
        if is_transient:
            longest_s = max(task.began_s, now_s - self._patience_s)
            failing = [want for want in failing if want.since_s <= longest_s]
            failing += [
                want
                for want in self._wants.values()
                if want.dataset == key[0]
                and want.since_s <= now_s - self._patience_s
                and want not in failing
            ]
        _, parts = self._ahead.pop(key, (0, []))
        if is_transient and parts:
            self._add_ahead(key, parts)  # at the end
        for want in failing:
            self._remove(want)
            self.answers.append((want.client, Absent(want.number, kind, message)))
        self._release(key)
        if key not in self._waiting:
            self._doubted.discard(key)
        return len(failing)

    def held(self, dataset: str) -> list[int]:
        """Return the pieces of a dataset that are waited for or in flight."""
        wants = [want for want in self._wants.values() if want.dataset == dataset]
        pieces = [piece for want in wants for piece in want.parts]
        return pieces + [piece for name, piece in self._in_flight if name == dataset]

    # --- Inside ---------------------------------------------------------------------------------

    def _begin(self, key: Key, parts: list[Range], now_s: float) -> Task:
        task = Task(key, merge(parts), key in self._waiting, now_s)
        self._in_flight[key] = task
        return task

    def _is_doubtful(self, key: Key) -> bool:
        """Whether a piece is to be checked, or is being."""
        task = self._in_flight.get(key)
        return key in self._doubted or (task is not None and not task.ranges)

    def _release(self, key: Key) -> None:
        """Answer the Wants for which a piece that was in flight has all samples now."""
        for want in list(self._waiting.get(key, [])):
            if not (key in self._doubted or self._misses(key[0], want.parts[key[1]])):
                self._leave(want, key)
                self._answer_if_there(want)
        self._push(key)

    def _wanted_parts(self, key: Key) -> list[Range]:
        return [part for want in self._waiting.get(key, []) for part in want.parts[key[1]]]

    def _misses(self, dataset: str, parts: list[Range]) -> bool:
        there = self._datasets[dataset].samples_there
        return not all(there[first:end].all() for first, end in parts)

    def _push(self, key: Key) -> None:
        wants = self._waiting.get(key)
        if wants and key not in self._in_flight:
            queue = self._queues[any(want.is_whole for want in wants)]
            heapq.heappush(queue, (min(want.order for want in wants), key))

    def _add_ahead(self, key: Key, parts: list[Range]) -> None:
        if key in self._ahead:
            self._ahead[key][1].extend(parts)
            return
        self._orders += 1
        self._ahead[key] = self._orders, parts
        self._push_ahead(key)

    def _push_ahead(self, key: Key) -> None:
        if key in self._ahead:
            heapq.heappush(self._aheads.setdefault(key[0], []), (self._ahead[key][0], key))

    def _answer_if_there(self, want: _Want) -> None:
        if not want.pending:
            self._remove(want)
            self.answers.append((want.client, Here(want.number)))

    def _leave(self, want: _Want, key: Key) -> None:
        want.pending.discard(key[1])
        self._waiting[key].remove(want)
        if not self._waiting[key]:
            del self._waiting[key]

    def _remove(self, want: _Want) -> None:
        for piece in list(want.pending):
            self._leave(want, (want.dataset, piece))
        del self._wants[want.client, want.number]


def _covers(whole: Range, part: Range) -> bool:
    return whole[0] <= part[0] and part[1] <= whole[1]
