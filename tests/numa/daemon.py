"""A real `feeder serve` in the guest, its processes, and the report of the checks for the host."""

import os
import sys
from typing import Self

import psutil

from bench.daemon import READY_LINE, DaemonProcess
from feeder.host.placement import NodePlacement, PlacementCheck, check_placement
from feeder.host.topology import NumaNode

START_DEADLINE_S = 150.0  # emulated cores are about twenty times slower
OWN_SHARE_MIN = 0.99


class Daemon(DaemonProcess):
    """Ready on entry; on exit all its processes are killed."""

    def __init__(self, dataset: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "feeder", "serve", "--data", f"set={dataset}"]
        super().__init__([*command, *arguments], environ=os.environ)
        self._known: list[psutil.Process] = []

    def __enter__(self) -> Self:
        if self.find_line(READY_LINE, START_DEADLINE_S) is None:
            self.kill()
            raise RuntimeError("the daemon is not ready in time; its log:\n" + "".join(self.lines))
        self._known = self.processes()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.remaining():
            process.kill()
        self.kill()

    def remaining(self) -> list[psutil.Process]:
        """Those of its processes that have not ended."""
        return [process for process in self._known if process.is_running()]


class Report:
    """Counts and prints the checks, line by line: the host has them even if the guest dies."""

    passed = failed = 0

    def check(self, good: bool, claim: str, seen: object) -> None:
        """Print one check with the observed value."""
        self.passed += good
        self.failed += not good
        self.log(f"{'ok  ' if good else 'FAIL'}  {claim}: {seen}")

    def log(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def finish(self) -> None:
        """Print the summary, which the host parses, and exit."""
        self.log(f"{self.passed} passed, {self.failed} failed")
        sys.exit(self.failed > 0)


def children(process: int | psutil.Process, module: str) -> list[psutil.Process]:
    """The children of a process that run a module, in the order in which they started."""
    process = psutil.Process(process) if isinstance(process, int) else process
    found = [child for child in process.children() if module in child.cmdline()]
    return sorted(found, key=lambda child: child.create_time())


def own_placement(node: NumaNode, workers: int) -> NodePlacement:
    """Return where a NUMA node's processes belong: on its CPUs, and in its memory."""
    return NodePlacement(node_id=node.id, cpus=node.cpus, memory_node=node.id, workers=workers)


def is_placed(pid: int, placement: NodePlacement) -> tuple[bool, PlacementCheck]:
    """Return whether a process's threads and all but 1 % of its own pages are where they belong.

    The kernel maps some pages before the policy is set.
    """
    found = check_placement([pid], placement)
    return found.cpus_ok and found.on_node_share >= OWN_SHARE_MIN, found
