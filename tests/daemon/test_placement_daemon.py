"""The real daemon on the two NUMA nodes of a simulated sysfs.

The cores are this machine's, but the second node's memory does not exist: its memory policy is
refused, as in some containers. The daemon must warn and serve nevertheless. Real nodes: make
test-numa.
"""

import os
from pathlib import Path

import pytest

from feeder.plan.recipe import Recipe
from tests.numa.daemon import Daemon
from tests.numa.processes import node_processes, workers
from tests.support.machine_tree import node, write_tree
from tests.support.synthetic_sets import pack_synthetic
from tests.support.wire_client import WireClient

ABSENT_NODE = 900
CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_a_refused_memory_policy_is_a_warning_and_both_nodes_serve_the_same_bytes(
    tmp_path: Path,
) -> None:
    dataset = pack_synthetic(tmp_path, images=7)
    tree = node(0, str(CPUS[0]), 1 << 20) | node(ABSENT_NODE, str(CPUS[1]), 1 << 20)
    machine = write_tree(tmp_path / "machine", tree)
    socket = f"ipc://{tmp_path}/socket"
    options = ("--topology-root", str(machine), "--pin", f"{CPUS[0]},{CPUS[1]}", "--bind", socket)
    with Daemon(str(dataset), *options) as daemon:
        nodes = node_processes(daemon.pid)
        for pid, cpu in zip(nodes, CPUS, strict=False):
            (worker,) = workers(pid)
            assert os.sched_getaffinity(pid) == os.sched_getaffinity(worker) == {cpu}
        batches = []
        for endpoint in (socket, f"{socket}.1"):
            with WireClient(endpoint) as client:
                client.hello("set", Recipe.for_split("train", batch_size=7), seed=3)
                batches.append(client.fetch(2, 0))
        one, other = batches
        assert one.pixels.tobytes() == other.pixels.tobytes()
        assert one.sample_ids.tolist() == other.sample_ids.tolist()
        assert daemon.stop() == 0
        messages = daemon.messages()
    assert len(nodes) == 2
    assert f"warning: memory of node {ABSENT_NODE} is not bound to node {ABSENT_NODE}" in messages
