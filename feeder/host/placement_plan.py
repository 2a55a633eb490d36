"""Plans the node processes: how many, on which CPUs, with how many workers. Pure.

Workers are spread over the NUMA nodes in proportion to the usable CPUs there, and never pinned
outside this process's affinity. Invariant: a placement has at least one worker and one CPU.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from feeder.errors import ConfigError
from feeder.host.topology import Topology, UsableCpus, format_cpulist, parse_cpulist


class PinMode(enum.StrEnum):
    """The kinds of `--pin`."""

    AUTO = "auto"
    OFF = "off"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """`auto`: every node to its usable CPUs; `off`: one node process, unpinned; or only `cpus`."""

    mode: PinMode
    cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """One node process: its CPUs, the node that must hold its memory (None: any), its workers."""

    node_id: int
    cpus: frozenset[int]
    memory_node: int | None
    workers: int
    pinned: bool = True


def parse_pin(text: str) -> Pin:
    """Return the meaning of "auto", "off" or a CPU list such as "0-3,8"; ConfigError otherwise."""
    if text in (PinMode.AUTO, PinMode.OFF):
        return Pin(mode=PinMode(text))
    try:
        cpus = parse_cpulist(text)
    except ConfigError as error:
        raise ConfigError(f"pin is auto, off or a list of CPUs: {error}") from None
    if not cpus:
        raise ConfigError("pin is empty: write auto, off or a list of CPUs such as 0-3,8")
    return Pin(mode=PinMode.LIST, cpus=cpus)


def plan_placement(
    topology: Topology, usable: UsableCpus, workers: int | None, pin: Pin
) -> tuple[NodePlacement, ...]:
    """Spread `workers` (None: one per usable CPU) over the nodes in proportion to usable CPUs.

    A node without workers gets no node process. A CPU in `pin` outside this process's affinity is a
    ConfigError.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}: it must be at least 1, or auto")
    if outside := pin.cpus - usable.affinity:
        raise ConfigError(
            f"pin asks for CPUs {format_cpulist(outside)}, but this process may only use "
            f"{format_cpulist(usable.affinity)}: name CPUs among these, or start it with more"
        )
    cpus = pin.cpus or usable.affinity
    total = workers if workers is not None else min(len(cpus), usable.count)
    shares = [(node, node.cpus & cpus) for node in topology.nodes if node.cpus & cpus]
    if pin.mode is PinMode.OFF or not shares:
        # No shares: this process's CPUs are on no node that sysfs shows.
        pinned = pin.mode is not PinMode.OFF
        return (
            NodePlacement(node_id=0, cpus=cpus, memory_node=None, workers=total, pinned=pinned),
        )
    split = _apportion(total, [len(share) for _, share in shares])
    return tuple(
        NodePlacement(
            node_id=node.id,
            cpus=share,
            memory_node=node.memory_node,
            workers=count,
        )
        for (node, share), count in zip(shares, split, strict=True)
        if count
    )


def _apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`; the largest remainders are rounded up."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares
