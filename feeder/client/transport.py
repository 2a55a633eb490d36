"""The consumer's end of the connections: calls that wait, each with a deadline.

The consumer changes the session under a lock; what follows is done by whoever serves the sockets,
the consumer itself while it waits (see ``io_thread``). A transport belongs to the process that made
it: in a fork of that process the thread does not exist, so every call there fails at once, and
closing does nothing.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import numpy as np

from feeder.client.contexts import no_room
from feeder.client.core.prefetch import BatchSequence, CompleteBatch
from feeder.client.core.session import ClientSession
from feeder.client.endpoint_list import Listing
from feeder.client.endpoints import Directory
from feeder.client.host_memory import Allocate, BatchBuffer, BatchBuffers, SlotBuffer
from feeder.client.io_loop import IoLoop
from feeder.client.io_thread import IoThread
from feeder.errors import ConfigError, PeerError, ProtocolError, name_some
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Welcome, encode

WAIT_SLICE_S: Final = 0.25  # the most of a stop of this process that counts towards a timeout
FINAL_READ_S: Final = 0.2  # for libzmq to pass on what waits in its sockets
NOTICE_S: Final = 3.0  # of waiting, until a line of the log names the batch and the nodes
NOTICE_INTERVAL_S: Final = 30.0  # between such lines
GATHER_S: Final = 1.0  # for hosts that are down: they neither answer nor refuse the connection

_Found = TypeVar("_Found")

_log = logging.getLogger(__name__)


class _Timeout:
    """The time of a call that waits; time in which this process was stopped does not count.

    The time limit begins again whenever ``advances`` returns more: feeders are packing, and get on.
    """

    def __init__(self, timeout_s: float, advances: Callable[[], int] = lambda: 0) -> None:
        self.waited_s = 0.0
        self.has_notice = False
        """Whether a notice has been due: the caller reports the end of the wait as well."""
        self._timeout_s = self._ends_s = timeout_s
        self._advances, self._advanced = advances, advances()
        self._notice_s = NOTICE_S
        self._has_final_read = True
        self._slice_s = 0.0
        self._began_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Time until the call ends in an error."""
        return self._ends_s - self.waited_s

    def next_slice_s(self) -> float | None:
        """Return how long to wait now, for the last time once the time is over, then None.

        Waiting messages are read once more, because this process may have been stopped.
        """
        now_s = time.monotonic()
        self.waited_s += min(now_s - self._began_s, self._slice_s)
        advanced = self._advances()
        if advanced > self._advanced:
            self._ends_s, self._advanced = self.waited_s + self._timeout_s, advanced
        if self.remaining_s > 0:
            until_notice_s = max(0.0, self._notice_s - self.waited_s)
            self._began_s = now_s
            self._slice_s = min(self.remaining_s, WAIT_SLICE_S, until_notice_s or WAIT_SLICE_S)
            return self._slice_s
        self._slice_s = 0.0
        if self._has_final_read:
            self._has_final_read = False
            return FINAL_READ_S
        return None

    def take_notice(self) -> bool:
        """Return whether it is time to log that the call waits, once for each such time."""
        is_due = self.waited_s >= self._notice_s and self.remaining_s > 0
        if is_due:
            self._notice_s, self.has_notice = self.waited_s + NOTICE_INTERVAL_S, True
        return is_due


class Transport:
    """The connections to all nodes of a job, kept up until ``close``."""

    def __init__(
        self,
        session: ClientSession,
        directory: Directory,
        keys: ClientKeys | None = None,
        allocate: Allocate = np.empty,
    ) -> None:
        """Read the endpoints, start the I/O thread that dials them, and watch for others.

        ``allocate`` makes the memory of batches that are not read in place. ConfigError for a Hello
        that no node would read.
        """
        try:
            encode(session.job.hello)
        except ProtocolError as error:
            raise ConfigError(f"dataset, seed, window or job is invalid: {error}") from None
        listing = directory.read()
        self._session = session
        self._directory = directory
        self._name = session.job.name
        self._pid = os.getpid()
        try:
            self._waker, wakeup = socket.socketpair()
        except OSError as error:
            raise no_room(self._name) from error
        self._waker.setblocking(False)
        wakeup.setblocking(False)
        self._lock = threading.RLock()  # the session's
        recipe = session.job.hello.recipe
        self._buffers = BatchBuffers(lambda: BatchBuffer(recipe, session.labels, allocate))
        self._loop = IoLoop(session, self._lock, self._buffers, keys, wakeup)
        self._loop.listed = listing
        self._thread = IoThread(session, self._lock, self._loop, self._waker)
        try:
            self._thread.start()
            directory.watch(self._set_endpoints)
        except BaseException:  # the caller has no object to close yet
            self._thread.closing = True
            directory.close()
            self._waker.close()  # which wakes the thread
            raise

    def wait_for_welcome(self, timeout_s: float, *, for_packing: bool = True) -> Welcome:
        """Return the first welcome; PeerError when there is none within ``timeout_s``.

        With ``for_packing`` that begins again with all progress of a feeder that packs its source.
        Waits a moment longer for the other feeders, so that incompatible ones are an error now
        instead of being left out later.
        """
        self._serve_until(self._find_welcome, timeout_s, "welcome", for_packing=for_packing)
        gather_by_s = time.monotonic() + GATHER_S

        def find_gathered() -> Welcome | None:
            is_over = self._session.is_gathered or time.monotonic() >= gather_by_s
            return self._find_welcome() if is_over else None

        welcome = self._thread.serve_until(find_gathered, lambda: gather_by_s - time.monotonic())
        self._thread.resume()
        return welcome

    def begin(self, sequence: BatchSequence) -> None:
        """Request the batches of a sequence, from its first on."""
        self.check_usable()
        with self._lock:
            self._session.begin(sequence)
            is_due = self._session.is_clock_due(spare=1)
        if is_due:
            self._thread.wake()

    def take(
        self, name: str, timeout_s: float, before_waiting: Callable[[], object] = lambda: None
    ) -> CompleteBatch:
        """Return the next batch; PeerError when it, called ``name``, is not complete in time.

        ``before_waiting`` is called if it is not complete yet, and can release slots: the node
        may need one of them for this batch.
        """
        self.check_usable()
        batch = self._find_batch()
        if batch is None:
            before_waiting()
            with self._lock:
                self._session.begin_wait(time.monotonic())
            try:
                batch = self._serve_until(self._find_batch, timeout_s, name)
            finally:
                with self._lock:
                    self._session.end_wait(time.monotonic(), batch)
        return batch

    def rows(self, batch: CompleteBatch) -> SlotBuffer | BatchBuffer:
        """Return the memory of a batch that was taken, valid until its buffer is returned."""
        if batch.lent is not None:
            return cast(SlotBuffer, batch.lent)
        buffer = self._buffers[batch.buffer]
        if batch.padding:
            buffer.fill_padding()
        return buffer

    def return_buffers(self, buffers: Sequence[int], *, before_waiting: bool = False) -> None:
        """Free the buffers of taken batches to be written again.

        ``before_waiting`` is whether a ``take`` waits next, which requests the next batches itself.
        """
        with self._lock:
            for buffer in buffers:
                self._session.return_buffer(buffer)
            is_due = not before_waiting and self._session.is_clock_due(spare=1)
        if is_due:
            self._thread.wake()

    def check_usable(self) -> None:
        """Raise ConfigError in a fork of the process that made this, and after ``close``."""
        if self._pid != os.getpid():
            raise ConfigError(
                f"this loader of {self._name} belongs to process {self._pid} and cannot work "
                f"in its fork {os.getpid()}: make a loader in each process"
            )
        if self._thread.closing:
            raise ConfigError(f"this loader of {self._name} is closed")

    def close(self) -> None:
        """Send Bye, end the thread and close the sockets, within 2 s. Idempotent, never raises."""
        if self._pid != os.getpid():
            return
        self._directory.close()
        if not self._thread.stop():
            _log.warning("%s: the client's I/O thread did not end in time", self._name)
        self._waker.close()

    def _set_endpoints(self, listing: Listing) -> None:
        with self._lock:
            self._loop.listed = listing
        self._thread.wake()

    def _find_welcome(self) -> Welcome | None:
        with self._lock:
            is_known = self._session.welcome is not None or self._session.error is not None
            return self._session.check() if is_known else None

    def _find_batch(self) -> CompleteBatch | None:
        with self._lock:
            return self._session.take()

    def _serve_until(
        self,
        find: Callable[[], _Found | None],
        timeout_s: float,
        what: str,
        *,
        for_packing: bool = True,
    ) -> _Found:
        """Serve the sockets until ``find`` returns something; PeerError when time has run out.

        A long wait is logged: the user sees what it waits for before the deadline.
        """
        timeout = _Timeout(timeout_s, lambda: for_packing and self._session.packing_advances)
        subject = what, self._session.job.hello.dataset, self._name

        def wait_s() -> float:
            if self._thread.closing:
                raise ConfigError(f"this loader of {self._name} was closed in the meantime")
            slice_s = timeout.next_slice_s()
            if slice_s is None:
                reasons = self._explain()
                raise PeerError(f"no {what} from {self._name} within {timeout_s:g} s: {reasons}")
            if timeout.take_notice():
                reasons = self._explain()
                text = "%s of %s from %s: waiting for %.1f s: %s"
                _log.warning(text, *subject, timeout.waited_s, reasons)
            return slice_s

        found = self._thread.serve_until(find, wait_s)
        if timeout.has_notice:
            _log.warning("%s of %s from %s: it came after %.1f s", *subject, timeout.waited_s)
        return found

    def _explain(self) -> str:
        with self._lock:
            reason = self._session.explain(time.monotonic(), self._directory.unresolved)
        return name_some([reason, *self._directory.problems], "; ")
