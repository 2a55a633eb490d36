"""What the feeder of each host binds, from the one configuration of all hosts. Pure.

tcp://*:5555            tcp://ADDRESS:5555 on each host, where ADDRESS is Ray's address of it
tcp://127.0.0.1:5555    the same where all hosts have loopback addresses, as in a simulation
ipc:///run/feeder/node  as it is, for clients on the host
"""

import ipaddress
from collections.abc import Sequence

from feeder.errors import ConfigError
from feeder.node.endpoint import Endpoint, parse_endpoint


def check_binds(binds: Sequence[str], addresses: Sequence[str]) -> None:
    """Raise ConfigError where feeders on hosts with these addresses would not all be reachable."""
    endpoints = [parse_endpoint(text) for text in binds]
    over_tcp = [endpoint for endpoint in endpoints if endpoint.transport == "tcp"]
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


def binds_on(binds: Sequence[str], address: str) -> tuple[str, ...]:
    """Return what the feeder binds on the host with ``address``."""
    found = []
    for text in binds:
        endpoint = parse_endpoint(text)
        replaced = endpoint.transport == "tcp" and (
            _is_wildcard(endpoint) or (endpoint.is_local and _is_loopback(address))
        )
        found.append(str(Endpoint("tcp", address, endpoint.port, "") if replaced else endpoint))
    return tuple(dict.fromkeys(found))


def _is_wildcard(endpoint: Endpoint) -> bool:
    return ipaddress.ip_address(endpoint.host).is_unspecified


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
