"""The real daemon on the two NUMA nodes of a simulated sysfs.

The cores are this machine's, but the second node's memory does not exist: its memory policy is
refused, as in some containers. The daemon must warn and serve nevertheless. Real nodes: make
test-numa.
"""

import os
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import Daemon, RawClient, node_processes, small_recipe
from tests.support.machine_tree import node, write_tree

ABSENT_NODE = 900
CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_a_refused_memory_policy_is_a_warning_and_both_nodes_serve_the_same_bytes(
    packed: Path, tmp_path: Path
) -> None:
    tree = node(0, str(CPUS[0]), 1 << 20) | node(ABSENT_NODE, str(CPUS[1]), 1 << 20)
    machine = write_tree(tmp_path / "machine", tree)
    socket = f"ipc://{tmp_path}/socket"
    options = ("--topology-root", str(machine), "--pin", f"{CPUS[0]},{CPUS[1]}")
    with Daemon("--data", f"d={packed}", "--bind", socket, *options) as daemon:
        nodes = node_processes(psutil.Process(daemon.process.pid))
        for node_process, cpu in zip(nodes, CPUS, strict=False):
            (worker,) = node_process.children()
            assert node_process.cpu_affinity() == worker.cpu_affinity() == [cpu]
        batches = []
        for endpoint in (socket, f"{socket}.1"):
            with RawClient(endpoint) as client:
                client.hello(small_recipe())
                client.want((2, 0))
                batches.append(client.take((2, 0)))
        one, other = batches
        assert one.pixels.tobytes() == other.pixels.tobytes()
        assert one.sample_ids.tolist() == other.sample_ids.tolist()
        daemon.wait_line(
            f"warning: memory of node {ABSENT_NODE} is not bound to node {ABSENT_NODE}"
        )
        assert daemon.stop()[0] == 0
    assert len(nodes) == 2
