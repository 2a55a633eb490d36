"""Endpoints to bind: which addresses are allowed, and which one each node process gets.

Node process k of a host binds tcp port base + k, and for ipc the base path with ``.k`` appended
where k > 0. Port 0 lets the system choose one for each node process.
"""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from feeder.errors import ConfigError, ResourceError
from feeder.process.path_text import printable
from feeder.wire.claim import CLAIM_SUFFIX

_PORT: Final = re.compile(r"[0-9]{1,5}")
_HOST: Final = re.compile(r"[0-9a-fA-F.:]+")
_HOST_NAME: Final = re.compile(r"(?=.*[a-zA-Z])[a-zA-Z0-9._-]{1,253}")
_PORT_MAX: Final = 65_535
_UNIX_PATH_BYTES_MAX: Final = 107  # sockaddr_un.sun_path without its final zero
_IPC_PATH_BYTES_MAX: Final = _UNIX_PATH_BYTES_MAX - 4 - len(CLAIM_SUFFIX)
"""Leaves room for .k of another node process and the suffix of its claim socket."""

_PROBE_DEADLINE_S: Final = 1.0
_NAMES: Final = {"localhost": "127.0.0.1", "*": "0.0.0.0"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ZeroMQ address of this machine."""

    transport: Literal["tcp", "ipc"]
    host: str = ""
    """Numeric address; empty for ipc."""
    port: int = 0
    path: str = ""
    """Path of the socket file; empty for tcp."""

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it."""
        return self.transport == "ipc" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.transport == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def for_node(self, number: int) -> "Endpoint":
        """What node process ``number`` binds where this is the first one's endpoint."""
        if number == 0:
            return self
        if self.transport == "ipc":
            return Endpoint("ipc", path=f"{self.path}.{number}")
        port = self.port + number if self.port else 0
        if port > _PORT_MAX:
            raise ConfigError(
                f"bind: node process {number} would need port {port}: choose a lower port"
            )
        return Endpoint("tcp", self.host, port)


def parse_endpoint(text: str) -> Endpoint:
    """Parse numeric tcp or ipc; anything else is a ConfigError."""
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    if not text.startswith("tcp://"):
        raise ConfigError(f"bind: {text!r} is neither tcp://127.0.0.1:PORT nor ipc:///PATH")
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ConfigError(f"bind: {text!r} has no port 0 .. {_PORT_MAX} at its end")
    bare = _NAMES.get(host, host.removeprefix("[").removesuffix("]"))
    if _HOST_NAME.fullmatch(bare):  # it may be that of a loopback address, or of another one later
        raise ConfigError(
            f"bind: {text!r} has a host name where an address belongs: write tcp://*:{port} for "
            "all addresses of this machine, or one of them (`hostname -I`)"
        )
    try:
        if not _HOST.fullmatch(bare):  # no scope, which may be any text
            raise ValueError
        ipaddress.ip_address(bare)
    except ValueError:
        raise ConfigError(
            f"bind: {text!r} names no address of this machine: write tcp://127.0.0.1:PORT, or "
            "tcp://*:PORT for all of its addresses"
        ) from None
    return Endpoint("tcp", bare, int(port))


class SocketFiles:
    """The socket files of a listener."""

    def __init__(self, mode: int) -> None:
        self._mode = mode
        self._status: dict[Path, os.stat_result] = {}

    @contextlib.contextmanager
    def create(self, path: Path) -> Iterator[None]:
        """Have the body create the file, in place of a dead daemon's.

        Raises as ``clear_stale_socket``. Sets the umask, so it applies to all threads: a chmod
        afterwards would leave a moment in which other users can connect.
        """
        clear_stale_socket(path)
        former = os.umask(0o777 & ~self._mode)
        try:
            yield
        finally:
            os.umask(former)
        self._status[path] = path.lstat()

    def remove(self) -> None:
        """Remove the files, as far as possible; call it before the listener closes.

        As long as it listens, no other daemon takes a path over. A later one's file could have the
        same inode number, and would be taken for this one's.
        """
        for path, status in self._status.items():
            with contextlib.suppress(OSError):  # its folder may be read-only by now
                # Else another daemon has taken the path over.
                if os.path.samestat(path.lstat(), status):
                    path.unlink()
        self._status.clear()


def clear_stale_socket(path: Path) -> None:
    """Remove the socket file of a dead daemon, if there is one.

    Raises ConfigError when the path is something else or its folder is missing, ResourceError when
    a daemon listens on it or the file cannot be examined or removed.
    """
    folder = path.parent
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir():
            return
        raise ConfigError(
            f"bind: ipc://{path}: there is no folder {folder}: create it first"
        ) from None
    except OSError as error:
        raise ResourceError(
            f"ipc://{path} cannot be bound: {error.strerror}: give the daemon's user access to "
            f"{folder}, or choose another path"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"bind: {path} exists and is not a socket: remove it or choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_DEADLINE_S)
        problem = probe.connect_ex(os.fspath(path))
    if problem == errno.EACCES:
        raise ResourceError(
            f"the socket file {path} is another user's: stop the daemon that created it and "
            "remove the file, or choose another path"
        )
    if problem not in (errno.ECONNREFUSED, errno.ENOENT):  # else its daemon is dead, or ended now
        raise ResourceError(
            f"ipc://{path} is in use by another process: stop it or choose another path"
        )
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"the socket file {path} of a dead daemon cannot be removed: {error.strerror}"
        ) from error


def _parse_ipc(text: str) -> Endpoint:
    path = text.removeprefix("ipc://")
    if not path.startswith("/") or "\0" in path:
        raise ConfigError(f"bind: {text!r} must give an absolute path: ipc:///run/feeder/socket")
    # libzmq takes UTF-8: else it and the system would mean different files.
    try:
        is_utf8 = os.fsencode(path) == path.encode()
    except UnicodeEncodeError:  # bytes that are not, or non-ASCII ones in a locale without
        is_utf8 = False
    if not is_utf8:
        raise ConfigError(
            f"bind: the path of {printable(text)} is not UTF-8 in this locale: use ASCII only"
        )
    if len(path.encode()) > _IPC_PATH_BYTES_MAX:
        raise ConfigError(
            f"bind: the path of {text!r} is longer than {_IPC_PATH_BYTES_MAX} bytes, the system's "
            "limit for sockets: choose a shorter one"
        )
    return Endpoint("ipc", path=path)
