"""What the kernel shows of a process: what its main thread does, and its CPU time.

Only the main thread counts: other threads, such as those of libzmq, may run on in a process that
hangs. File systems of user space and networks may wait in an interruptible sleep; the kernel
function in which they wait tells them from others.

Source: proc(5), /proc/PID/task/TID/stat and /proc/PID/wchan.
"""

from pathlib import Path
from typing import Final

from feeder.host.process_load import read_process_load
from feeder.host.process_stat import parse_stat
from feeder.metrics.hangs import ProcessLook

_BYTES_MAX: Final = 4096
_PROC: Final = Path("/proc")

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


def look_at(pid: int, proc: Path = _PROC) -> ProcessLook | None:
    """Return what a process does now; None if it has ended and was reaped, or is not readable."""
    try:
        with (proc / f"{pid}/task/{pid}/stat").open("rb", buffering=0) as file:
            stat = parse_stat(file.read(_BYTES_MAX))
    except OSError:
        return None
    if stat is None:
        return None
    waits = stat.state == "sleeps" and _waits_for_storage(pid, proc)
    requested_bytes = read_process_load(pid, proc).requested_bytes
    return ProcessLook("storage" if waits else stat.state, stat.cpu_s, requested_bytes)


def _waits_for_storage(pid: int, proc: Path) -> bool:
    """Whether a process sleeps in a file system, as far as the kernel allows to see."""
    try:
        with (proc / f"{pid}/task/{pid}/wchan").open("rb", buffering=0) as file:
            return file.read(_BYTES_MAX).startswith(_STORAGE_WAITS)
    except OSError:
        return False
