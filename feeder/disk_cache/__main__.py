"""The fetcher's process: a loop over the supervisor's channel and node processes' connections.

    python -m feeder.disk_cache CHANNEL_FD PARENT_PID

Started by the supervisor. Node processes connect whenever they start, so that either can be
replaced alone. Transfers run in threads (``fetcher``); this loop waits for none of them.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from feeder.disk_cache.fetcher import Fetcher
from feeder.disk_cache.folder import DiskCache
from feeder.disk_cache.messages import (
    CannotFetch,
    FetcherBeat,
    FetcherConfig,
    FetcherToNode,
    FetcherToSupervisor,
    NodeToFetcher,
    Serving,
    SupervisorToFetcher,
)
from feeder.errors import FeederError, ProtocolError
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.child import die_with_parent
from feeder.process.log_lines import start_logging
from feeder.process.shortage import explain_shortage, raise_file_limit
from feeder.security.keys import ClientKeys, PublicKey, read_secret_key

BEAT_S: Final = 0.5
NICE: Final = 10
"""Where CPUs are scarce, workers come first: while they wait for data, there is time to fetch."""
_MESSAGES_A_TURN: Final = 256
"""Of one connection; the others get their turn, too."""

_UCRED: Final = struct.Struct("3i")  # struct ucred: the process, its user and group

_log = logging.getLogger(__name__)

_Control = Channel[FetcherToSupervisor, SupervisorToFetcher]
_Connection = Channel[FetcherToNode, NodeToFetcher]


class _Loop:
    """The connections of a fetcher, each with its descriptor as number."""

    def __init__(self, control: _Control, listener: socket.socket, fetcher: Fetcher) -> None:
        self._control = control
        self._listener = listener
        self._fetcher = fetcher
        self._connections: dict[int, _Connection] = {}
        self._poll = select.poll()
        for descriptor in (control.fileno(), listener.fileno(), fetcher.wake_fd):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> None:
        """Run until the supervisor ends: ChannelClosedError."""
        beat_s = 0.0
        while True:
            for number, answer in self._fetcher.run():
                self._send(number, answer)
            now_s = time.monotonic()
            if now_s >= beat_s:
                beat_s = now_s + BEAT_S
                with contextlib.suppress(ChannelFullError):
                    self._control.send(FetcherBeat(self._fetcher.record))
            wait_s = min(beat_s, self._fetcher.deadline_s) - time.monotonic()
            for descriptor, _ in self._poll.poll(max(0, int(wait_s * 1000) + 1)):
                if descriptor == self._control.fileno():
                    self._control.receive()  # nothing follows the configuration but its end
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._connections:
                    self._read(descriptor)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            connection = self._listener.accept()[0]
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            if _UCRED.unpack(credentials)[1] != os.geteuid():
                # Every user of the host can connect: an abstract name has no permissions.
                _log.warning("refused a connection of another user", extra={"kind": "protocol"})
                connection.close()
                return
            connection.settimeout(0)
            channel: _Connection = Channel(connection, NodeToFetcher)
            self._connections[connection.fileno()] = channel
            self._poll.register(connection.fileno(), select.POLLIN)
            self._send(connection.fileno(), Serving())

    def _read(self, number: int) -> None:
        try:
            for _ in range(_MESSAGES_A_TURN):
                message = self._connections[number].receive()
                if message is None:
                    return
                self._fetcher.handle(number, message)
        except ChannelClosedError:
            self._close(number)
        except (ProtocolError, msgspec.DecodeError) as error:
            _log.warning("closed a connection: %s", error, extra={"kind": "protocol"})
            self._close(number)

    def _send(self, number: int, answer: FetcherToNode) -> None:
        channel = self._connections.get(number)
        if channel is None:
            return
        try:
            channel.send(answer)
        except (ChannelClosedError, ChannelFullError):  # it connects again if it is only slow
            self._close(number)

    def _close(self, number: int) -> None:
        self._poll.unregister(number)
        self._connections.pop(number).close()
        self._fetcher.disconnect(number)


def main(channel_fd: int, parent: int) -> int:
    """Run a fetcher on an inherited channel; return the exit status."""
    die_with_parent(parent)
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.nice(NICE)
    # Terminals and systemd signal every process; a fetcher ends when its channel closes.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control: _Control = Channel(socket.socket(fileno=channel_fd), SupervisorToFetcher)
    try:
        config, listening_fd = control.receive_with_fd()
        assert isinstance(config, FetcherConfig), "FetcherConfig comes first"
        assert listening_fd is not None, "the listening socket comes with FetcherConfig"
        start_logging(config.log_level, "fetcher", config.log_format)
        raise_file_limit()
        listener = socket.socket(fileno=listening_fd)
        listener.settimeout(0)
        fetcher = Fetcher(
            DiskCache.open(Path(os.fsdecode(config.disk_path))),
            {name: Path(os.fsdecode(folder)) for name, folder in config.datasets.items()},
            budget_bytes=config.disk_bytes,
        )
        if config.peers:
            keys = None
            if config.peer_key:
                own = read_secret_key(Path(os.fsdecode(config.peer_key)))
                keys = ClientKeys(PublicKey("feeder", config.server_key), own)
            fetcher.follow_peers(config.peers, config.name, keys)
        control.set_timeout(0)
        _Loop(control, listener, fetcher).run()
    except ChannelClosedError:
        return 0
    except Exception as error:
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        text = str(failure).encode("utf-8", "backslashreplace").decode()
        with contextlib.suppress(ChannelClosedError, ChannelFullError):
            control.send(CannotFetch(type(failure).__name__, text))
        return failure.exit_status
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    os._exit(status)  # without waiting for transfers
