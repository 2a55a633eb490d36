"""Admits clients over tcp: answers libzmq's ZAP requests (RFC 27) from the list of client keys.

libzmq sends a request for each connection, and the client waits in its handshake for the answer.
Without an answer no client is admitted, so everything here fails closed. The list is read again
when its file, or a file of its folder, has changed. A removed key opens no new connection; those
that it has stay open. Invariant: one thread uses this object, and no call waits.
"""

import logging
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from feeder.errors import ConfigError, ProtocolError
from feeder.metrics.counters import SocketCounters
from feeder.process.log_lines import KEPT, LogLimiter
from feeder.security.keys import find_public_key_files, read_public_keys
from feeder.wire.zap import (
    ACCEPTED,
    NO_LIST,
    UNKNOWN_KEY,
    Status,
    ZapRequest,
    format_answer,
    parse_request,
)

ENDPOINT: Final = "inproc://zeromq.zap.01"  # where libzmq looks for the handler

_CHECK_INTERVAL_S: Final = 1.0
"""A check takes a system call for each file, and clients without a key decide how often they
connect."""

_KEY_CHARS: Final = 8  # of one that is refused, in the log
_LOGGED_MAX: Final = 63
"""Keys with a remembered refusal; others share one line a minute."""

_log = logging.getLogger(__name__)


class KeyList:
    """The client keys of a file or folder, read again when it changes."""

    def __init__(self, path: Path, *, may_wait: bool = False) -> None:
        """Read the list; ConfigError if it cannot be read, unless ``may_wait`` for that."""
        self.path = path
        self._check_at_s = 0.0
        self._state: object = None
        self._names: dict[bytes, str] = {}
        self._problem = self._refresh()
        if self._problem and not may_wait:
            raise ConfigError(self._problem)

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, public_key: bytes, now_s: float) -> str | None:
        """The name of a listed key; None if it is not listed.

        A change of the list takes effect within a second. Raises ConfigError as long as the list
        cannot be read.
        """
        if now_s >= self._check_at_s:
            self._check_at_s = now_s + _CHECK_INTERVAL_S
            self._problem = self._refresh()
        if self._problem:
            raise ConfigError(self._problem)
        return self._names.get(public_key)

    def _refresh(self) -> str:
        """Read the list if it has changed; return why it cannot be read, or ""."""
        state = _file_states(self.path)
        if state is not None and state == self._state:
            return ""
        self._names, self._state = {}, None
        try:
            self._names = {key.raw: key.name for key in read_public_keys(self.path)}
        except ConfigError as error:
            return str(error)
        self._state = state  # only after a success: until then every check reads it again
        _log.info("%s was read: it lists %d clients", self.path, len(self._names))
        return ""


class ZapHandler:
    """Answers a context's requests; libzmq refuses all once its socket is closed."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: KeyList,
        counters: SocketCounters,
    ) -> None:
        """Bind the socket; requests wait until ``answer`` is called."""
        self._keys = keys
        self._counters = counters
        self._log_limit = LogLimiter(admitted_max=1, kinds_max=_LOGGED_MAX)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ENDPOINT)

    def answer(self, now_s: float) -> None:
        """Answer the next request, if one waits."""
        try:
            request = parse_request(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return
        except ProtocolError as error:
            self._refuse("malformed", "", str(error), now_s)
            return
        status, name = self._decide(request, now_s)
        self.socket.send_multipart(format_answer(request, status, name))

    def _decide(self, request: ZapRequest, now_s: float) -> tuple[Status, str]:
        try:
            name = self._keys.name_of(request.public_key, now_s)
        except ConfigError as error:
            self._refuse("no-list", "", f"no client is admitted: {error}", now_s)
            return NO_LIST, ""
        if name is not None:
            return ACCEPTED, name
        key = z85.encode(request.public_key).decode()[:_KEY_CHARS]
        line = (
            f"a client at {request.address} is refused: its public key {key}… is not in "
            f"{self._keys.path}"
        )
        self._refuse("unknown-key", key, line, now_s)
        return UNKNOWN_KEY, ""

    def _refuse(self, reason: str, key: str, line: str, now_s: float) -> None:
        """Count a refusal, and log it unless the same was logged within the last minute."""
        self._counters.clients_refused[reason] += 1
        # Anyone can generate any number of keys, to fill the log: further ones share one line.
        if self._log_limit.admit(f"{reason} {key}", now_s):
            _log.warning("%s", line, extra=KEPT)


def _file_states(path: Path) -> object:
    """A value that changes when a key file does; None if there is none."""
    try:
        files = [(file, file.stat()) for file in find_public_key_files(path)]
    except OSError:
        return None
    return [(file, status.st_ino, status.st_mtime_ns, status.st_size) for file, status in files]
