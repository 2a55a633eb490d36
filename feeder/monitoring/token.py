"""The token that a scraper must send, from a file that others cannot read (``read_private``).

The file's first line is the token. The file is read again when it has changed; while it cannot be
read or is open to others, every request is refused.
"""

import hmac
import logging
import os
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError
from feeder.process.regular_file import read_private

_FILE_BYTES_MAX: Final = 4096
_TOKEN_CHARS_MIN: Final = 16
_WHAT: Final = "the metrics token"

_log = logging.getLogger(__name__)


class TokenFile:
    """A file with a token."""

    __slots__ = ("_path", "_stamp", "_token")

    def __init__(self, path: Path) -> None:
        """Read it; ConfigError where it cannot be read, is open to others or has no token."""
        self._path = path
        self._stamp = self._status()
        self._token = _read_token(path)

    def accepts(self, authorization: bytes) -> bool:
        """Return whether an Authorization header has the token."""
        self._refresh()
        scheme, _, given = authorization.partition(b" ")
        if not self._token or scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given.strip(), self._token)

    def _refresh(self) -> None:
        stamp = self._status()
        if stamp == self._stamp:
            return
        self._stamp, self._token = stamp, b""
        try:
            self._token = _read_token(self._path)
        except ConfigError as error:
            _log.warning("%s; scrapes are refused until then", error)

    def _status(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )


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
