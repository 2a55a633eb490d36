"""What is simulated, as one plain value, and which host owns which of its batches.

Every rate is one that can be measured on one machine; the fields say how. Defaults were
measured where that is said, and are assumptions otherwise; ``feeder-bench cluster --measure``
replaces the first kind by this machine's. The validation runs the same value on real daemons.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from feeder.client.core import requests
from feeder.daemon.config import ServeConfig
from feeder.plan.epoch import ShardLayout
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey

SEED: Final = 7

FaultKind = Literal["lose", "freeze", "join"]


def option(default: int | float, name: str, what: str) -> Any:
    """Return a field that an option of the command line sets, by name and meaning."""
    return field(default=default, metadata={"option": name, "what": what})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A host that goes or comes, ``at_s`` after the start.

    lose: its processes are killed, and connections to it end.
    freeze: it no longer answers, as after a power failure; its connections stay.
    join: another host is listed. ``host`` is not used.
    """

    kind: FaultKind
    at_s: float
    host: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal hosts with one node process each; a host with more NUMA nodes is as many of these."""

    hosts: int = 1
    cores: int = option(8, "cores", "cores of a host, each with a worker")
    images_per_core_s: float = option(4400.0, "images-per-core", "images/s of a core")
    """Measured on synthetic ImageNet, with the training recipe."""
    spread: float = 0.14  # standard deviation of a chunk's time over its mean; measured with it
    nic_gbit_s: float = option(100.0, "nic", "Gbit/s of a host's network card")
    storage_mb_s: float = option(
        2000.0, "storage", "MB/s that a host reads what is not in its memory"
    )
    cache_gb: float = option(200.0, "cache-gb", "GB of a host's page cache")

    ranks: int = 2
    batch_size: int = option(256, "batch-size", "images in a batch")
    window: int = option(8, "window", "batches that a rank requests ahead")
    rank_images_s: float = option(
        0.0, "rank-images", "images/s that a rank consumes; 0: as many as it can"
    )
    rank_gb_s: float = option(3.0, "rank-gb", "GB/s that a rank receives")
    """3.7 to 4.2 GB/s over tcp were measured on 2 cores."""
    chunk_images: int = option(
        ServeConfig().chunk_images, "chunk-images", "images that a worker makes at a time"
    )
    image_px: int = 224

    samples: int = option(1_281_167, "samples", "samples of the dataset")  # ImageNet's
    shards: int = 1024
    lanes: int = option(0, "lanes", "lanes of the recipe; 0: as the product chooses")
    image_bytes: int = 110_000
    """Mean size of a packed image, all of which is read: ImageNet's (bench/README.md, "The
    synthetic set")."""
    cold: bool = False  # the first epoch: no host has any of the dataset in memory

    latency_us: float = option(200.0, "latency-us", "microseconds from host to host")
    """For a message of any size; also on the same host."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    names: tuple[str, ...] = ()  # of the node processes, which ownership depends on; empty: made up
    any_node: bool = False  # ask any: what ownership is compared with

    @property
    def latency_s(self) -> float:
        return self.latency_us / 1e6

    @property
    def wire_bytes(self) -> int:
        """Bytes of an image on the wire: int8 RGB, label and sample id."""
        return 3 * self.image_px**2 + 16

    @property
    def host_images_s(self) -> float:
        """What all workers of a host make if nothing else limits them."""
        return self.cores * self.images_per_core_s

    @property
    def chunk_s(self) -> float:
        """What a worker takes for a chunk, in the mean."""
        return self.chunk_images / self.images_per_core_s


class Lanes:
    """The recipe of a cluster's job, and the lanes of its batches, by the product's own plan."""

    def __init__(self, cluster: Cluster) -> None:
        self.layout = ShardLayout(
            samples=cluster.samples,
            shards=cluster.shards,
            size_bytes=cluster.samples * cluster.image_bytes,
        )
        self.recipe = Recipe.for_split(
            "train",
            batch_size=cluster.batch_size,
            image_size=cluster.image_px,
            lanes=cluster.lanes,
        )
        self._plan = cache(
            lambda epoch: self.recipe.plan_epoch(self.layout, seed=SEED, epoch=epoch)
        )
        plan = self._plan(0)
        self.count, self.batches = plan.shape.lanes, plan.batches  # of every epoch

    def lane_of(self, key: BatchKey) -> int | None:
        """Return the lane of a batch; None if it is made of left-overs of all lanes."""
        epoch, index = key
        return self._plan(epoch).lane(index)


@contextmanager
def requesting(cluster: Cluster) -> Iterator[None]:
    """Within the body, the clients of this process request batches as ``any_node`` says.

    With it all batches with a buffer count as near: any node that is not busy takes the next one.
    """
    settings, before = vars(requests), requests.NEAR_SHARE
    if cluster.any_node:
        settings["NEAR_SHARE"] = 1.0
    try:
        yield
    finally:
        settings["NEAR_SHARE"] = before
