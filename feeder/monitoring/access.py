"""Where the metrics are served, and the token that a scraper must send.

An address is numeric with a port: ``127.0.0.1:9464``, ``[::1]:9464``, ``*:9464``. The token is the
first line of a file that others cannot read (``read_private``), and may change; while the file
cannot be read or is open to others, every request is refused.
"""

import hmac
import ipaddress
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError
from feeder.process.regular_file import read_private

_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_NAMES: Final = {"localhost": "127.0.0.1", "*": "0.0.0.0"}
_FILE_BYTES_MAX: Final = 4096
_TOKEN_CHARS_MIN: Final = 16
_WHAT: Final = "the metrics token"

_log = logging.getLogger(__name__)


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
    """The address that ``text`` names; ConfigError unless it is numeric, with a port."""
    host, _, port = text.rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    bare = _NAMES.get(host, host[1:-1] if is_v6 else host)
    try:
        if ipaddress.ip_address(bare).version != (6 if is_v6 else 4) or "%" in bare:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"metrics: {text!r} is not a numeric address with a port: write 127.0.0.1:9464, "
            '[::1]:9464, or "" for none'
        ) from None
    if not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ConfigError(f"metrics: {text!r} has no port 0 .. {_PORT_MAX} at its end")
    return Address(bare, int(port))


def is_authorized(authorization: bytes, path: Path) -> bool:
    """Whether an Authorization header has the token of a file, which is read for each scrape."""
    try:
        token = read_token(path)
    except ConfigError as error:
        _log.warning("%s; scrapes are refused until then", error)
        return False
    scheme, _, credentials = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(credentials.strip(), token)


def read_token(path: Path) -> bytes:
    """ConfigError where the file cannot be read, is open to others or has no token."""
    try:
        token = read_private(path, _FILE_BYTES_MAX, _WHAT).partition(b"\n")[0].strip()
    except OSError as error:
        problem = f" cannot be read: {error.strerror}"
    else:
        if len(token) >= _TOKEN_CHARS_MIN and token.isascii() and b" " not in token:
            return token
        problem = (
            f": its first line is not {_TOKEN_CHARS_MIN} or more ASCII characters without spaces"
        )
    raise ConfigError(
        f"{_WHAT} {path}{problem}; make one with (umask 077; openssl rand -hex 32 > {path})"
    )
