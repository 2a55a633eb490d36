"""The consumer's end of the connections: calls that wait, each with a deadline.

The consumer changes the session under a lock; what follows is done by whoever serves the sockets:

    consumer waits   it takes the turns itself: passing a message from one thread to the other would
                     wake two of them, which costs several times what the message does
    consumer works   after HAND_BACK_S the I/O thread goes on, so that pings are sent and lost nodes
                     are noticed; at once where rows are copied, so that they are copied meanwhile

Whoever holds ``_sockets`` takes the turns. An exception that a signal handler raises, such as
KeyboardInterrupt, can leave a wait for messages; while they are handled it ends the session, whose
state may be half changed. In a fork the thread does not exist: every call there fails at once.
"""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import Final, TypeVar

import numpy as np

from feeder.client.connection import no_room
from feeder.client.core.answers import name_batch
from feeder.client.core.prefetch import Batch, BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory, Listing
from feeder.client.host_memory import Allocate, BatchBuffer, HostRows, SlotBuffer
from feeder.client.io_loop import IDLE_MS, IoLoop
from feeder.errors import (
    ConfigError,
    FeederError,
    PeerError,
    ProtocolError,
    ResourceError,
    name_some,
)
from feeder.security.keys import ClientKeys
from feeder.wire.messages import BatchKey, Welcome, encode

WAIT_SLICE_S: Final = 0.25  # the most of a stop of this process that counts towards a timeout
NOTICE_S: Final = 3.0  # of waiting, until a line of the log names the batch and the nodes
NOTICE_INTERVAL_S: Final = 30.0  # between such lines
GATHER_S: Final = 1.0  # for hosts that are down: they neither answer nor refuse the connection
HAND_BACK_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 1.8

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


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

        ConfigError for a Hello that no node would read.
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
            kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            self._waker, wakeup = socket.socketpair(type=kind)
        except OSError as error:
            raise no_room(self._name) from error
        self._rest = select.poll()
        self._rest.register(wakeup, select.POLLIN)
        self._lock = threading.RLock()  # the session's
        recipe = session.job.hello.recipe
        # Allocated at first use, so never for lent batches; only its present owner looks one up.
        self._buffer = cache(lambda number: BatchBuffer(recipe, session.prefetch.labels, allocate))
        self._loop = IoLoop(session, self._lock, self._buffer, keys, wakeup)
        self._loop.listed = listing
        self._sockets = threading.Lock()
        self._consumer: int | None = None  # the thread that takes the turns, or is about to
        self.hand_back_s = HAND_BACK_S
        """How long the I/O thread waits before it takes over; a bench makes it longer."""
        self._handed_back_s = -inf
        self._is_closing = False
        self._has_ended = False  # but for a wait for the last messages, or for a name server
        self._thread = threading.Thread(
            target=self._run, name=f"feeder client of {self._name}"[:64], daemon=True
        )
        try:
            self._thread.start()  # waits for it, and so can be interrupted
            directory.watch(self._set_endpoints)
        except BaseException:  # the caller has no object to close yet
            self._is_closing = True
            directory.close()
            self._waker.close()  # which wakes the thread
            raise

    # --- The consumer's calls -----------------------------------------------------------------

    def wait_for_welcome(self, timeout_s: float, *, for_packing: bool = True) -> Welcome:
        """The first welcome; PeerError when there is none within ``timeout_s``.

        With ``for_packing`` that begins again with all progress of a feeder that packs its source.
        """
        session = self._session

        def has_answer() -> bool:
            return session.welcome is not None or session.error is not None

        def is_gathered() -> bool:
            return session.is_gathered or time.monotonic() >= gather_by_s

        self._serve_until(has_answer, timeout_s, "welcome", for_packing=for_packing)
        # Incompatible feeders should be an error now instead of being left out later.
        gather_by_s = time.monotonic() + GATHER_S
        self._serve_until(is_gathered, 2 * GATHER_S, "welcome", for_packing=False)
        self._resume()
        return session.check()

    def begin(self, sequence: BatchSequence) -> None:
        """Request the batches of a sequence, from its first on."""
        self.check_usable()
        with self._lock:
            self._session.begin(sequence)
        self._wake()

    def take(
        self, key: BatchKey, timeout_s: float, before_waiting: Callable[[], object] = lambda: None
    ) -> Batch:
        """The next batch, which is ``key``; PeerError when it is not complete in time.

        ``before_waiting`` is called if it is not complete yet, and can release slots: the node
        may need one of them for this batch.
        """
        self.check_usable()
        session = self._session
        with self._lock:
            batch = session.take()
        if batch is None:
            before_waiting()
            with self._lock:
                session.waits_since_s = time.monotonic()
            try:
                batch = self._serve_until(session.take, timeout_s, name_batch(key))
            finally:
                with self._lock:
                    session.waits_since_s = None
            if batch.lent is None:
                self._resume()
        if batch.key != key:
            raise AssertionError(f"{name_batch(key)} is due, but {name_batch(batch.key)} has come")
        return batch

    def rows(self, batch: Batch) -> HostRows:
        """The memory of a batch that was taken, valid until its buffer is returned."""
        epoch, _ = batch.key
        if batch.lent is not None:
            slot: SlotBuffer = batch.lent  # type: ignore[assignment]  # from ClaimAnswered
            slot.show(epoch)
            return slot
        buffer = self._buffer(batch.buffer)
        buffer.show(epoch)
        if not batch.valid:
            buffer.fill_padding()
        return buffer

    def return_buffers(self, buffers: Sequence[int], *, before_waiting: bool = False) -> None:
        """Free the buffers of taken batches to be written again.

        ``before_waiting`` is whether a ``take`` waits next, which requests the next batches itself.
        """
        with self._lock:
            for buffer in buffers:
                self._session.prefetch.return_buffer(buffer)
            is_due = not before_waiting and self._session.is_clock_due(spare=1)
        if is_due:
            self._wake()

    def check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError(
                f"this loader of {self._name} belongs to process {self._pid} and cannot work "
                f"in its fork {os.getpid()}: make a loader in each process"
            )
        if self._is_closing:
            raise ConfigError(f"this loader of {self._name} is closed")

    def close(self) -> None:
        """Send Bye, end the thread and close the sockets, within 2 s. Idempotent, never raises."""
        # The garbage collector may call this in any thread, the I/O thread included, and a signal
        # handler in the middle of a turn: so it takes no lock, and waits for no thread that waits
        # for it.
        if self._pid != os.getpid():
            return
        self._directory.close()
        self._is_closing = True
        self._wake()
        if threading.get_ident() not in (self._thread.ident, self._consumer):
            self._thread.join(CLOSE_TIMEOUT_S)  # which a silent name server uses up
            if not self._has_ended:
                _log.warning("%s: the client's I/O thread did not end in time", self._name)
        self._waker.close()

    # --- Waiting, in the consumer's thread ----------------------------------------------------

    def _serve_until(
        self,
        find: Callable[[], _Result | None],
        timeout_s: float,
        what: str,
        *,
        for_packing: bool = True,
    ) -> _Result:
        """Take turns until ``find`` returns something; PeerError when time has run out.

        Time in which this process was stopped does not count: a turn counts for no longer than it
        was to wait. The time begins again whenever feeders that pack get on. A long wait is logged.
        """
        session = self._session
        advances = session.packing_advances
        waited_s, ends_s, notice_s = 0.0, timeout_s, NOTICE_S
        self._consumer = threading.get_ident()
        try:
            if self._sockets.locked():
                self._wake()
            with self._sockets:
                while True:
                    with self._lock:
                        result = find()
                    if result:
                        break
                    if self._is_closing:
                        raise ConfigError(f"this loader of {self._name} was closed in the meantime")
                    if waited_s >= ends_s:
                        raise PeerError(
                            f"no {what} from {self._name} within {timeout_s:g} s: {self._explain()}"
                        )
                    slice_s = min(WAIT_SLICE_S, ends_s - waited_s, notice_s - waited_s)
                    began_s = time.monotonic()
                    self._take_turn(max(1, int(1000 * slice_s)))
                    waited_s += min(time.monotonic() - began_s, slice_s)
                    if for_packing and session.packing_advances > advances:
                        advances, ends_s = session.packing_advances, waited_s + timeout_s
                    if notice_s <= waited_s < ends_s:
                        notice_s = waited_s + NOTICE_INTERVAL_S
                        self._warn(what, f"waiting for {waited_s:.1f} s: {self._explain()}")
        finally:
            self._consumer = None
            self._handed_back_s = time.monotonic()
        if notice_s > NOTICE_S:
            self._warn(what, f"it came after {waited_s:.1f} s")
        return result

    def _take_turn(self, wait_ms: int) -> None:
        try:
            self._loop.turn(wait_ms)
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            if not self._loop.is_waiting:
                reason = f"it was interrupted while it handled messages ({error!r}): make a new one"
                self._fail(ResourceError(f"the loader of {self._name}: {reason}"))
            raise

    def _explain(self) -> str:
        problems = self._directory.problems.copy()
        with self._lock:
            reason = self._session.explain(time.monotonic(), problems)
        lists = [line for text, line in problems.items() if not text.startswith("tcp://")]
        return name_some([reason, *lists], "; ")

    def _warn(self, what: str, text: str) -> None:
        dataset = self._session.job.hello.dataset
        _log.warning("%s of %s from %s: %s", what, dataset, self._name, text)

    # --- The I/O thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(ResourceError(f"{self._name}: the I/O thread failed: {error!r}"))
            raise
        finally:
            with self._sockets:
                try:
                    self._loop.say_bye()
                finally:
                    self._loop.close()
            self._has_ended = True
            self._loop.wait_until_sent()
            with self._lock:
                self._session.release_slots()  # before the Bye it would look like a crash

    def _serve(self) -> None:
        while not self._is_closing and self._session.error is None:
            resume_s = self._handed_back_s + self.hand_back_s - time.monotonic()
            if self._consumer is not None:
                self._rest.poll(1000 * HAND_BACK_S)
            elif resume_s <= 0 or self._rest.poll(1000 * resume_s):
                with self._sockets:
                    if self._consumer is None:  # else it has not noticed that this thread is here
                        self._loop.turn(IDLE_MS)

    def _fail(self, error: FeederError) -> None:
        with self._lock:
            self._session.fail(error)
        self._wake()

    def _wake(self) -> None:
        """End the present wait for messages, or the thread's rest."""
        try:
            self._waker.send(b"!")
        except OSError:
            return  # a full socket is readable already; a closed one has no thread left to wake

    def _resume(self) -> None:
        # Have the thread go on at once, without waiting for the consumer to come back.
        self._handed_back_s = -inf
        self._wake()

    def _set_endpoints(self, listing: Listing) -> None:
        with self._lock:
            self._loop.listed = listing
        self._wake()
