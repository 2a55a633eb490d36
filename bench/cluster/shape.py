"""What is simulated: hosts, ranks, dataset, network and faults, as one plain value.

Every rate is one that can be measured on one machine; the fields say how. Defaults were
measured where that is said, and are assumptions otherwise; ``feeder-bench cluster --measure``
replaces the first kind by this machine's. The validation runs the same value on real daemons.
"""

from dataclasses import dataclass
from typing import Final, Literal

from feeder.daemon.config import ServeConfig

IMAGENET_SAMPLES: Final = 1_281_167


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
    cores: int = 8
    """Of a host; each has a worker."""
    images_per_core_s: float = 4400.0
    """What one worker makes: measured on synthetic ImageNet, with the training recipe."""
    spread: float = 0.14
    """Standard deviation of a chunk's time over its mean; measured with it."""
    nic_gbit_s: float = 100.0
    storage_mb_s: float = 2000.0
    """What a host reads from storage, of all samples that are not in its memory."""
    cache_gb: float = 200.0
    """Memory of a host for packed samples: the page cache."""

    ranks: int = 2
    batch_size: int = 256
    window: int = 8
    """Batches that each rank requests ahead: ``window`` of a loader."""
    rank_images_s: float = 0.0
    """What a rank consumes; 0 means as fast as it can."""
    rank_gb_s: float = 3.0
    """What a rank's process receives: 3.7 to 4.2 GB/s over tcp were measured on 2 cores."""
    chunk_images: int = ServeConfig().chunk_images
    image_px: int = 224

    samples: int = IMAGENET_SAMPLES
    shards: int = 1024
    lanes: int = 0
    """0 leaves the number to the product."""
    image_bytes: int = 110_000
    """Mean size of a packed image, all of which is read: ImageNet's (bench/README.md, "The
    synthetic set")."""
    cold: bool = False
    """The first epoch: no host has any of the dataset in memory."""

    latency_us: float = 200.0
    """From one host to another, for a message of any size; also on the same host."""
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
