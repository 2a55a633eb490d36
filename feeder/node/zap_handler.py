"""Who may come in over tcp: answers libzmq's ZAP requests from the list of client keys.

The handler is a socket within the node process, polled by its loop like any other: libzmq asks once
for each connection, and a client waits in its handshake until it is answered. A request that is not
answered is a client that is not let in, so everything here fails closed. The list is read again
when the file, or a file of the folder, has changed, which is looked at once a second at most; a key
that was taken out opens no new connection then, and keeps what it has open until that ends.

Invariant: one thread uses this object, and no call waits.
"""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from feeder.errors import ConfigError, ProtocolError
from feeder.metrics import SocketCounters
from feeder.security.keys import find_public_key_files, read_public_keys
from feeder.wire.zap import NO_LIST, UNKNOWN_KEY, WELCOME, Status, format_answer, parse_request

ENDPOINT: Final = "inproc://zeromq.zap.01"  # where libzmq looks for the handler

_REQUESTS_A_TURN: Final = 64
_LOOK_PAUSE_S: Final = 1.0
"""A look takes a system call a file; strangers decide how often somebody connects."""

_SHOWN_CHARS: Final = 8
_LOG_PAUSE_S: Final = 60.0
_LOGGED_MAX: Final = 64
"""Keys whose last refusal is remembered; a stranger can make as many as it likes."""

FileStates = tuple[tuple[str, int, int, int], ...]

_log = logging.getLogger(__name__)


class KeyList:
    """The client keys of a file or folder, as they are now."""

    def __init__(self, path: Path, *, may_wait: bool = False) -> None:
        """Read the list; ConfigError where it is not as it should be, unless it ``may_wait``."""
        self.path = path
        self._look_at_s = 0.0
        self._state: FileStates | None = None
        self._names: dict[bytes, str] = {}
        self._problem = self._look()
        if self._problem and not may_wait:
            raise ConfigError(self._problem)

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, public_key: bytes, now_s: float) -> str | None:
        """Return whose key it is, None where it is nobody's, as the list was a second ago or later.

        Raises ConfigError as long as the list cannot be read.
        """
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_PAUSE_S
            self._problem = self._look()
        if self._problem:
            raise ConfigError(self._problem)
        return self._names.get(public_key)

    def _look(self) -> str:
        """Read the list if it has changed; return what is wrong with it, "" if nothing is."""
        state = _file_states(self.path)
        if state is not None and state == self._state:
            return ""
        self._names, self._state = {}, None
        try:
            self._names = _read_names(self.path)
        except ConfigError as error:
            return str(error)
        self._state = state  # only once it could be read, so that it is tried again until then
        _log.info("%s was read: %d clients may come in", self.path, len(self._names))
        return ""


class ZapHandler:
    """Answers on a context's behalf; ``close()`` is idempotent, and nobody comes in after it."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: KeyList,
        counters: SocketCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to take requests, which wait until ``answer`` is called."""
        self._keys = keys
        self._counters = counters
        self._clock = clock
        self._logged: OrderedDict[str, float] = OrderedDict()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ENDPOINT)

    def answer(self) -> None:
        """Answer the requests that wait, or as many as there is time for in a turn."""
        for _ in range(_REQUESTS_A_TURN):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                request = parse_request(frames)
            except ProtocolError as error:
                self._refuse("malformed", "", str(error))
                continue
            status, name = self._decide(request.public_key, request.address)
            self.socket.send_multipart(format_answer(request, status, name))

    def close(self) -> None:
        """Take no requests any more."""
        self.socket.close(0)

    def _decide(self, public_key: bytes, address: str) -> tuple[Status, str]:
        try:
            name = self._keys.name_of(public_key, self._clock())
        except ConfigError as error:
            self._refuse("no-list", "", f"nobody is let in: {error}")
            return NO_LIST, ""
        if name is None:
            shown = z85.encode(public_key).decode()[:_SHOWN_CHARS]
            self._refuse(
                "unknown-key",
                shown,
                f"a client at {address} is refused: its public key {shown}… is not in "
                f"{self._keys.path}",
            )
            return UNKNOWN_KEY, ""
        return WELCOME, name

    def _refuse(self, reason: str, key: str, line: str) -> None:
        """Count a refusal, and log it unless the same was logged within the last minute."""
        self._counters.refuse_client(reason)
        now_s, what = self._clock(), f"{reason} {key}"
        if now_s - self._logged.get(what, float("-inf")) < _LOG_PAUSE_S:
            return
        if len(self._logged) >= _LOGGED_MAX:
            oldest_s = self._logged[next(iter(self._logged))]
            if now_s - oldest_s < _LOG_PAUSE_S:
                return  # somebody makes keys to fill the log: they are counted
            self._logged.popitem(last=False)
        self._logged[what] = now_s
        self._logged.move_to_end(what)
        _log.warning("%s", line)


def _read_names(path: Path) -> dict[bytes, str]:
    return {key.raw: key.name for key in read_public_keys(path)}


def _file_states(path: Path) -> FileStates | None:
    """Return what changes when a key file does; None where there is none."""
    try:
        return tuple(
            (os.fspath(each), status.st_ino, status.st_mtime_ns, status.st_size)
            for each in find_public_key_files(path)
            for status in (each.stat(),)
        )
    except OSError:
        return None
