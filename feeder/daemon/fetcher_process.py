"""Starts the fetcher of a daemon, which fetches pieces of datasets in stores to this host's disk.

Node processes connect to a socket that the supervisor keeps listening, so that either side can be
replaced without the other. Its name is abstract: it is no file that could be left over. The fetcher
answers processes of its own user only.
"""

import secrets
import socket
import time
from typing import Final

from feeder.daemon.child_process import ChildProcess
from feeder.disk_cache.messages import FetcherBeat, FetcherConfig
from feeder.metrics.hangs import Policy, Watch

_BEATS: Final = Policy(look_s=5.0, silent_s=10.0, stopped_s=10.0, most_s=60.0)
"""They come twice a second; a slow disk may hold it up."""

_BACKLOG: Final = 64


class FetcherProcess(ChildProcess[FetcherConfig, FetcherBeat]):
    """The fetcher and, after crashes, its successors."""

    def __init__(self, config: FetcherConfig) -> None:
        """Listen; nothing is started yet."""
        super().__init__("the fetcher", "feeder.disk_cache", FetcherBeat, _BEATS)
        self._config = config
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.address = b"\0feeder-fetcher-" + secrets.token_hex(8).encode()
        """Where node processes connect."""
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)

    def start(self, _: int) -> None:
        """Start the process, and send it its configuration and the listening socket; OSError."""
        self.spawn()
        self.send(self._config, self._listener.fileno())

    def beat(self) -> None:
        """Record a message from it."""
        self.watch = Watch(_BEATS, time.monotonic())
