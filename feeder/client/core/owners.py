"""The order in which feeders are asked for a batch: the owner of its lane first.

Owners have even shares of the lanes, and few lanes move when a feeder comes or goes. Each lane
weighs all names by a hash of lane and name (rendezvous hashing: Thaler and Ravishankar, "Using
name-based mappings to increase hit rates", 1998). The lightest name would be its owner; but at four
lanes a name, some names would own nine and others none. So names have a capacity, as in consistent
hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018):

    every lane asks its lightest name; each name takes the lightest of the lanes that ask it
    the lanes that were not taken ask their second, then their third name, if that has room left
    lanes that were taken by none of the three belong to their lightest name, over its capacity

A capacity is the even share, rounded up or down by the name's own hash, so that one name more or
fewer changes few capacities.

Invariant: all is a pure function of the set of names and the number of lanes, so all clients agree.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.plan.rng import GAMMA_U64, mix64
from feeder.wire.messages import BatchKey, Hello, Welcome

_ATTEMPTS: Final = 3
"""With 512 lanes and 16, 64 and 256 names, 97, 94 and 87 % of the lanes are within an even share,
and a name moves 1.3, 1.8 and 1.9 times its share when it comes or goes, on average; with 4 attempts
98, 95 and 89 %, and 1.3, 2.0 and 2.2 times; with one 94, 86 and 75 %, and once."""

_UNIT: Final = 2.0**-53
_HEAVIEST: Final = np.uint64(2**64 - 1)
_SHIFT_11: Final = np.uint64(11)
_CAPACITY_KEY: Final = np.uint64(0x66656564)


class Ownership:
    """The owners of lanes among names, and the order in which other names stand in for them."""

    def __init__(self, names: Iterable[str], lanes: int) -> None:
        """There is at least one name and one lane."""
        self.names = tuple(sorted(set(names)))
        self.lanes = lanes
        digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in self.names]
        self._hashes = np.array([int.from_bytes(d, "little") for d in digests], np.uint64)
        self._owners = self._assign()
        self._orders: dict[int, tuple[str, ...]] = {}  # by lane

    def owner(self, lane: int) -> str:
        """The name that owns a lane."""
        return self.names[int(self._owners[lane])]

    def order(self, lane: int) -> tuple[str, ...]:
        """All names for a lane: its owner, then the lightest."""
        if lane not in self._orders:
            weights = self._weigh(np.array([lane], dtype=np.uint64))[0]
            weights[self._owners[lane]] = 0
            by_weight = np.argsort(weights, kind="stable")
            self._orders[lane] = tuple(self.names[position] for position in by_weight)
        return self._orders[lane]

    def _weigh(self, lanes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The weight of every name for each of ``lanes``, uint64 (lanes, names)."""
        keys = mix64((lanes + np.uint64(1)) * GAMMA_U64)
        return mix64(self._hashes[np.newaxis, :] ^ keys[:, np.newaxis])

    def _assign(self) -> NDArray[np.int64]:
        """Each lane's owner as a position in ``names``, int64 (lanes,)."""
        weights = self._weigh(np.arange(self.lanes, dtype=np.uint64))
        rounding = (mix64(self._hashes ^ _CAPACITY_KEY) >> _SHIFT_11) * _UNIT  # 0 .. 1, exactly
        share = self.lanes / len(self.names)
        capacities = np.floor(share + rounding).astype(np.int64)
        owners = np.full(self.lanes, -1, dtype=np.int64)
        owned = np.zeros(len(self.names), dtype=np.int64)
        asked = weights.copy()  # names that were asked become the heaviest
        for _ in range(min(_ATTEMPTS, len(self.names))):
            lanes = np.flatnonzero(owners < 0)
            chosen = asked[lanes].argmin(axis=1)
            order = np.lexsort((weights[lanes, chosen], chosen))  # by name, then by weight
            lanes, chosen = lanes[order], chosen[order]
            before = np.searchsorted(chosen, chosen)  # lanes that ask lighter names
            is_taken = np.arange(len(lanes)) - before < (capacities - owned)[chosen]
            owners[lanes[is_taken]] = chosen[is_taken]
            owned = np.bincount(owners[owners >= 0], minlength=len(self.names))
            asked[lanes, chosen] = _HEAVIEST
        rest = np.flatnonzero(owners < 0)
        owners[rest] = weights[rest].argmin(axis=1)
        return owners


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
        if self._ownership is None:
            self._ownership = Ownership(self._names, self.welcome.lanes)
        return self._ownership.order(self.lane(key))

    def lane(self, key: BatchKey) -> int:
        """The lane of a batch's first sample; any where that is a leftover of many or padding."""
        (epoch, index), welcome = key, self.welcome
        assert welcome is not None, "batches are requested after it"
        lane = None
        if index < welcome.batches:
            hello, samples, shards = self._hello, welcome.samples, welcome.shards
            lane = _plan_epoch(hello.recipe, samples, shards, hello.seed, epoch).lane(index)
        return (epoch + index) % welcome.lanes if lane is None else lane


@functools.lru_cache(maxsize=8)  # for several loaders, an epoch and the next one each
def _plan_epoch(recipe: Recipe, samples: int, shards: int, seed: int, epoch: int) -> EpochPlan:
    layout = ShardLayout(samples=samples, shards=shards)
    return recipe.plan_epoch(layout, seed=seed, epoch=epoch)
