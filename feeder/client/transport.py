"""The consumer's hold on the connection: calls that wait, each with a deadline.

The consumer changes the session under a lock and rings the I/O thread (see ``io_thread``) through a
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
from feeder.client.io_thread import BatchBuffers, Pump
from feeder.errors import ConfigError, PeerError
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Welcome

CLOSE_TIMEOUT_S: Final = 1.8
TURN_S: Final = 0.25  # of a wait: at most so much counts of the time that this process was stopped
LAST_CHANCE_S: Final = 0.2  # for the I/O thread to read what waits in its sockets
GATHER_S: Final = 1.0  # for whom neither answers nor refuses the connection: a host that is down

_log = logging.getLogger(__name__)


class _Patience:
    """How long a call waits. While this process was stopped nobody could be waited for."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = self.left_s = timeout_s
        self.has_last_chance = True


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
        self._bell, ring = socket.socketpair()
        self._bell.setblocking(False)
        ring.setblocking(False)
        self._changed = threading.Condition()  # also the lock of the session
        self._pump = Pump(session, self._changed, buffers, wrap_slot, keys, ring)
        self._pump.listed = endpoints
        self._thread = threading.Thread(
            target=self._pump.run, name=f"feeder client of {self._name}"[:64], daemon=True
        )
        try:
            self._thread.start()  # waits for it, and so can be interrupted
            directory.watch(self._list)
        except BaseException:  # nobody has this object yet, to close it
            self._pump.closing = True
            directory.close()
            self._bell.close()  # which wakes it
            raise

    def wait_for_welcome(self, timeout_s: float) -> Welcome:
        """Return the first welcome; PeerError when there is none within ``timeout_s``.

        Waits a moment longer for the other feeders, so that those that do not fit are an error
        now, and not left out later.
        """
        patience = _Patience(timeout_s)
        with self._changed:
            while self._session.welcome is None and self._session.error is None:
                self._wait(patience, "no welcome")
            gather_by_s = time.monotonic() + GATHER_S
            while not self._session.is_gathered and (now_s := time.monotonic()) < gather_by_s:
                self._changed.wait(gather_by_s - now_s)
            return self._session.check()

    def begin(self, epoch: int, step: int = 0) -> None:
        """Ask for the batches of ``epoch`` from a step on, then for those of the next."""
        self.check_usable()
        with self._changed:
            self._session.begin(epoch, step)
        self._wake()

    def take(
        self, name: str, timeout_s: float, before_waiting: Callable[[], None]
    ) -> CompleteBatch:
        """Return the next batch; PeerError when it, called ``name``, is not there in time.

        ``before_waiting`` is called if it is not there yet: who waits while holding on to slots
        may wait for one of these.
        """
        self.check_usable()
        patience = _Patience(timeout_s)
        with self._changed:
            is_there = self._session.is_next_complete()
        if not is_there:
            before_waiting()
        with self._changed:
            while (batch := self._session.take()) is None:
                self._wait(patience, f"no {name}")
            return batch

    def give_back(self, buffers: Sequence[int]) -> None:
        """Let the buffers of taken batches be written again."""
        with self._changed:
            for buffer in buffers:
                self._session.give_back(buffer)
        self._wake()

    def check_usable(self) -> None:
        """Raise ConfigError in a fork of the process that made this, and after ``close``."""
        if self._pid != os.getpid():
            raise ConfigError(
                f"this loader of {self._name} belongs to process {self._pid} and cannot work "
                f"in its fork {os.getpid()}: make a loader in each process"
            )
        if self._pump.closing:
            raise ConfigError(f"this loader of {self._name} is closed")

    def close(self) -> None:
        """Say Bye, end the thread and close the socket, within 2 s. Idempotent, never raises."""
        if self._pid != os.getpid():
            return
        # The garbage collector may call this in any thread, even in the I/O thread, and at any
        # point: so it takes no lock, and the I/O thread does not wait for itself.
        self._pump.closing = True
        self._directory.close()
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning("%s: the client's I/O thread did not end in time", self._name)
        self._bell.close()

    def _list(self, endpoints: tuple[str, ...]) -> None:
        with self._changed:
            self._pump.listed = endpoints
        self._wake()

    def _wait(self, patience: "_Patience", what: str) -> None:
        """Wait for the session to change, with its lock held; PeerError when patience is over.

        Even then the I/O thread first takes in what has come: this process may have been stopped.
        """
        if self._pump.closing:
            raise ConfigError(f"this loader of {self._name} was closed in the meantime")
        now_s = time.monotonic()
        if patience.left_s > 0:
            turn_s = min(patience.left_s, TURN_S)
            self._changed.wait(turn_s)
            patience.left_s -= min(time.monotonic() - now_s, turn_s)
        elif patience.has_last_chance:
            patience.has_last_chance = False
            self._wake()
            self._changed.wait(LAST_CHANCE_S)
        else:
            reason = "; ".join([self._session.explain(now_s), *self._directory.complaints])
            raise PeerError(f"{what} from {self._name} within {patience.timeout_s:g} s: {reason}")

    def _wake(self) -> None:
        # A full pipe rings already; a closed one has nobody left to wake.
        with contextlib.suppress(OSError):
            self._bell.send(b"!")
