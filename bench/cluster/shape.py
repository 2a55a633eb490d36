"""What is simulated: hosts, ranks, dataset, network and faults, as one plain value.

Every rate is one that can be measured on one machine; the fields say how. Defaults were
measured where that is said, and are assumptions otherwise; ``feeder-bench cluster --measure``
replaces the first kind by this machine's. The validation runs the same value on real daemons.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from feeder.daemon.config import ServeConfig

IMAGENET_SAMPLES: Final = 1_281_167


def option(default: int | float, name: str, what: str) -> Any:
    """Return a field that an option of the command line sets, by name and meaning."""
    return field(default=default, metadata={"option": name, "what": what})


FaultKind = Literal["lose", "freeze", "join"]


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
    spread: float = 0.14
    """Standard deviation of a chunk's time over its mean; measured with it."""
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

    samples: int = option(IMAGENET_SAMPLES, "samples", "samples of the dataset")
    shards: int = 1024
    lanes: int = option(0, "lanes", "lanes of the recipe; 0: as the product chooses")
    image_bytes: int = 110_000
    """Mean size of a packed image, all of which is read: ImageNet's (bench/README.md, "The
    synthetic set")."""
    cold: bool = False
    """The first epoch: no host has any of the dataset in memory."""

    latency_us: float = option(200.0, "latency-us", "microseconds from host to host")
    """For a message of any size; also on the same host."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    names: tuple[str, ...] = ()
    """Of the node processes, which ownership depends on; empty: made up."""

    @property
    def latency_s(self) -> float:
        """``latency_us`` in seconds."""
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

    def name_of(self, host: int) -> str:
        """Return the name of a host's node process."""
        return self.names[host] if host < len(self.names) else f"host-{host}/0 {endpoint_of(host)}"


def endpoint_of(host: int) -> str:
    """Return where a simulated host's node process is dialled."""
    return f"tcp://host-{host}:5555"
