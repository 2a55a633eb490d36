"""Describes the machine that a bench runs on, and limits processes to its cores and memory."""

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import zmq

from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_hardware import read_processor
from feeder.errors import ConfigError, ResourceError
from feeder.host.kernel_files import cgroup_folders
from feeder.host.topology import format_cpulist, read_topology, usable_cpus
from feeder.jpeg.decode import describe_decoder
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.libraries import library_versions


def describe_machine(
    cores: Mapping[str, int] | None = None, *, decoder: Decoder | None = "own"
) -> dict[str, object]:
    """Return the header of a report; ``cores`` maps each part of the bench to its core.

    ``decoder`` is that of the product's samples, None where the bench decodes nothing.

    Call it before pinning, so that ``usable_cores`` is what the process was given. The load is the
    average of the last minute: well above zero, the machine was in use.
    """
    processor = read_processor(KernelFiles(Path("/")), with_cores=False)
    load = os.getloadavg()[0]
    machine: dict[str, object] = {
        "cpu": processor.model or platform.processor() or "unknown",
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": format_cpulist(os.sched_getaffinity(0)),
        "usable_count": usable_cpus().reason,
        "numa_nodes": len(read_topology()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),  # a VM's nodes show less
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(load, 2),
    }
    if cores:
        machine["cores_used"] = dict(cores)
    if decoder is not None:
        machine["decoder"] = describe_decoder(decoder)
    machine["libraries"] = library_versions() | {
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.pyzmq_version(),
    }
    return machine


def choose_core(asked: int | None) -> int:
    """Return the core to measure on: the one asked for, else the first usable one."""
    usable = sorted(os.sched_getaffinity(0))
    if asked is None:
        return usable[0]
    if asked not in usable:
        raise ConfigError(
            f"--core {asked} is not usable by this process: name one of {format_cpulist(usable)}"
        )
    return asked


def choose_cores(asked: int | None) -> tuple[int, int]:
    """Return ``choose_core``'s, and another for the other side: the same if it is the only one."""
    core = choose_core(asked)
    others = sorted(os.sched_getaffinity(0) - {core})
    return core, others[0] if others and usable_cpus().count > 1 else core


@contextmanager
def pinned_to(*cores: int) -> Iterator[None]:
    """Pin this thread to ``cores`` within the body; processes started there inherit them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the folder of a new memory cgroup with this limit; ``within`` starts processes in it.

    What they read counts too: the page cache is charged to the group that first reads a page.
    ResourceError where no such group can be made.
    """
    group, problem = None, "no memory controller is mounted"
    # Below this process's own group or, where processes forbid that (cgroup v2), beside it.
    for parent, unified in reversed(cgroup_folders(Path("/"), "memory")):
        group = parent / f"feeder-bench-{os.getpid()}"
        try:
            group.mkdir()
            (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(
                str(limit_bytes)
            )
            break
        except OSError as error:
            problem = str(error)
            with contextlib.suppress(OSError):
                group.rmdir()
            group = None
    if group is None:
        raise ResourceError(
            f"no memory cgroup can be made here ({problem}): run this as root, with a writable "
            "/sys/fs/cgroup"
        )
    try:
        yield group
    finally:
        group.rmdir()


@contextmanager
def within(group: Path) -> Iterator[None]:
    """Move this process into the cgroup for the body; processes started there stay in it."""
    unified = (group / "memory.max").exists()
    own = [folder for folder, kind in cgroup_folders(Path("/"), "memory") if kind == unified][-1]
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (own / "cgroup.procs").write_text(str(os.getpid()))
