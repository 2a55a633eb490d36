"""Runs in the guest: starts `feeder serve` on two NUMA nodes and checks its placement.

Prints a line for each check and, last, ``N passed, M failed``. The same batches are fetched from
node 0, from node 1 and from an unpinned daemon of one worker. That daemon is also the control: the
checks must find it unpinned, or they prove nothing.

    python -m tests.numa.guest_check crossed    a process with CPUs on node 0 and memory on node 1
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import xxhash

from feeder.host.placement import NodePlacement, apply_placement, check_placement, count_pages
from feeder.host.topology import NumaNode, format_cpulist, read_topology
from feeder.plan.recipe import Recipe
from tests.numa.daemon import (
    OWN_SHARE_MIN,
    Daemon,
    Report,
    children,
    is_placed,
    own_placement,
)
from tests.support.raw_client import RawClient

BASE_PORT = 5555
BATCH_SIZE = 16
WINDOW = 4
STOP_DEADLINE_S = 30.0
TOUCHED_BYTES = 16 << 20

Fetched = tuple[list[str], int]
"""From one endpoint: a digest of each batch's pixels, labels and sample ids, and the images."""


def fetch(endpoint: str, done: threading.Event, may_close: threading.Event) -> Fetched:
    """Fetch an epoch of training and one of validation; keep the sessions open until `may_close`.

    The slots of a closed session are unmapped, so their placement could not be checked.
    """
    digests, images = [], 0
    with RawClient(endpoint) as train, RawClient(endpoint) as val:
        for client, split in ((train, "train"), (val, "val")):
            recipe = Recipe.for_split(split, batch_size=BATCH_SIZE)
            welcome = client.hello(recipe, dataset="set", seed=7, window=WINDOW)
            for index in range(welcome.batches):
                client.want((1, index), release=((1, index - 1),) if index else ())
                batch = client.take((1, index))
                digest = xxhash.xxh3_128()
                for part in (batch.pixels, batch.labels, batch.sample_ids):
                    digest.update(part.tobytes())
                digests.append(digest.hexdigest())
                images += int((batch.sample_ids >= 0).sum())
        done.set()
        may_close.wait()
    return digests, images


def check_process(report: Report, name: str, pid: int, placement: NodePlacement) -> None:
    """Check CPU mask, memory policy and pages of one process."""
    node = placement.memory_node
    found = check_placement([pid], placement)
    mask = format_cpulist(placement.cpus)
    report.check(found.cpus_ok, f"{name}: every thread may run on CPUs {mask} only", found.cpus_ok)
    maps = Path(f"/proc/{pid}/numa_maps").read_text()
    policies = memory_policies(maps)
    report.check(policies == {f"bind:{node}"}, f"{name}: memory policy bind:{node}", policies)
    own = count_pages(maps)
    seen = f"{found.on_node_share:.2%} of {sum(own.values())} pages, {own}"
    report.check(found.on_node_share >= OWN_SHARE_MIN, f"{name}: own memory on node {node}", seen)
    slots = count_pages("\n".join(line for line in maps.splitlines() if "/memfd:" in line))
    report.check(set(slots) == {node}, f"{name}: slots on node {node} only", f"pages {slots}")


def memory_policies(numa_maps: str) -> set[str]:
    """Return the policies of a process's mappings, except those of OpenBLAS.

    OpenBLAS sets "local" for its buffers; on pinned CPUs that is the same node, and touched pages
    count like all others.
    """
    return {line.split()[1] for line in numa_maps.splitlines()} - {"local"}


def processors(pid: int) -> set[int]:
    """Return the CPUs that a process's threads ran on last (proc(5): field 39 of stat)."""
    stats = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {int(text.rpartition(")")[2].split()[36]) for text in stats}


def crossed_placement() -> NodePlacement:
    here, there = read_topology()
    return replace(own_placement(here, 1), memory_node=there.id)


def run_crossed() -> None:
    """Touch memory under the crossed placement, and wait for the end of the input."""
    apply_placement(crossed_placement())
    touched = bytearray(TOUCHED_BYTES)
    Report().log(f"touched {len(touched)}")
    sys.stdin.read()


def check_memory_follows_policy(report: Report) -> None:
    """Check that memory follows the policy, with CPUs on one node and memory bound to the other.

    With both on one node the kernel's default would give the same result.
    """
    command = [sys.executable, "-m", "tests.numa.guest_check", "crossed"]
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # others exist before it is placed
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has touched its memory
        claim = "on cores of node 0 with memory bound to node 1, memory goes there"
        good, found = is_placed(process.pid, crossed_placement())
        report.check(good, claim, found)
        process.kill()


def check_two_nodes(report: Report, dataset: str, numa_nodes: Sequence[NumaNode]) -> list[Fetched]:
    """Check the placement of a daemon on two nodes while it serves, and its end."""
    arguments = ("--bind", f"tcp://127.0.0.1:{BASE_PORT}", "--chunk-images", "4")
    with Daemon(dataset, *arguments) as daemon:
        for line in daemon.lines:
            report.log(f"      {line.rstrip()}")
        found = children(daemon.process.pid, "feeder.node")
        nodes = {n.pid: [w.pid for w in children(n, "feeder.worker")] for n in found}
        report.check(len(nodes) == 2, "one node process for each NUMA node", [*nodes])
        counts = [len(workers) for workers in nodes.values()]
        report.check(counts == [2, 2], "a worker for each core of its node", counts)
        ran_on: dict[int, set[int]] = {p: set() for n in nodes for p in (n, *nodes[n])}
        may_close = threading.Event()
        done = [threading.Event() for _ in nodes]
        with ThreadPoolExecutor() as pool:
            fetching = [
                pool.submit(fetch, f"tcp://127.0.0.1:{BASE_PORT + number}", event, may_close)
                for number, event in enumerate(done)
            ]
            try:
                while not all(
                    e.wait(0.05) or f.done() for e, f in zip(done, fetching, strict=True)
                ):
                    for pid, seen in ran_on.items():
                        seen |= processors(pid)
                for numa_node, (node, workers) in zip(numa_nodes, nodes.items(), strict=True):
                    placement = own_placement(numa_node, len(workers))
                    for pid in (node, *workers):
                        kind = "node process" if pid == node else "worker"
                        name = f"node {numa_node.id}, {kind} {pid}"
                        check_process(report, name, pid, placement)
                        good = bool(ran_on[pid]) and ran_on[pid] <= numa_node.cpus
                        report.check(good, f"{name}: observed on its CPUs only", ran_on[pid])
            finally:
                may_close.set()
            fetched = [future.result() for future in fetching]
        check_end(report, daemon)
    return fetched


def check_unpinned(report: Report, dataset: str, numa_nodes: Sequence[NumaNode]) -> Fetched:
    """Fetch the same from one unpinned worker, and check that it is found unpinned."""
    endpoint = f"tcp://127.0.0.1:{BASE_PORT}"
    with Daemon(dataset, "--pin", "off", "--workers", "1", "--bind", endpoint) as daemon:
        (node,) = (each.pid for each in children(daemon.process.pid, "feeder.node"))
        may_close = threading.Event()
        may_close.set()
        fetched = fetch(endpoint, threading.Event(), may_close)
        policies = memory_policies(Path(f"/proc/{node}/numa_maps").read_text())
        report.check(policies == {"default"}, "control: --pin off sets no memory policy", policies)
        found = check_placement([node], replace(own_placement(numa_nodes[0], 1), pinned=True))
        claim = "control: --pin off is not taken for pinned to node 0"
        report.check(not found.cpus_ok, claim, found)
        check_end(report, daemon)
    return fetched


def check_end(report: Report, daemon: Daemon) -> None:
    """Check that SIGTERM ends the daemon and all its processes."""
    began_s = time.monotonic()
    daemon.process.terminate()
    status = daemon.process.wait(STOP_DEADLINE_S)
    report.check(status == 0, "SIGTERM ends the daemon", f"status {status}")
    report.log(f"      after {time.monotonic() - began_s:.1f} s, in emulation")
    report.check(not daemon.remaining(), "no process remains", daemon.remaining())


def main(dataset: str) -> None:
    report = Report()
    numa_nodes = read_topology()
    seen = {node.id: format_cpulist(node.cpus) for node in numa_nodes}
    report.check(seen == {0: "0-1", 1: "2-3"}, "the guest has two nodes of two cores", seen)
    check_memory_follows_policy(report)
    fetched = check_two_nodes(report, dataset, numa_nodes)
    fetched.append(check_unpinned(report, dataset, numa_nodes))
    names = ("node 0", "node 1", "--pin off --workers 1")
    for name, (digests, images) in zip(names, fetched, strict=True):
        seen_here = f"{len(digests)} batches, {images} images"
        report.check(images > 0, f"{name} serves an epoch of training and validation", seen_here)
    different = {digest for digests, _ in fetched for digest in digests}
    same = all(each == fetched[0] for each in fetched)
    report.check(same, "the three send the same bytes", f"{len(different)} different batches")
    count = len(fetched[0][0])
    report.check(len(different) == count, "no two batches are equal", f"{count} batches")
    report.finish()


if __name__ == "__main__":
    run_crossed() if sys.argv[1] == "crossed" else main(sys.argv[1])
