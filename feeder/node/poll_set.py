"""What a node process polls for input, each source with its callback."""

from collections.abc import Callable

import zmq

Source = zmq.Socket[bytes] | int


class PollSet:
    """ZeroMQ sockets and descriptors, each with a callback for its input."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Source, Callable[[], None]] = {}

    def add(self, source: Source, callback: Callable[[], None]) -> None:
        """Begin to poll a source; ``callback`` is called when it has input or has ended."""
        self._poller.register(source, zmq.POLLIN)
        self._callbacks[source] = callback

    def remove(self, source: Source) -> None:
        """Stop polling a source."""
        self._poller.unregister(source)
        del self._callbacks[source]

    def run(self, timeout_s: float) -> None:
        """Wait for input, for ``timeout_s`` at most, and call the callbacks."""
        for source, _ in self._poller.poll(max(0, int(timeout_s * 1000) + 1)):
            callback = self._callbacks.get(source)
            if callback is not None:  # else an earlier callback has removed it
                callback()
