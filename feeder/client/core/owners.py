"""The order in which feeders are asked for a batch: the owner of its lane first.

Owners have equal shares of the lanes, and few lanes move when a feeder comes or goes. Each lane
weighs all names by a hash of lane and name (rendezvous hashing: Thaler and Ravishankar, "Using
name-based mappings to increase hit rates", 1998). The lightest name would be its owner; but at four
lanes a name, some names would own nine and others none. So names have a capacity, as in consistent
hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018), and capacities add up to the
number of lanes: names differ by one lane at most.

    every lane asks its lightest name; each name takes the lightest of the lanes that ask it
    the lanes that were not taken ask the lightest name that has room left, until all are taken

With 64 lanes and 4, 16, 32 and 64 names, 1.1, 2.2, 3.0 and 3.9 times its share of the lanes moves
with a name that comes or goes, on average; with 512 lanes 1.0, 1.4, 2.1 and 3.2 times. That is
once, while uneven shares cost throughput for good.

Where names outnumber lanes, names choose lanes in the same way, and a lane's batches belong to its
owners in turn: a small dataset has one lane, which all feeders share.

Invariant: all is a pure function of the set of names and the number of lanes, so all clients agree.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.plan.rng import GAMMA_U64, mix64
from feeder.wire.messages import BatchKey, Hello, Welcome

_ROUNDING_KEY: Final = np.uint64(0x66656564)


class Ownership:
    """The owners of lanes among names, and the order in which other names stand in for them."""

    def __init__(self, names: Iterable[str], lanes: int) -> None:
        """There is at least one name and one lane."""
        self.names = tuple(sorted(set(names)))
        self.lanes = lanes
        digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in self.names]
        self._hashes = np.array([int.from_bytes(d, "little") for d in digests], np.uint64)
        self._owners = self._assign()
        self._turns = []  # each lane counted among its first owner's
        owned = Counter[int]()
        for owner in (int(owners[0]) for owners in self._owners):
            self._turns.append(owned[owner])
            owned[owner] += 1
        self._orders: dict[tuple[int, int], tuple[str, ...]] = {}  # by lane and turn

    def owners(self, lane: int) -> list[str]:
        """The names that own a lane: one, unless there are more names than lanes."""
        return [self.names[position] for position in self._owners[lane]]

    def order(self, lane: int, index: int) -> tuple[str, ...]:
        """All names for batch ``index``, which is of ``lane``: its owner, its lane's other owners,
        then the lightest."""
        owners = self._owners[lane]
        turn = index // self.lanes % len(owners)
        if (lane, turn) not in self._orders:
            weights = self._weigh(np.array([lane], dtype=np.uint64))[0]
            weights[owners] = (np.arange(len(owners)) - turn) % len(owners)
            by_weight = np.argsort(weights, kind="stable")
            self._orders[lane, turn] = tuple(self.names[position] for position in by_weight)
        return self._orders[lane, turn]

    def turn(self, lane: int, index: int) -> int:
        """By which a feeder's node processes take turns: the number of a batch's lane among its
        owner's, or of the batch where owners have one lane or hardly more."""
        if self.lanes < 2 * len(self.names):
            return index // self.lanes // len(self._owners[lane])
        return self._turns[lane]

    def _weigh(self, lanes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The weight of every name for each of ``lanes``, uint64 (lanes, names)."""
        keys = mix64((lanes + np.uint64(1)) * GAMMA_U64)
        return mix64(self._hashes[np.newaxis, :] ^ keys[:, np.newaxis])

    def _assign(self) -> list[NDArray[np.int64]]:
        """Each lane's owners, as positions in ``names``."""
        lanes = np.arange(self.lanes, dtype=np.uint64)
        weights = self._weigh(lanes)
        if len(self.names) > self.lanes:
            chosen = _match(weights.T, mix64(lanes ^ _ROUNDING_KEY))
            return [np.flatnonzero(chosen == lane) for lane in range(self.lanes)]
        return [*_match(weights, mix64(self._hashes ^ _ROUNDING_KEY))[:, np.newaxis]]


def _match(weights: NDArray[np.uint64], rounding: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Match each row of ``weights`` to a light column, int64 (rows,), as lanes to names.

    Columns get equally many rows, those of the lowest ``rounding`` one more where that is needed.
    """
    rows, columns = weights.shape
    share, rest = divmod(rows, columns)
    room = np.full(columns, share, dtype=np.int64)
    room[np.argsort(rounding, kind="stable")[:rest]] += 1
    matches = np.full(rows, -1, dtype=np.int64)
    while (asking := np.flatnonzero(matches < 0)).size:
        able = np.flatnonzero(room)
        chosen = able[weights[np.ix_(asking, able)].argmin(axis=1)]
        order = np.lexsort((weights[asking, chosen], chosen))  # by column, then by weight
        asking, chosen = asking[order], chosen[order]
        before = np.searchsorted(chosen, chosen)  # lighter rows that ask the same column
        is_taken = np.arange(len(asking)) - before < room[chosen]
        matches[asking[is_taken]] = chosen[is_taken]
        room -= np.bincount(chosen[is_taken], minlength=columns)
    return matches


class Preference:
    """Orders names for the batches of a job. The names are the same for all clients of a list."""

    def __init__(self, hello: Hello) -> None:
        self.welcome: Welcome | None = None  # describes the dataset; batches have no order before
        self._hello = hello
        self._names: tuple[str, ...] = ()
        self._ownership: Ownership | None = None  # of these names, once a batch has a choice

    def set_names(self, names: Iterable[str]) -> None:
        """Have these names own the lanes from now on."""
        ordered = tuple(sorted(set(names)))
        if ordered != self._names:
            self._names, self._ownership = ordered, None

    def order(self, key: BatchKey) -> tuple[str, ...]:
        """All names for a batch, the preferred ones first."""
        if len(self._names) < 2 or self.welcome is None:
            return self._names
        return self._own().order(self.lane(key), key[1])

    def turn(self, key: BatchKey) -> int:
        """A number for a batch by which the node processes of a feeder take turns."""
        return self._own().turn(self.lane(key), key[1])

    def _own(self) -> Ownership:
        if self._ownership is None:
            assert self.welcome is not None, "batches are requested after it"
            self._ownership = Ownership(self._names, self.welcome.lanes)
        return self._ownership

    @functools.cached_property
    def _recipe(self) -> Recipe:
        """The recipe with the order of the first welcome, whose feeder knows the dataset's size."""
        welcome = self.welcome
        assert welcome is not None, "batches are requested after it"
        working_set = welcome.working_set, welcome.piece
        return msgspec.structs.replace(
            self._hello.recipe, lanes=welcome.lanes, working_set=working_set
        )

    def lane(self, key: BatchKey) -> int:
        """The lane of a batch's first sample; any where that is a leftover of many or padding."""
        (epoch, index), welcome = key, self.welcome
        assert welcome is not None, "batches are requested after it"
        lane = None
        if index < welcome.batches:
            layout = ShardLayout(samples=welcome.samples, shards=welcome.shards)
            lane = _plan_epoch(self._recipe, layout, self._hello.seed, epoch).lane(index)
        return (epoch + index) % welcome.lanes if lane is None else lane


@functools.lru_cache(maxsize=8)  # for several loaders, an epoch and the next one each
def _plan_epoch(recipe: Recipe, layout: ShardLayout, seed: int, epoch: int) -> EpochPlan:
    return recipe.plan_epoch(layout, seed=seed, epoch=epoch)
