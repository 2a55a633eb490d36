"""What to do where the machine, container or unit lacks something, as lines of text. Pure.

Slots are anonymous memory (memfd). The lines mention that the size of /dev/shm does not matter,
because it is the usual cause elsewhere and people try it first.
"""

import errno
from typing import Final

_NOT_SHM: Final = "/dev/shm is not used: its size does not matter"

TRANSIENT_ERRORS: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errnos that a retry can outlast: the machine, container or unit may have more later."""


def explain_start(what: str, error: OSError) -> str:
    """Return in one line why a process of Feeder cannot be started, and what to do."""
    if error.errno in TRANSIENT_ERRORS:
        return (
            f"{what} cannot be started: {error.strerror}: allow the daemon more processes, files "
            "or memory"
        )
    return (
        f"{what} cannot be started: {error}: check that the installation is complete and that "
        "this user can read it"
    )


def more_files() -> str:
    """Return how to give the daemon more open files."""
    return (
        "raise the limit of open files (systemd `LimitNOFILE=65536`, `docker run --ulimit "
        "nofile=65536:65536`, or `ulimit -n`; under Kubernetes in the container runtime's unit)"
    )


def more_memory(more_bytes: int) -> str:
    """Return how to give the daemon ``more_bytes`` more memory."""
    megabytes = -(-more_bytes // 1_000_000)
    return (
        f"allow it {megabytes:,} MB more with `docker run --memory=…`, Kubernetes "
        f"`resources: {{limits: {{memory: …}}}}` or systemd `MemoryMax=…` ({_NOT_SHM})"
    )


def lift_limit(error_number: int | None, more_bytes: int) -> str:
    """Return how to raise the limit that made creating slot memory fail."""
    if error_number in (errno.EMFILE, errno.ENFILE):
        return more_files()
    if error_number == errno.EPERM:
        return "allow memfd_create in its seccomp profile (Docker's default profile allows it)"
    return more_memory(more_bytes)
