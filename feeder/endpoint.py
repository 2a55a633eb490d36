"""Endpoints to bind: which addresses are allowed, and which one each node process gets.

Node process k of a host binds tcp port base + k, and for ipc the base path with ``.k`` appended
where k > 0. Port 0 lets the system choose one for each node process.
"""

import errno
import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from feeder.errors import ConfigError, ResourceError
from feeder.slot_claim import DOOR_SUFFIX

_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_UNIX_PATH_BYTES_MAX: Final = 107  # sockaddr_un.sun_path without its final zero
_IPC_PATH_BYTES_MAX: Final = _UNIX_PATH_BYTES_MAX - 4 - len(DOOR_SUFFIX)
"""Leaves room for .k of another node process, and for where its slots are claimed."""

_PROBE_DEADLINE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ZeroMQ address of this machine."""

    transport: Literal["tcp", "ipc"]
    host: str
    """Loopback address; empty for ipc."""
    port: int
    path: str
    """Path of the socket file; empty for tcp."""

    def __str__(self) -> str:
        if self.transport == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def for_node(self, number: int) -> "Endpoint":
        """Return what node process ``number`` binds where this is the first one's endpoint."""
        if number == 0:
            return self
        if self.transport == "ipc":
            return Endpoint("ipc", "", 0, f"{self.path}.{number}")
        port = self.port + number if self.port else 0
        if port > _PORT_MAX:
            raise ConfigError(
                f"bind: node process {number} would need port {port}: choose a lower port"
            )
        return Endpoint("tcp", self.host, port, "")


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint that ``text`` names; ConfigError unless it is loopback tcp or ipc."""
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    if not text.startswith("tcp://"):
        raise ConfigError(f"bind: {text!r} is neither tcp://127.0.0.1:PORT nor ipc:///PATH")
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ConfigError(f"bind: {text!r} has no port 0 .. {_PORT_MAX} at its end")
    bare = host.removeprefix("[").removesuffix("]")
    if bare == "localhost":
        bare = "127.0.0.1"
    if not _is_loopback(bare, text):
        raise ConfigError(
            f"bind: {text} would be open to the network, and nothing would yet keep strangers out "
            "or the data secret (encryption with CURVE keys will come): bind tcp://127.0.0.1:PORT "
            "or ipc:///PATH, and tunnel (ssh -L) to reach it from elsewhere"
        )
    return Endpoint("tcp", bare, int(port), "")


def clear_stale_socket(path: Path) -> None:
    """Remove the socket file of a daemon that is gone; there may be none.

    ConfigError when something else lies there or its folder is missing, ResourceError when a daemon
    listens on it or the file cannot be removed.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"bind: ipc://{path}: there is no folder {path.parent}: create it first")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"bind: {path} exists and is no socket: remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_DEADLINE_S)
        problem = probe.connect_ex(os.fspath(path))
    if problem == errno.ENOENT:
        return
    if problem != errno.ECONNREFUSED:
        raise ResourceError(
            f"ipc://{path} is in use by another process: stop that one or choose another path"
        )
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"the socket file {path} of a daemon that is gone cannot be removed: {error.strerror}"
        ) from error


def _parse_ipc(text: str) -> Endpoint:
    path = text.removeprefix("ipc://")
    if not path.startswith("/") or "\0" in path or not _is_file_name(path):
        raise ConfigError(f"bind: {text!r} must give an absolute path: ipc:///run/feeder/socket")
    if len(path.encode("utf-8", "surrogatepass")) > _IPC_PATH_BYTES_MAX:
        raise ConfigError(
            f"bind: the path of {text!r} is longer than {_IPC_PATH_BYTES_MAX} bytes, which is what "
            "the system allows for sockets: choose a shorter one"
        )
    return Endpoint("ipc", "", 0, path)


def _is_file_name(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # a lone half of a surrogate pair
        return False
    return True


def _is_loopback(host: str, text: str) -> bool:
    if host == "*":
        return False
    try:
        if "%" in host:  # IPv6 with a scope, which may be any text; loopback needs none
            raise ValueError
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ConfigError(
            f"bind: {text!r} names no address of this machine: write tcp://127.0.0.1:PORT"
        ) from None
