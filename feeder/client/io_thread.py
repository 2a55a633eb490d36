"""Who serves a client's sockets: the consumer while it waits for a batch, else the I/O thread.

    consumer waits   it takes the turns itself: passing a message from one thread to the other would
                     wake two of them, which costs several times what the message does
    consumer works   after HAND_BACK_S the I/O thread goes on, so that pings are sent and lost nodes
                     are noticed; at once where rows are copied, so that they are copied meanwhile

Until then what the nodes have lent waits in the sockets, which costs nothing. Whoever holds
``_sockets`` takes the turns. An exception that a signal handler raises, such as KeyboardInterrupt,
can leave the consumer's wait at any time; if it comes in the fraction of a millisecond in which
messages are handled, the session has ended, because its state may be half changed.
"""

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from feeder.client.core.session import ClientSession
from feeder.client.io_loop import IDLE_MS, IoLoop
from feeder.errors import FeederError, ResourceError

HAND_BACK_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 1.8

_Found = TypeVar("_Found")


class IoThread:
    """Serves ``loop`` from ``start()`` until ``stop()``; its errors end the session."""

    def __init__(
        self, session: ClientSession, lock: threading.RLock, loop: IoLoop, waker: socket.socket
    ) -> None:
        """``lock`` is the session's; a byte sent by ``waker`` ends the loop's waits."""
        self.closing = False
        self._session = session
        self._lock = lock
        self._loop = loop
        self._waker = waker
        self._sockets = threading.Lock()
        self._consumer: int | None = None  # the thread that takes the turns, or is about to
        self._handed_back_s = float("-inf")
        self._has_failed = False
        name = session.job.name
        self._thread = threading.Thread(
            target=self._run, name=f"feeder client of {name}"[:64], daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()  # waits for it, and so can be interrupted

    def stop(self) -> bool:
        """Have the thread send Bye and close the sockets; return whether it did so in time.

        The garbage collector may call this in any thread, this one included, and a signal handler
        in the middle of a turn: so it takes no lock, and waits for no thread that waits for it.
        """
        self.closing = True
        self.wake()
        if threading.get_ident() not in (self._thread.ident, self._consumer):
            self._thread.join(CLOSE_TIMEOUT_S)
            return not self._thread.is_alive()
        return True

    def wake(self) -> None:
        """End the present wait for messages, or the thread's rest."""
        try:
            self._waker.send(b"!")
        except OSError:
            return  # a full socket is readable already; a closed one has no thread left to wake

    def serve_until(self, find: Callable[[], _Found | None], wait_s: Callable[[], float]) -> _Found:
        """Take turns in the calling thread until ``find`` returns something, and return that.

        ``wait_s`` is called before each turn for the longest wait, and ends this by an exception.
        Errors of the connections are the session's: ``find`` raises them.
        """
        self._consumer = threading.get_ident()
        try:
            if self._sockets.locked():
                self.wake()
            with self._sockets:
                while (found := find()) is None:
                    self._take_turn(max(1, int(1000 * wait_s())))
                return found
        finally:
            self._consumer = None
            self._handed_back_s = time.monotonic()
            if self._session.copied_because is not None:
                self.resume()

    def resume(self) -> None:
        """Have the thread go on at once, without waiting for the consumer to come back."""
        self._handed_back_s = float("-inf")
        self.wake()

    def _take_turn(self, wait_ms: int) -> None:
        try:
            self._loop.turn(wait_ms)
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            if not self._loop.is_waiting:
                reason = f"it was interrupted while it handled messages ({error!r}): make a new one"
                self._fail(ResourceError(f"the loader of {self._session.job.name}: {reason}"))
            raise

    def _run(self) -> None:
        try:
            self._serve()
        except FeederError as error:
            self._fail(error)
        except BaseException as error:
            name = self._session.job.name
            self._fail(ResourceError(f"{name}: the I/O thread failed: {error!r}"))
            raise
        finally:
            with self._sockets:
                self._close()

    def _serve(self) -> None:
        rest = select.poll()
        rest.register(self._loop.wakeup_fd, select.POLLIN)
        while not (self.closing or self._has_failed):
            resume_s = self._handed_back_s + HAND_BACK_S - time.monotonic()
            if self._consumer is not None:
                rest.poll(1000 * HAND_BACK_S)
            elif resume_s <= 0 or rest.poll(1000 * resume_s):
                with self._sockets:
                    if self._consumer is None:  # else it has not noticed that this thread is here
                        self._loop.turn(IDLE_MS)

    def _close(self) -> None:
        try:
            if self.closing:
                self._loop.say_bye()
        finally:
            self._loop.close()
            if self.closing:
                with self._lock:
                    self._session.release_slots()  # before the Bye it would look like a crash

    def _fail(self, error: FeederError) -> None:
        with self._lock:
            self._session.fail(error)
        self._has_failed = True
        self.wake()
