"""Which node is asked for a batch first, second, …: rendezvous hashing over the live nodes.

Each lane has an order of all nodes in which it prefers them, by a hash of lane and node (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998). So all clients ask the same
node for a lane, which caches it; when a node goes, its lanes are spread over the others and no lane
else moves; when it comes back, it gets the same ones.
"""

import hashlib
from collections.abc import Iterable

from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.wire.messages import BatchKey, Hello, Welcome

_PLANS_MAX = 2  # an epoch and the next one, which is fetched ahead


def rank_nodes(names: Iterable[tuple[str, int]], hash_key: str) -> list[int]:
    """Return the links of (node's name, link), those that ``hash_key`` prefers first."""
    return [
        link for _, _, link in sorted((_weigh(name, hash_key), name, link) for name, link in names)
    ]


def _weigh(name: str, hash_key: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{hash_key}".encode(), digest_size=8).digest()


class LaneKeys:
    """What is hashed for each batch: the lane of its samples."""

    def __init__(self, welcome: Welcome, hello: Hello) -> None:
        self._layout = ShardLayout(
            samples=welcome.samples, shards=welcome.shards, lanes=welcome.lanes
        )
        self._recipe = hello.recipe
        self._seed = hello.seed
        self._plans: dict[int, EpochPlan] = {}

    def hash_key(self, key: BatchKey) -> str:
        """Return what stands for a batch: its lane, or itself if it is made of leftovers."""
        epoch, index = key
        plan = self._plans.get(epoch)
        if plan is None:
            plan = self._plans[epoch] = self._recipe.plan_epoch(
                self._layout, seed=self._seed, epoch=epoch
            )
            while len(self._plans) > _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
        lane = plan.lane(index)
        return f"batch {epoch} {index}" if lane is None else f"lane {lane}"
