"""What to do where machine, container or unit lack something: the very lines. Pure text.

Slots are anonymous memory (memfd), so the size of /dev/shm, which is the usual culprit elsewhere,
has no part in this; the lines say so, because it is what people try first.
"""

import errno
from typing import Final

_NOT_SHM: Final = "/dev/shm is not used, its size does not matter"

NO_C_PART: Final = (
    "the part of the daemon that is in C was not built in this environment: install a C compiler "
    "and the headers of libjpeg-turbo (Debian: gcc libjpeg-dev libturbojpeg0-dev), then "
    "feeder[daemon] again (`make setup` does both)"
)

PASSING: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Numbers of errors that pass once the machine, container or unit has more to give."""


def explain_start(what: str, error: OSError) -> str:
    """Return in one line why a process of ours cannot be started, and what to do."""
    if error.errno in PASSING:
        return (
            f"{what} cannot be started: {error.strerror}: allow the daemon more processes, files "
            "or memory"
        )
    return f"{what} cannot be started: {error}: is the installation whole, and open to this user?"


def more_files() -> str:
    """Return how to give the daemon more open files."""
    return (
        "raise the limit of open files (systemd `LimitNOFILE=65536`, `docker run --ulimit "
        "nofile=65536:65536`, or `ulimit -n`)"
    )


def more_memory(more_bytes: int) -> str:
    """Return how to give the daemon ``more_bytes`` beyond what its cgroup or machine has."""
    megabytes = -(-more_bytes // 1_000_000)
    return (
        f"allow it {megabytes:,} MB more with `docker run --memory=…`, Kubernetes "
        f"`resources: {{limits: {{memory: …}}}}` or systemd `MemoryMax=…` ({_NOT_SHM})"
    )


def lift_limit(error_number: int | None, more_bytes: int) -> str:
    """Return what lifts the limit that creating slot memory has run into."""
    if error_number in (errno.EMFILE, errno.ENFILE):
        return (
            "allow it more files with `docker run --ulimit nofile=65536:65536` or systemd "
            "`LimitNOFILE=65536`; under Kubernetes in the container runtime's own unit"
        )
    if error_number == errno.EPERM:
        return "allow it memfd_create, which its seccomp profile forbids (Docker's own allows it)"
    return more_memory(more_bytes)
