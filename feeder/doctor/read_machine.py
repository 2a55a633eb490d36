"""Gathers all facts about a machine; never raises for what the kernel's files hold."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from feeder.doctor.findings.facts import BusyProcess, Machine
from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_cpus import read_allowed, read_governors, read_nodes, read_processor
from feeder.doctor.read_devices import read_accelerators, read_cards
from feeder.doctor.read_libraries import read_libraries
from feeder.doctor.read_memory import read_clock, read_kernel, read_limits, read_memory
from feeder.doctor.read_mounts import read_places
from feeder.doctor.read_processes import read_load, read_processes
from feeder.host.processes import NeighbourFinder

_LOOK_S: Final = 0.3
"""Between two looks at the CPU time of other processes, which is counted in ticks of 10 ms."""


def read_machine(root: Path, datasets: Sequence[Path] = (), process: str = "self") -> Machine:
    """Return all facts about the machine with /proc and /sys below ``root``.

    CPU mask, cgroup and limits are those of ``process``, a folder in its /proc; the libraries are
    always this process's.
    """
    files = KernelFiles(root, process)
    unreadable: list[str] = []
    allowed = read_allowed(files, unreadable)
    nodes = read_nodes(files, allowed, unreadable)
    is_here = root == Path("/")  # a copy of another machine's /proc stands still
    finder, began_s = NeighbourFinder(), time.monotonic()
    if is_here:
        finder.look((), began_s)
    libraries = read_libraries()  # takes half a second, time enough for another look
    ours, daemons, swapped_bytes = read_processes(files)
    load = read_load(files)
    if is_here:
        time.sleep(max(0.0, began_s + _LOOK_S - time.monotonic()))
        others = finder.look(ours | {os.getpid()}, time.monotonic())
        busy = tuple(BusyProcess(*other) for other in others)
        load = replace(load, busy=busy)
    return Machine(
        process=process,
        kernel=read_kernel(files),
        processor=read_processor(files),
        nodes=nodes,
        allowed=allowed,
        governors=read_governors(files, allowed.cpus),
        cards=read_cards(files),
        accelerators=read_accelerators(files),
        memory=read_memory(files, swapped_bytes),
        limits=read_limits(files),
        clock=read_clock(files),
        datasets=read_places(files, datasets),
        daemons=daemons,
        load=load,
        libraries=libraries,
        unreadable=tuple(dict.fromkeys(unreadable)),
    )


def read_for_serving(root: Path, datasets: Sequence[Path]) -> Machine:
    """Return the facts that are worth a warning when ``feeder serve`` starts, in a few ms.

    Libraries are left to the node processes, which have loaded them, and open files to
    ``daemon.node_plan``, which knows the configuration.
    """
    files = KernelFiles(root)
    unreadable: list[str] = []
    allowed = read_allowed(files, unreadable)
    nodes = read_nodes(files, allowed, unreadable)
    return Machine(
        processor=read_processor(files, with_cores=False),
        nodes=nodes,
        allowed=allowed,
        governors=read_governors(files, allowed.cpus),
        memory=read_memory(files),
        clock=read_clock(files),
        datasets=read_places(files, datasets),
    )
