"""The lane of each batch, of the epochs that a client is in."""

from typing import Final

from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.wire.messages import BatchKey, Hello, Welcome

_PLANS_MAX: Final = 2  # an epoch and the next one, which is fetched ahead


class BatchLanes:
    """Looks up lanes in the epochs' plans, which it makes as they come."""

    def __init__(self, welcome: Welcome, hello: Hello) -> None:
        self.count = welcome.lanes
        self._layout = ShardLayout(samples=welcome.samples, shards=welcome.shards)
        self._batches = welcome.batches
        self._recipe = hello.recipe
        self._seed = hello.seed
        self._plans: dict[int, EpochPlan] = {}

    def lane(self, key: BatchKey) -> int | None:
        """Return the lane of a batch's first sample; None where it is a leftover or padding."""
        epoch, index = key
        if index >= self._batches:
            return None
        plan = self._plans.get(epoch)
        if plan is None:
            plan = self._plans[epoch] = self._recipe.plan_epoch(
                self._layout, seed=self._seed, epoch=epoch
            )
            while len(self._plans) > _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
        return plan.lane(index)
