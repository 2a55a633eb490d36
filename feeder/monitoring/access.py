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


class TokenFile:
    """A file with a token, read for each scrape."""

    def __init__(self, path: Path) -> None:
        """ConfigError where it cannot be read, is open to others or has no token."""
        _read_token(path)
        self._path = path
        self._problem = ""

    def accepts(self, authorization: bytes) -> bool:
        """Whether an Authorization header has the token."""
        try:
            token, problem = _read_token(self._path), ""
        except ConfigError as error:
            token, problem = b"", str(error)
        if problem not in ("", self._problem):
            _log.warning("%s; scrapes are refused until then", problem)
        self._problem = problem
        scheme, _, credentials = authorization.partition(b" ")
        is_right = hmac.compare_digest(credentials.strip(), token)
        return bool(token) and scheme.lower() == b"bearer" and is_right


def _read_token(path: Path) -> bytes:
    try:
        data = read_private(path, _FILE_BYTES_MAX, _WHAT)
    except OSError as error:
        raise ConfigError(
            f"{_WHAT} {path} cannot be read: {error.strerror}; make one with "
            f"(umask 077; openssl rand -hex 32 > {path})"
        ) from None
    token = data.partition(b"\n")[0].strip()
    if len(token) < _TOKEN_CHARS_MIN or not token.isascii() or b" " in token:
        raise ConfigError(
            f"{_WHAT} {path}: its first line is not {_TOKEN_CHARS_MIN} or more ASCII characters "
            f"without spaces; make one with (umask 077; openssl rand -hex 32 > {path})"
        )
    return token
