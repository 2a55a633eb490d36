"""The environment in which Ray's processes are to be started, and the versions that are supported.

Ray reads these variables in ``ray start``, so they are set on every host; ``feeder cluster env``
prints them for a shell.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from feeder.errors import ResourceError
from feeder.installation import install_command

RESOURCE: Final = "feeder"
NAMESPACE: Final = "feeder"
CONTROLLER: Final = "feeder-controller"
LOOKUP_PORT: Final = 5554
"""One below the feeders' default."""

_SUPPORTED: Final = re.compile(r"2\.60\.\d+")

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        # A host that was killed answers no check, one that is stopped lets each time out: gone
        # after three, 0.9 s and 3.9 s. By default 15 s and 65 s.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "300",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        # How long hosts wait for a head that is away; by default they end, and all feeders with
        # them, after 60 s. A day: operators restart a head, and feeders do not need it.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
        # Ray gives its workers the niceness 15 and has the kernel's OOM killer take them first.
        # Feeders inherit both, and are what the host is for.
        "RAY_worker_niceness": "0",
        "RAY_worker_oom_score_adjustment": "0",
    }
)


def format_environment() -> str:
    """Return the lines that set ENVIRONMENT in a shell."""
    return "\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())


def check_version(version: str) -> None:
    """Raise ResourceError for a version of Ray that is not supported."""
    if not _SUPPORTED.fullmatch(version):
        raise ResourceError(
            f"Ray {version} is installed, and feeder cluster is made for Ray 2.60: "
            f"{install_command('daemon', 'ray')}"
        )


def explain_missing() -> ResourceError:
    """Return the error for an environment without Ray."""
    return ResourceError(
        f"Ray is not installed in this environment: {install_command('daemon', 'ray')}"
    )
