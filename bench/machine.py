"""Describes the machine that a bench runs on, and pins the bench to the cores that it names."""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import zmq

from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_hardware import read_processor
from feeder.errors import ConfigError
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
