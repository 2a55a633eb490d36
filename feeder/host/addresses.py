"""The addresses of this machine's network interfaces."""

import contextlib
import ipaddress
from typing import TypeAlias

import psutil

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_addresses() -> frozenset[Address]:
    """The addresses of all interfaces now; empty where the system does not list them."""
    addresses: set[Address] = set()
    with contextlib.suppress(OSError):
        for interface in psutil.net_if_addrs().values():
            for row in interface:
                with contextlib.suppress(ValueError):  # a hardware address
                    addresses.add(ipaddress.ip_address(row.address.partition("%")[0]))
    return frozenset(addresses)
