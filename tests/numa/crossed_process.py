"""A process with CPUs on one node and memory on another, inspected by guest_check.

usage: python -m tests.numa.crossed_process CPU_NODE MEMORY_NODE    (ends with its input)
"""

import sys

from feeder.host.placement import NodePlacement, apply_placement
from feeder.host.topology import read_topology

_TOUCHED_BYTES = 16 << 20


def main(cpu_node: int, memory_node: int) -> None:
    cpus = read_topology()[cpu_node].cpus
    apply_placement(NodePlacement(node_id=cpu_node, cpus=cpus, memory_node=memory_node, workers=1))
    touched = bytearray(_TOUCHED_BYTES)
    sys.stdout.write(f"touched {len(touched)}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
