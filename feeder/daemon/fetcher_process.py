"""Starts the fetcher of a daemon, which fetches pieces of datasets in stores to this host's disk.

Node processes connect to a socket that the supervisor keeps listening, so that either side can be
replaced without the other. Its name is abstract: it is no file that could be left over. The fetcher
answers processes of its own user only.
"""

import os
import secrets
import socket
import time
from pathlib import Path
from typing import Final

from feeder.client.endpoints import Directory
from feeder.daemon.child_process import ChildProcess
from feeder.daemon.config import Config
from feeder.disk_cache.cached import is_cached
from feeder.disk_cache.messages import (
    FetcherConfig,
    FetcherToSupervisor,
    SupervisorToFetcher,
)
from feeder.metrics.hangs import Policy, Watch
from feeder.security.keys import ClientKeys, read_secret_key

_BEATS: Final = Policy(look_s=5.0, silent_s=10.0, stopped_s=10.0, most_s=60.0)
"""They come twice a second; a slow disk may hold it up."""

_BACKLOG: Final = 64


def plan_fetcher(config: Config) -> "FetcherProcess | None":
    """The fetcher for the cached datasets that are served, if there are any.

    Raises ConfigError for a list of peers, or keys for them, that cannot be read.
    """
    folders = {name: Path(text) for name, text in config.data.items()}
    cached = {name: os.fsencode(path) for name, path in folders.items() if is_cached(path)}
    if not cached:
        return None
    budget, serve = config.cache.disk_bytes, config.serve
    server_key = ""
    if serve.peers:
        keys = None
        if serve.peer_key:
            server = read_secret_key(Path(serve.secret_key)).public()
            keys = ClientKeys(server, read_secret_key(Path(serve.peer_key)))
            server_key = server.text
        Directory(serve.peers, keys).read()
    return FetcherProcess(
        FetcherConfig(
            datasets=cached,
            disk_path=os.fsencode(next(iter(folders[name] for name in cached)).parent.parent),
            disk_bytes=0 if budget == "auto" else budget,
            peers=serve.peers,
            name=serve.name,
            server_key=server_key,
            peer_key=os.fsencode(serve.peer_key),
            log_level=config.log_level,
            log_format=config.log_format,
        )
    )


class FetcherProcess(ChildProcess[SupervisorToFetcher, FetcherToSupervisor]):
    """The fetcher and, after crashes, its successors."""

    def __init__(self, config: FetcherConfig) -> None:
        """Listen; nothing is started yet."""
        super().__init__("the fetcher", "feeder.disk_cache", FetcherToSupervisor, _BEATS)
        self._config = config
        self._has_served = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.address = b"\0feeder-fetcher-" + secrets.token_hex(8).encode()
        """Where node processes connect."""
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)

    def start(self, _: int) -> None:
        """Start the process, and send it its configuration and the listening socket; OSError."""
        self.spawn()
        self.send(self._config, self._listener.fileno())

    @property
    def has_served(self) -> bool:
        return self._has_served

    def beat(self) -> None:
        """Record a message from it."""
        self._has_served = True
        self.watch = Watch(_BEATS, time.monotonic())
