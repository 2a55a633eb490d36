"""The addresses of this machine's network interfaces."""

import contextlib
import ipaddress
from typing import TypeAlias

import psutil

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_addresses() -> frozenset[Address]:
    """Return the addresses of all interfaces now; empty where the system does not list them."""
    found: set[Address] = set()
    with contextlib.suppress(OSError):
        for interface in psutil.net_if_addrs().values():
            for each in interface:
                with contextlib.suppress(ValueError):  # a hardware address
                    found.add(ipaddress.ip_address(each.address.partition("%")[0]))
    return frozenset(found)
