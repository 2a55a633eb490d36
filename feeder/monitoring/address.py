"""The address of the metrics, such as ``127.0.0.1:9464``, ``[::1]:9464``, ``*:9464``."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError

_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_NAMES: Final = {"localhost": "127.0.0.1", "*": "0.0.0.0"}


@dataclass(frozen=True, slots=True)
class Address:
    """A numeric address and a tcp port; port 0 lets the system choose one."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that ``text`` names; ConfigError unless it is numeric, with a port."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bare = _NAMES.get(host, bare)
    try:
        is_v6 = ipaddress.ip_address(bare).version == 6
        is_valid = is_v6 == (bare != host and host not in _NAMES) and "%" not in bare
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"metrics: {text!r} is not a numeric address with a port: write 127.0.0.1:9464, "
            '[::1]:9464, or "" for none'
        )
    if not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ConfigError(f"metrics: {text!r} has no port 0 .. {_PORT_MAX} at its end")
    return Address(bare, int(port))
