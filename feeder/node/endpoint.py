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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from feeder.errors import ConfigError, ResourceError
from feeder.process.path_text import printable
from feeder.wire.claim import CLAIM_SUFFIX

_PORT: Final = re.compile(r"[0-9]{1,5}")
_HOST: Final = re.compile(r"[0-9a-fA-F.:]+")
_PORT_MAX: Final = 65_535
_UNIX_PATH_BYTES_MAX: Final = 107  # sockaddr_un.sun_path without its final zero
_RESTING_SUFFIX: Final = ".resting"
_IPC_PATH_BYTES_MAX: Final = _UNIX_PATH_BYTES_MAX - 4 - max(len(CLAIM_SUFFIX), len(_RESTING_SUFFIX))
"""Leaves room for .k of another node process, and for where its slots are claimed or it rests."""

_PROBE_DEADLINE_S: Final = 1.0
_NAMES: Final = {"localhost": "127.0.0.1", "*": "0.0.0.0"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ZeroMQ address of this machine."""

    transport: Literal["tcp", "ipc"]
    host: str
    """Numeric address; empty for ipc."""
    port: int
    path: str
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
    """Return the endpoint that ``text`` names; ConfigError unless it is numeric tcp or ipc.

    Whether others may reach it is ``check_exposure``'s to say.
    """
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    if not text.startswith("tcp://"):
        raise ConfigError(f"bind: {text!r} is neither tcp://127.0.0.1:PORT nor ipc:///PATH")
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ConfigError(f"bind: {text!r} has no port 0 .. {_PORT_MAX} at its end")
    bare = _NAMES.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        if not _HOST.fullmatch(bare):  # no scope, which may be any text
            raise ValueError
        ipaddress.ip_address(bare)
    except ValueError:
        raise ConfigError(
            f"bind: {text!r} names no address of this machine: write tcp://127.0.0.1:PORT, or "
            "tcp://*:PORT for all of its addresses"
        ) from None
    return Endpoint("tcp", bare, int(port), "")


def check_exposure(endpoints: Iterable[Endpoint], *, has_keys: bool, is_insecure: bool) -> None:
    """Raise ConfigError where strangers could reach an endpoint and nothing keeps them out."""
    for endpoint in endpoints:
        if not (endpoint.is_local or has_keys or is_insecure):
            raise ConfigError(
                f"bind: {endpoint} would be open to the network: make CURVE keys with `feeder "
                "keygen` and set secret_key and client_keys (see systemd/feeder.toml), bind "
                "tcp://127.0.0.1:PORT or ipc:///PATH, or type --insecure to let everybody in"
            )


@contextlib.contextmanager
def created_with_mode(mode: int) -> Iterator[None]:
    """Have socket files that are bound within this context be created with ``mode``.

    So there is no moment at which more people could connect than later. For the whole process.
    """
    former = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(former)


def resting_path(path: Path) -> Path:
    """Return the name that a socket file has while its listener rests (see ``AcceptPause``)."""
    return path.with_name(path.name + _RESTING_SUFFIX)


def identify_file(path: Path) -> tuple[int, int]:
    """Return what tells a file from another one that takes its name over later."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def _is_folder(path: Path) -> bool:
    """Tell whether a folder is there; OSError where that is not to be known."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def clear_stale_socket(path: Path) -> None:
    """Remove the socket file of a daemon that is gone; there may be none.

    ConfigError when something else lies there or its folder is missing, ResourceError when a daemon
    listens on it or the file cannot be looked at or removed.
    """
    folder = path.parent
    try:
        if not _is_folder(folder):
            raise ConfigError(f"bind: ipc://{path}: there is no folder {folder}: create it first")
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResourceError(
            f"ipc://{path} cannot be bound: {error.strerror}: let the daemon's user into {folder}, "
            "or choose another path"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"bind: {path} exists and is no socket: remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_DEADLINE_S)
        problem = probe.connect_ex(os.fspath(path))
    if problem == errno.ENOENT:
        return
    if problem == errno.EACCES:
        raise ResourceError(
            f"the socket file {path} is another user's: stop the daemon that made it and remove "
            "the file, or choose another path"
        )
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
    if path.startswith("/") and "\0" not in path and not _is_file_name(path):
        raise ConfigError(
            f"bind: the path of {printable(text)} is no UTF-8 in this locale: choose one of ASCII"
        )
    if not path.startswith("/") or "\0" in path:
        raise ConfigError(f"bind: {text!r} must give an absolute path: ipc:///run/feeder/socket")
    if len(path.encode("utf-8", "surrogatepass")) > _IPC_PATH_BYTES_MAX:
        raise ConfigError(
            f"bind: the path of {text!r} is longer than {_IPC_PATH_BYTES_MAX} bytes, which is what "
            "the system allows for sockets: choose a shorter one"
        )
    return Endpoint("ipc", "", 0, path)


def _is_file_name(path: str) -> bool:
    """Return whether libzmq, which is given UTF-8, and the system mean the same file by ``path``.

    They do not where ``path`` has bytes that are no UTF-8, or other than ASCII in a locale that is
    not of UTF-8.
    """
    try:
        return os.fsencode(path) == path.encode()
    except UnicodeEncodeError:
        return False
