"""Gathers all facts about a machine; never raises for what the kernel's files hold.

The versions of libraries are read from those that this process loads, not from package lists: a
list may name one that has been overwritten. Importing them takes half a second.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from feeder.doctor.disk_cache import read_disk_cache
from feeder.doctor.facts import BusyProcess, Libraries, Machine
from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.mounts import read_places
from feeder.doctor.read_hardware import (
    read_accelerators,
    read_allowed,
    read_cards,
    read_governors,
    read_nodes,
    read_processor,
)
from feeder.doctor.read_system import (
    read_clock,
    read_limits,
    read_load,
    read_memory,
    read_processes,
)
from feeder.errors import FeederError, ResourceError
from feeder.host.processes import NeighbourFinder
from feeder.installation import install_command, missing_packages

_LOOK_S: Final = 0.3
"""Between two looks at the CPU time of other processes, which is counted in ticks of 10 ms."""


def read_machine(
    root: Path,
    datasets: Sequence[Path] = (),
    process: str = "self",
    *,
    disk_cache: tuple[Path, int] | None = None,
    is_brief: bool = False,
) -> Machine:
    """All facts about the machine with /proc and /sys below ``root``.

    CPU mask, cgroup and limits are those of ``process``, a folder in its /proc; the libraries are
    always this process's; ``disk_cache`` is its folder and ``cache.disk_bytes``. With ``is_brief``,
    in a few ms, those that are worth a warning when ``feeder serve`` starts: its node processes
    have loaded the libraries, and ``daemon.node_plan``, which knows the configuration, looks at
    open files.
    """
    files = KernelFiles(root, process)
    is_here = root == Path("/") and not is_brief  # a copy of another machine's /proc stands still
    finder, began_s = NeighbourFinder(), time.monotonic()
    if is_here:
        finder.look((), began_s)
    allowed = read_allowed(files)
    machine = Machine(
        process=process,
        processor=read_processor(files, with_cores=not is_brief),
        nodes=read_nodes(files, allowed),
        allowed=allowed,
        governors=read_governors(files, allowed.cpus),
        memory=read_memory(files),
        clock=read_clock(files),
        datasets=read_places(files, datasets),
    )
    if is_brief:
        return machine
    libraries = read_libraries()  # takes time enough for another look
    ours, daemons, swapped_bytes = read_processes(files)
    place = None
    if disk_cache is not None:
        place = read_disk_cache(files, *disk_cache, is_here=is_here)
    load = read_load(files)
    if is_here:
        time.sleep(max(0.0, began_s + _LOOK_S - time.monotonic()))
        others = finder.look(ours | {os.getpid()}, time.monotonic())
        load = replace(load, busy=tuple(BusyProcess(*other) for other in others))
    return replace(
        machine,
        kernel=files.text("proc/sys/kernel/osrelease"),
        cards=read_cards(files),
        accelerators=read_accelerators(files),
        memory=replace(machine.memory, feeder_swapped_bytes=swapped_bytes),
        limits=read_limits(files),
        disk_cache=place,
        daemons=daemons,
        load=load,
        libraries=libraries,
        unreadable=tuple(dict.fromkeys(files.unreadable)),
    )


def read_libraries() -> Libraries:
    """The libraries of this process, their builds, and the results of their own checks."""
    libraries = Libraries(missing=missing_packages(), install=install_command("daemon"))
    if libraries.missing:  # the imports below need most of them
        return libraries
    try:
        import zmq

        from feeder.security.crypto_library import find_crypto_library

        versions = {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}
        libraries = replace(libraries, versions=versions, crypto=find_crypto_library()[0])
        from feeder.jpeg.libraries import check_libraries, library_versions, pillow_has_avx2

        check_libraries()
        from feeder.jpeg.decode import describe_decoder
        from feeder.jpeg.installed_pillow import find_pillow
        from feeder.sample.self_test import compute_self_test

        pillow = find_pillow()
        self_test_problem = ""
        try:
            compute_self_test()
        except FeederError as error:
            self_test_problem = str(error)
        return replace(
            libraries,
            versions={**library_versions(), **versions},
            pillow_problems=pillow.warnings(),
            pillow_is_simd=pillow.is_simd,
            pillow_has_avx2=pillow_has_avx2(),
            decoder=describe_decoder("own"),
            self_test_problem=self_test_problem,
        )
    except ResourceError as error:
        return replace(libraries, problem=str(error))
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        return replace(libraries, problem=f"a library does not load ({reason}): install it again")
