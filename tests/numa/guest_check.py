"""Runs in the guest: starts `feeder serve` on two NUMA nodes and checks its placement.

Prints a line for each check and, last, ``N passed, M failed``. The same batches are fetched from
node 0, from node 1 and from an unpinned daemon of one worker. That daemon is also the control: the
checks must find it unpinned, or they prove nothing.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from feeder.host.placement import NodePlacement, check_placement, count_pages
from feeder.host.topology import NumaNode, format_cpulist, read_topology
from feeder.plan.recipe import Recipe
from tests.numa.daemon import Daemon, children, processors
from tests.numa.report import Report
from tests.support.raw_client import RawClient

BASE_PORT = 5555
BATCH_SIZE = 16
WINDOW = 4
OWN_SHARE_MIN = 0.99
"""Share of a process's own pages on its node; the kernel maps some before the policy is set."""


@dataclass
class Fetched:
    """The result from one endpoint: a digest of pixels, labels and sample ids for each batch."""

    digests: list[str]
    images: int


def fetch(endpoint: str, done: threading.Event, may_close: threading.Event) -> Fetched:
    """Fetch an epoch of training and one of validation; keep the sessions open until `may_close`.

    The slots of a closed session are unmapped, so their placement could not be checked.
    """
    fetched = Fetched(digests=[], images=0)
    recipes = [Recipe.for_split("train", batch_size=BATCH_SIZE)]
    recipes.append(Recipe.for_split("val", batch_size=BATCH_SIZE))
    with RawClient(endpoint) as train, RawClient(endpoint) as val:
        for client, recipe in zip((train, val), recipes, strict=True):
            welcome = client.hello(recipe, dataset="set", seed=7, window=WINDOW)
            for index in range(welcome.batches):
                client.want((1, index), release=((1, index - 1),) if index else ())
                batch = client.take((1, index))
                digest = xxhash.xxh3_128()
                for part in (batch.pixels, batch.labels, batch.sample_ids):
                    digest.update(part.tobytes())
                fetched.digests.append(digest.hexdigest())
                fetched.images += int((batch.sample_ids >= 0).sum())
        done.set()
        may_close.wait()
    return fetched


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
    report.check(
        bool(slots) and set(slots) == {node}, f"{name}: slots on node {node} only", f"pages {slots}"
    )


def memory_policies(numa_maps: str) -> set[str]:
    """Return the policies of a process's mappings, except those of OpenBLAS.

    OpenBLAS sets "local" for its buffers; on pinned CPUs that is the same node, and touched pages
    count like all others.
    """
    return {line.split()[1] for line in numa_maps.splitlines()} - {"local"}


def check_memory_follows_policy(report: Report, numa_nodes: Sequence[NumaNode]) -> None:
    """Check that memory follows the policy, with CPUs on one node and memory bound to the other.

    With both on one node the kernel's default would give the same result.
    """
    here, there = numa_nodes
    crossed = NodePlacement(node_id=here.id, cpus=here.cpus, memory_node=there.id, workers=1)
    command = [sys.executable, "-m", "tests.numa.crossed_process", str(here.id), str(there.id)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has touched its memory
        found = check_placement([process.pid], crossed)
        process.kill()
    good = found.cpus_ok and found.on_node_share >= OWN_SHARE_MIN
    claim = f"on cores of node {here.id} with memory bound to node {there.id}, memory goes there"
    report.check(good, claim, found)


def check_two_nodes(report: Report, dataset: str, numa_nodes: Sequence[NumaNode]) -> list[Fetched]:
    """Check the placement of a daemon on two nodes while it serves, and its end."""
    arguments = ("--bind", f"tcp://127.0.0.1:{BASE_PORT}", "--chunk-images", "4")
    with Daemon(dataset, *arguments) as daemon:
        for line in daemon.lines:
            report.log(f"      {line.rstrip()}")
        found = children(daemon.process.pid, "feeder.node")
        nodes = [node.pid for node in found]
        workers = {n.pid: [w.pid for w in children(n, "feeder.worker")] for n in found}
        report.check(len(nodes) == 2, "one node process for each NUMA node", nodes)
        counts = [len(pids) for pids in workers.values()]
        report.check(counts == [2, 2], "a worker for each core of its node", counts)
        ran_on: dict[int, set[int]] = {p: set() for node in nodes for p in (node, *workers[node])}
        endpoints = [f"tcp://127.0.0.1:{BASE_PORT + k}" for k in range(len(nodes))]
        may_close = threading.Event()
        done = [threading.Event() for _ in nodes]
        with ThreadPoolExecutor() as pool:
            fetching = [
                pool.submit(fetch, endpoint, event, may_close)
                for endpoint, event in zip(endpoints, done, strict=True)
            ]
            try:
                while not all(
                    e.wait(0.05) or f.done() for e, f in zip(done, fetching, strict=True)
                ):
                    for pid, seen in ran_on.items():
                        seen |= processors(pid)
                for numa_node, node in zip(numa_nodes, nodes, strict=True):
                    check_node(report, numa_node, node, workers[node], ran_on)
            finally:
                may_close.set()
            fetched = [future.result() for future in fetching]
        check_end(report, daemon)
    return fetched


def check_node(
    report: Report, numa_node: NumaNode, node: int, workers: list[int], ran_on: dict[int, set[int]]
) -> None:
    """Check the placement of a node process and its workers, all given by pid."""
    placement = NodePlacement(
        node_id=numa_node.id, cpus=numa_node.cpus, memory_node=numa_node.id, workers=len(workers)
    )
    for pid in (node, *workers):
        name = f"node {numa_node.id}, {'node process' if pid == node else 'worker'} {pid}"
        check_process(report, name, pid, placement)
        good = bool(ran_on[pid]) and ran_on[pid] <= numa_node.cpus
        report.check(good, f"{name}: observed on its CPUs only", sorted(ran_on[pid]))


def check_unpinned(report: Report, dataset: str, numa_nodes: Sequence[NumaNode]) -> Fetched:
    """Fetch the same from one unpinned worker, and check that it is found unpinned."""
    arguments = ("--pin", "off", "--workers", "1", "--bind", f"tcp://127.0.0.1:{BASE_PORT}")
    with Daemon(dataset, *arguments) as daemon:
        (node,) = (each.pid for each in children(daemon.process.pid, "feeder.node"))
        may_close = threading.Event()
        may_close.set()
        fetched = fetch(f"tcp://127.0.0.1:{BASE_PORT}", threading.Event(), may_close)
        policies = memory_policies(Path(f"/proc/{node}/numa_maps").read_text())
        report.check(policies == {"default"}, "control: --pin off sets no memory policy", policies)
        everywhere = NodePlacement(
            node_id=0, cpus=numa_nodes[0].cpus, memory_node=0, workers=1, pinned=True
        )
        check = check_placement([node], everywhere)
        report.check(
            not check.cpus_ok, "control: --pin off is not taken for pinned to node 0", check
        )
        check_end(report, daemon)
    return fetched


def check_end(report: Report, daemon: Daemon) -> None:
    """Check that SIGTERM ends the daemon and all its processes."""
    began_s = time.monotonic()
    status = daemon.end()
    report.check(status == 0, "SIGTERM ends the daemon", f"status {status}")
    report.log(f"      after {time.monotonic() - began_s:.1f} s, in emulation")
    report.check(not daemon.remaining(), "no process remains", daemon.remaining())


def main(dataset: str) -> None:
    report = Report()
    numa_nodes = read_topology()
    seen = {node.id: format_cpulist(node.cpus) for node in numa_nodes}
    report.check(seen == {0: "0-1", 1: "2-3"}, "the guest has two nodes of two cores", seen)
    check_memory_follows_policy(report, numa_nodes)
    fetched = check_two_nodes(report, dataset, numa_nodes)
    fetched.append(check_unpinned(report, dataset, numa_nodes))
    compare(report, fetched)
    report.finish()


def compare(report: Report, fetched: Sequence[Fetched]) -> None:
    """Check that all endpoints sent the same batches, which are not empty and all different."""
    for each, name in zip(fetched, ("node 0", "node 1", "--pin off --workers 1"), strict=True):
        seen = f"{len(each.digests)} batches, {each.images} images"
        report.check(each.images > 0, f"{name} serves an epoch of training and validation", seen)
    same = all(each.digests == fetched[0].digests for each in fetched)
    different = len({digest for each in fetched for digest in each.digests})
    report.check(same, "the three send the same bytes", f"{different} different batches in all")
    distinct = different == len(fetched[0].digests)
    report.check(distinct, "no two batches are equal", f"{len(fetched[0].digests)} batches")


if __name__ == "__main__":
    main(sys.argv[1])
