"""What is simulated: hosts, ranks, dataset, network and faults, as plain values.

Every rate is one that can be measured on one machine; the fields say how. Defaults were
measured where that is said, and are assumptions otherwise; ``feeder-bench cluster --measure``
replaces the first kind by this machine's.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from feeder.daemon.config import ServeConfig

IMAGE_BYTES: Final = 110_000
"""Mean size of a packed ImageNet image (bench/README.md, "The synthetic set")."""

IMAGENET_SAMPLES: Final = 1_281_167


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """A feeder host with one node process; a host with more NUMA nodes is as many of these."""

    cores: int = 8
    """Each has a worker."""
    images_per_core_s: float = 4400.0
    """What one worker makes: measured on synthetic ImageNet, with the training recipe."""
    spread: float = 0.14
    """Standard deviation of a chunk's time over its mean; measured with it."""
    nic_gbit_s: float = 100.0
    storage_mb_s: float = 2000.0
    """What the host reads from storage, of all samples that are not in its memory."""
    cache_gb: float = 200.0
    """Memory for packed samples: the page cache."""

    @property
    def cpu_images_s(self) -> float:
        """What all workers make if nothing else limits them."""
        return self.cores * self.images_per_core_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """A training job."""

    ranks: int = 2
    batch_size: int = 256
    window: int = 8
    """Batches that each rank requests ahead: ``window`` of a loader."""
    rank_images_s: float = 0.0
    """What a rank consumes; 0 means as fast as it can."""
    rank_gb_s: float = 3.0
    """What a rank's process receives: 3.7 to 4.2 GB/s over tcp were measured on 2 cores."""
    chunk_images: int = ServeConfig().chunk_images
    image_size: int = 224
    image_bytes: int = 0
    """Of an image on the wire; 0 means int8 RGB of ``image_size``."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of an image on the wire, label and sample id included."""
        return (self.image_bytes or 3 * self.image_size**2) + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShape:
    """A packed dataset."""

    samples: int = IMAGENET_SAMPLES
    shards: int = 1024
    lanes: int = 0
    """0 leaves the number to the product."""
    image_bytes: int = IMAGE_BYTES
    """Mean size of a packed image; the whole of it is read."""
    is_cold: bool = False
    """The first epoch: no host has any of it in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A host that goes or comes, ``at_s`` after the start.

    lose: its processes are killed, and connections to it end.
    freeze: it no longer answers, as after a power failure; its connections stay.
    join: another host is listed. ``host`` is not used.
    """

    kind: Literal["lose", "freeze", "join"]
    at_s: float
    host: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A whole simulation. ``names`` are those of the node processes, which ownership depends on."""

    hosts: int
    host: HostShape = field(default_factory=HostShape)
    job: JobShape = field(default_factory=JobShape)
    dataset: DatasetShape = field(default_factory=DatasetShape)
    latency_s: float = 0.0002
    """From one host to another, for a message of any size; also on the same host."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    names: tuple[str, ...] = ()

    def name_of(self, host: int) -> str:
        """Return the name of a host's node process."""
        if host < len(self.names):
            return self.names[host]
        return f"host-{host}/0 {self.endpoint_of(host)}"

    def endpoint_of(self, host: int) -> str:
        """Return where a host's node process is dialled."""
        return f"tcp://host-{host}:5555"
