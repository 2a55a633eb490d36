"""The consumer's end of the connections: calls that wait, each with a deadline.

The consumer changes the session under a lock and wakes the I/O thread (see ``io_thread``) through a
socket pair; nothing else is shared. A transport belongs to the process that made it: in a fork of
that process the thread does not exist, so every call there fails at once, and closing does nothing.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from feeder.client.connection import WrapSlot
from feeder.client.core.prefetch import CompleteBatch
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.io_thread import BatchBuffers, IoLoop
from feeder.errors import ConfigError, PeerError
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Welcome

CLOSE_TIMEOUT_S: Final = 1.8
WAIT_SLICE_S: Final = 0.25  # the most of a stop of this process that counts towards a timeout
FINAL_READ_S: Final = 0.2  # for the I/O thread to read what waits in its sockets
GATHER_S: Final = 1.0  # for hosts that are down: they neither answer nor refuse the connection

_log = logging.getLogger(__name__)


class _Timeout:
    """The remaining time of a call; time in which this process was stopped does not count."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = self.remaining_s = timeout_s
        self.has_final_read = True


class Transport:
    """The connections to all nodes of a job, kept up until ``close``."""

    def __init__(
        self,
        session: ClientSession,
        directory: Directory,
        buffers: BatchBuffers,
        wrap_slot: WrapSlot,
        keys: ClientKeys | None = None,
    ) -> None:
        """Read the endpoints, start the I/O thread that dials them, and watch for others.

        Rows are copied to ``buffers``, or read in slots as ``wrap_slot`` presents them.
        """
        endpoints = directory.read()
        self._session = session
        self._directory = directory
        self._name = session.job.name
        self._pid = os.getpid()
        self._waker, wakeup = socket.socketpair()
        self._waker.setblocking(False)
        wakeup.setblocking(False)
        self._changed = threading.Condition()  # also the lock of the session
        self._loop = IoLoop(session, self._changed, buffers, wrap_slot, keys, wakeup)
        self._loop.listed = endpoints
        self._thread = threading.Thread(
            target=self._loop.run, name=f"feeder client of {self._name}"[:64], daemon=True
        )
        try:
            self._thread.start()  # waits for it, and so can be interrupted
            directory.watch(self._set_endpoints)
        except BaseException:  # the caller has no object to close yet
            self._loop.closing = True
            directory.close()
            self._waker.close()  # which wakes the thread
            raise

    def wait_for_welcome(self, timeout_s: float) -> Welcome:
        """Return the first welcome; PeerError when there is none within ``timeout_s``.

        Waits a moment longer for the other feeders, so that incompatible ones are an error now
        instead of being left out later.
        """
        timeout = _Timeout(timeout_s)
        with self._changed:
            while self._session.welcome is None and self._session.error is None:
                self._wait(timeout, "no welcome")
            gather_by_s = time.monotonic() + GATHER_S
            while not self._session.is_gathered and (now_s := time.monotonic()) < gather_by_s:
                self._changed.wait(gather_by_s - now_s)
            return self._session.check()

    def begin(self, epoch: int, indices: range, step: int = 0) -> None:
        """Request the batches ``indices`` of ``epoch`` from a step on, then of the next epochs."""
        self.check_usable()
        with self._changed:
            self._session.begin(epoch, indices, step)
        self._wake()

    def take(
        self, name: str, timeout_s: float, before_waiting: Callable[[], None]
    ) -> CompleteBatch:
        """Return the next batch; PeerError when it, called ``name``, is not complete in time.

        ``before_waiting`` is called if it is not complete yet, and can release slots: the node
        may need one of them for this batch.
        """
        self.check_usable()
        timeout = _Timeout(timeout_s)
        with self._changed:
            is_complete = self._session.is_next_complete()
        if not is_complete:
            before_waiting()
        with self._changed:
            while (batch := self._session.take()) is None:
                self._wait(timeout, f"no {name}")
            return batch

    def return_buffers(self, buffers: Sequence[int]) -> None:
        """Free the buffers of taken batches to be written again."""
        with self._changed:
            for buffer in buffers:
                self._session.return_buffer(buffer)
        self._wake()

    def check_usable(self) -> None:
        """Raise ConfigError in a fork of the process that made this, and after ``close``."""
        if self._pid != os.getpid():
            raise ConfigError(
                f"this loader of {self._name} belongs to process {self._pid} and cannot work "
                f"in its fork {os.getpid()}: make a loader in each process"
            )
        if self._loop.closing:
            raise ConfigError(f"this loader of {self._name} is closed")

    def close(self) -> None:
        """Send Bye, end the thread and close the sockets, within 2 s. Idempotent, never raises."""
        if self._pid != os.getpid():
            return
        # The garbage collector may call this in any thread, the I/O thread included, and at any
        # point: so it takes no lock, and the I/O thread does not wait for itself.
        self._loop.closing = True
        self._directory.close()
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning("%s: the client's I/O thread did not end in time", self._name)
        self._waker.close()

    def _set_endpoints(self, endpoints: tuple[str, ...]) -> None:
        with self._changed:
            self._loop.listed = endpoints
        self._wake()

    def _wait(self, timeout: _Timeout, what: str) -> None:
        """Wait, with the session's lock held, for it to change; PeerError when time has run out.

        Before that the I/O thread reads its sockets once more: this process may have been stopped.
        """
        if self._loop.closing:
            raise ConfigError(f"this loader of {self._name} was closed in the meantime")
        now_s = time.monotonic()
        if timeout.remaining_s > 0:
            slice_s = min(timeout.remaining_s, WAIT_SLICE_S)
            self._changed.wait(slice_s)
            timeout.remaining_s -= min(time.monotonic() - now_s, slice_s)
        elif timeout.has_final_read:
            timeout.has_final_read = False
            self._wake()
            self._changed.wait(FINAL_READ_S)
        else:
            reason = "; ".join([self._session.explain(now_s), *self._directory.problems])
            raise PeerError(f"{what} from {self._name} within {timeout.timeout_s:g} s: {reason}")

    def _wake(self) -> None:
        # A full socket is readable already; a closed one has no thread left to wake.
        with contextlib.suppress(OSError):
            self._waker.send(b"!")
