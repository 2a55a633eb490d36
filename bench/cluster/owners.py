"""Which host owns which lane: the product's plan and ownership, all that the model knows of them.

A host is warm for the lanes that it owned in the last epoch; nothing else of the simulation depends
on ownership, which the client's session machine applies itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from feeder.client.core import requests
from feeder.client.core.owners import Ownership
from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey

from .shape import Cluster

SEED = 7


class Lanes:
    """The recipe of a cluster's job, and the lanes of its batches."""

    def __init__(self, cluster: Cluster) -> None:
        self.layout = ShardLayout(samples=cluster.samples, shards=cluster.shards)
        self.recipe = Recipe.for_split(
            "train",
            batch_size=cluster.batch_size,
            image_size=cluster.image_px,
            lanes=cluster.lanes,
        )
        self._plans: dict[int, EpochPlan] = {}
        plan = self._plan(0)
        self.count, self.batches = plan.lanes, plan.batches  # of every epoch

    def lane_of(self, key: BatchKey) -> int | None:
        """Return the lane of a batch; None if it is made of left-overs of all lanes."""
        epoch, index = key
        return self._plan(epoch).lane(index)

    def owners(self, names: Sequence[str]) -> Mapping[int, str]:
        """Return the name of each lane's owner among the names listed."""
        ownership = Ownership(names, self.count)
        return {lane: ownership.owner(lane) for lane in range(self.count)}

    def _plan(self, epoch: int) -> EpochPlan:
        plan = self._plans.get(epoch)
        if plan is None:
            plan = self.recipe.plan_epoch(self.layout, seed=SEED, epoch=epoch)
            self._plans[epoch] = plan
        return plan


@contextmanager
def asking_any_node(is_on: bool = True) -> Iterator[None]:
    """Within the body, clients have no reason to wait for a lane's owner, if ``is_on``.

    All batches with a buffer count as near: any node that is not busy takes the next one. This is
    the throughput that ownership is compared with. It holds for the whole process.
    """
    settings, before = vars(requests), requests.NEAR_SHARE
    if is_on:
        settings["NEAR_SHARE"] = 1.0
    try:
        yield
    finally:
        settings["NEAR_SHARE"] = before
