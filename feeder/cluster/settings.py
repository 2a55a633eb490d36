"""What ``feeder cluster`` runs with: Ray's settings, the requests to it, and what hosts bind."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from feeder.cluster.policy.plan import Launch, name_feeder
from feeder.errors import ConfigError, ResourceError
from feeder.installation import install_command
from feeder.node.endpoint import Endpoint, parse_endpoint

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
"""Read by ``ray start``, so it is set on every host; ``feeder cluster env`` prints it."""


def check_version(version: str) -> None:
    """Raise ResourceError for a version of Ray that is not supported."""
    if not _SUPPORTED.fullmatch(version):
        raise ResourceError(
            f"Ray {version} is installed, and feeder cluster is made for Ray 2.60: "
            f"{install_command('daemon', 'ray')}"
        )


def explain_missing() -> ResourceError:
    """The error for an environment without Ray."""
    return ResourceError(
        f"Ray is not installed in this environment: {install_command('daemon', 'ray')}"
    )


class Request(Struct, frozen=True, kw_only=True):
    """A command to the cluster; that of ``up`` is all that the controller needs, too."""

    do: Literal["up", "status", "scale", "down"]
    address: str
    """HOST:PORT of Ray's head; empty for the cluster of this machine."""
    namespace: str
    timeout_s: float
    feeders: int = 0
    """For up and scale; 0: one on every host."""
    config_toml: str = ""
    """The effective configuration of every feeder; empty for any, except for up."""

    # Only for up
    binds: tuple[str, ...] = ()
    is_insecure: bool = False
    secret_key: str = ""
    client_keys: str = ""
    resource: str = RESOURCE
    endpoints_file: str = ""
    """Empty for none."""
    lookup_port: int = LOOKUP_PORT
    """0 for no look-up."""


class Kept(Struct, frozen=True, kw_only=True):
    """What the controller keeps in Ray: it survives the controller, and with Redis the head."""

    wanted: int
    launches: tuple[Launch, ...] = ()


# --- What the feeder of each host binds, from the one configuration of all hosts -----------------
#
#     tcp://*:5555            tcp://ADDRESS:5555 on each host, where ADDRESS is Ray's address of it
#     tcp://127.0.0.1:5555    the same where all hosts have loopback addresses, as in a simulation
#     ipc:///run/feeder/node  as it is, for clients on the host


def check_binds(binds: Sequence[str], addresses: Sequence[str]) -> None:
    """Raise ConfigError where feeders on hosts with these addresses would not all be reachable."""
    over_tcp = [each for each in map(parse_endpoint, binds) if each.transport == "tcp"]
    if not over_tcp:
        raise ConfigError(
            f"bind: {binds[0]} is for clients on its own host: add tcp://*:PORT, which binds each "
            "host's address"
        )
    if all(map(_is_loopback, addresses)):
        return
    for endpoint in over_tcp:
        if endpoint.is_local:  # also for one host: others may join later
            raise ConfigError(
                f"bind: {endpoint} is loopback: other hosts cannot reach it, and the cluster's "
                "hosts have addresses of a network; write tcp://*:PORT, which binds each host's "
                "address, and set secret_key and client_keys"
            )
        if not _is_wildcard(endpoint) and len(addresses) > 1:
            raise ConfigError(
                f"bind: {endpoint} is the address of one host, and {len(addresses)} hosts offer "
                "feeders; write tcp://*:PORT, which binds each host's address"
            )


def serve_options(request: Request, launch: Launch) -> list[str]:
    """Further arguments of ``feeder serve`` for a launch: its slot's name, what its host binds."""
    options = ["--name", name_feeder(launch.slot)]
    for bind in binds_on(request.binds, launch.address):
        options += ["--bind", bind]
    return [*options, "--insecure"] if request.is_insecure else options


def binds_on(binds: Sequence[str], address: str) -> list[str]:
    """What the feeder on the host with ``address`` binds."""
    own = []
    for endpoint in map(parse_endpoint, binds):
        is_own = endpoint.transport == "tcp" and (
            _is_wildcard(endpoint) or (endpoint.is_local and _is_loopback(address))
        )
        own.append(str(Endpoint("tcp", address, endpoint.port) if is_own else endpoint))
    return [*dict.fromkeys(own)]


def _is_wildcard(endpoint: Endpoint) -> bool:
    return ipaddress.ip_address(endpoint.host).is_unspecified


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a host name
        return False
