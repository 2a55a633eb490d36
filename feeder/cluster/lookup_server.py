"""Answers look-ups of the published list (``feeder.client.endpoints``), in a thread of its own.

It goes on answering while the controller waits for Ray. With the feeders' keys it is CURVE, and
the clients that may connect to feeders may look them up.
"""

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import zmq

from feeder.client.endpoints import LOOKUP_REQUEST, format_answer
from feeder.errors import ResourceError
from feeder.metrics.counters import SocketCounters
from feeder.node.zap_handler import KeyList, ZapHandler
from feeder.security.keys import read_secret_key
from feeder.wire.zap import DOMAIN

BIND_MAX_S: Final = 10.0
"""A controller that is started again may come before the one before it is gone."""

_POLL_MS: Final = 250
_REQUEST_BYTES_MAX: Final = 4096  # room for the messages of the CURVE handshake
_BACKLOG: Final = 1024


def format_list(published: Iterable[tuple[str, str]]) -> str:
    """The list of names and endpoints as an endpoint file has it."""
    lines = [f"{name} {endpoint}\n" for name, endpoint in published]
    return "# Feeders of a Ray cluster, by `feeder cluster`: NAME ENDPOINT\n" + "".join(lines)


class LookupServer:
    """A socket that answers look-ups; ``close()`` is idempotent and bounded in time."""

    def __init__(self, host: str, port: int, secret_key: str, client_keys: str) -> None:
        """Bind and begin; ConfigError for keys, ResourceError for an address in use."""
        self._answer = format_answer("")
        self._is_closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._zap: ZapHandler | None = None
            if secret_key:
                keys = KeyList(Path(client_keys))
                self._zap = ZapHandler(self._context, keys, SocketCounters())
            self._socket = self._context.socket(zmq.ROUTER)
            self._socket.set(zmq.LINGER, 0)
            self._socket.set(zmq.MAXMSGSIZE, _REQUEST_BYTES_MAX)
            self._socket.set(zmq.BACKLOG, _BACKLOG)
            self._socket.set(zmq.IPV6, ":" in host)
            if self._zap is not None:
                self._socket.set(zmq.CURVE_SERVER, 1)
                self._socket.set(
                    zmq.CURVE_SECRETKEY, read_secret_key(Path(secret_key)).text.encode()
                )
                self._socket.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
                self._socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
            shown = f"[{host}]" if ":" in host else host
            self._bind(f"tcp://{shown}:{port}")
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.address = f"{shown}:{port}"
        self._thread = threading.Thread(target=self._serve, name="feeder look-up", daemon=True)
        self._thread.start()

    def publish(self, listed: str) -> None:
        self._answer = format_answer(listed)

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(4 * _POLL_MS / 1000)

    def _bind(self, endpoint: str) -> None:
        give_up_s = time.monotonic() + BIND_MAX_S
        while True:
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() >= give_up_s:
                    raise ResourceError(
                        f"the look-up cannot bind {endpoint} on the head: {error.strerror}; choose "
                        "another port with --lookup"
                    ) from None
                time.sleep(_POLL_MS / 1000)
            else:
                return

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if self._zap is not None:
            poller.register(self._zap.socket, zmq.POLLIN)
        while not self._is_closed:
            poller.poll(_POLL_MS)
            if self._zap is not None:
                self._zap.answer(time.monotonic())
            with contextlib.suppress(zmq.Again):
                while True:
                    peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                    if frames == [LOOKUP_REQUEST]:
                        self._socket.send_multipart([peer, self._answer], zmq.NOBLOCK)
        self._context.destroy(linger=0)
