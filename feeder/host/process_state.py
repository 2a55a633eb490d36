"""What the kernel shows of a process: what its main thread does, and its CPU time.

Only the main thread counts: other threads, such as those of libzmq, may run on in a process that
hangs. File systems of user space and networks may wait in an interruptible sleep; the kernel
function in which they wait tells them from others.

Source: proc(5), /proc/PID/task/TID/stat and /proc/PID/wchan.
"""

import os
from pathlib import Path
from typing import Final

from feeder.metrics.process_looks import KernelState, ProcessLook

_BYTES_MAX: Final = 4096
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")

_STATES: Final[dict[bytes, KernelState]] = {
    b"R": "runs",
    b"S": "sleeps",
    b"I": "sleeps",
    b"D": "storage",
    b"T": "stopped",
    b"t": "traced",
    b"Z": "ended",
    b"X": "ended",
    b"x": "ended",
}
_STORAGE_WAITS: Final = (
    b"request_wait_answer",  # FUSE, virtiofs
    b"fuse_",
    b"rpc_",  # NFS
    b"nfs",
    b"wait_for_response",  # CIFS
    b"cifs_",
    b"smb2_",
    b"ceph_",
    b"p9_",  # 9p
    b"folio_wait",
    b"io_schedule",
)
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12  # after the name, which may contain anything


def look_at(pid: int, proc: Path = _PROC) -> ProcessLook | None:
    """Return what a process does now; None if it has ended and was reaped, or is not readable."""
    try:
        with (proc / f"{pid}/task/{pid}/stat").open("rb", buffering=0) as file:
            look = parse_stat(file.read(_BYTES_MAX))
        if look is not None and look.state == "sleeps" and _waits_for_storage(pid, proc):
            return ProcessLook("storage", look.cpu_s)
    except OSError:
        return None
    return look


def _waits_for_storage(pid: int, proc: Path) -> bool:
    """Whether a process sleeps in a file system, as far as the kernel allows to see."""
    try:
        with (proc / f"{pid}/task/{pid}/wchan").open("rb", buffering=0) as file:
            return file.read(_BYTES_MAX).startswith(_STORAGE_WAITS)
    except OSError:
        return False


def parse_stat(stat: bytes) -> ProcessLook | None:
    """Return the state and the CPU time of a line of /proc; None if it has another form."""
    words = stat.rpartition(b")")[2].split()
    if len(words) <= _SYSTEM_TICKS or words[_STATE] not in _STATES:
        return None
    ticks = words[_USER_TICKS], words[_SYSTEM_TICKS]
    if not all(word.isdigit() and len(word) <= 18 for word in ticks):
        return None
    return ProcessLook(_STATES[words[_STATE]], sum(map(int, ticks)) / _TICKS_A_S)
