"""Daemon threads that do a loop's work, and give the results back to the loop."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

Result = object
End = Callable[[Result, Exception | None], None]


class Results:
    """What threads have done; ``wake_fd`` is readable while there is some."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: deque[Callable[[], None]] = deque()

    def add(self, finish: Callable[[], None]) -> None:
        """Called in a thread."""
        self._done.append(finish)
        os.eventfd_write(self.wake_fd, 1)

    def take(self) -> None:
        """Handle all results, in the loop's thread."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
        while self._done:
            self._done.popleft()()


class Threads:
    """Up to ``most`` threads, started when they are needed; they end with the process."""

    def __init__(self, most: int, results: Results) -> None:
        self.most = most
        self.busy = 0
        self._threads = 0
        self._results = results
        self._work: queue.SimpleQueue[tuple[Callable[[], Result], End]] = queue.SimpleQueue()

    def start(self, work: Callable[[], Result], end: End) -> None:
        """Do ``work``; ``end`` gets its result or its exception, and raises what it does not
        expect, in the loop's thread."""
        self.busy += 1
        self._work.put((work, end))
        if self._threads < min(self.busy, self.most):
            self._threads += 1
            threading.Thread(target=self._run, name="transfer", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, end = self._work.get()
            result, error = None, None
            try:
                result = work()
            except Exception as caught:  # noqa: BLE001 -- ``end`` gets it
                error = caught
            self._results.add(partial(self._finish, end, result, error))

    def _finish(self, end: End, result: Result, error: Exception | None) -> None:
        self.busy -= 1
        end(result, error)
