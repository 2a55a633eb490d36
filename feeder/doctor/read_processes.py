"""Finds Feeder's processes in /proc: daemons, and how much of their memory is swapped out."""

import re

from feeder.doctor.kernel_files import KernelFiles, to_bytes

_PROCESSES_MAX = 20_000
_DAEMON = re.compile(r"(^|[/ ])feeder serve( |$)")
_FEEDER = re.compile(r"(^|[/ ])feeder serve( |$)| -m feeder\.(node|worker)( |$)")


def read_processes(files: KernelFiles) -> tuple[tuple[int, ...], int]:
    """Return the numbers of the daemons, and the swapped bytes of all of Feeder's processes."""
    daemons: list[int] = []
    swapped = 0
    numbers = [name for name in files.entries("proc") if name.isascii() and name.isdigit()]
    for number in numbers[:_PROCESSES_MAX]:
        # Each argument ends with a zero byte.
        command = files.text(f"proc/{number}/cmdline", 4096).replace("\0", " ")
        if _FEEDER.search(command):
            swapped += to_bytes(files.fields(f"proc/{number}/status").get("VmSwap", "")) or 0
        if _DAEMON.search(command):
            daemons.append(int(number))
    return tuple(sorted(daemons)), swapped
