"""The IPU-POD ImageNet run's hosts beside the model's: 1, 4, 8 and 16 of one host's rate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .shape import Cluster

HOSTS: Final = (1, 4, 8, 16)
HOST_IMAGES_S: Final = 30_000.0
"""Of one host, as published."""

SPEED_UPS: Final[Mapping[int, float]] = {1: 1.0, 16: 12.0}
"""Over one host, where it was published."""


def published_cluster(cluster: Cluster, hosts: int) -> Cluster:
    """Return ``hosts`` hosts that make what a published one did, two ranks each."""
    host = replace(cluster.host, images_per_core_s=HOST_IMAGES_S / cluster.host.cores)
    return replace(
        cluster, hosts=hosts, host=host, job=replace(cluster.job, ranks=2 * hosts), faults=()
    )
