"""A pool like ``feeder.pack.task_pool``'s whose tasks run on the hosts of a Ray cluster.

    feeder pack ── lines of JSON ──► pack_driver (a child, with Ray) ──► Ray tasks on any host
                ◄── {"kind": "report" | "done" | "error", "number": N, …}

Tasks read and write a folder that all hosts share. Ray repeats those whose host is lost; they write
their files atomically, so a repeated one changes nothing. A task's reports arrive with its end, so
that a repeated task is not counted twice.
"""

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final, Self

from feeder.errors import PeerError, ResourceError
from feeder.pack.task_pool import Message, raise_error
from feeder.process.child import start_python
from feeder.process.stop_signals import stop_signals_blocked

CONNECT_MAX_S: Final = 30.0
STALL_S: Final = 3600.0
"""Without the end of any task: longer than a part takes whose host is lost at its end."""

_HEAD_AWAY_S: Final = "30"  # then the packing ends with a line; for hosts it may be a day
_READ_BYTES: Final = 1 << 16
_WAIT_S: Final = 1.0
_EXIT_MAX_S: Final = 5.0


class RayTaskPool:
    """Runs one module's tasks on a Ray cluster; a context manager that ends them all."""

    def __init__(
        self, module: str, setup: Mapping[str, Any], *, jobs: int, address: str, tasks: int
    ) -> None:
        """Join the cluster; PeerError and ResourceError where that is impossible.

        ``tasks`` run at once, as many as the cluster has CPUs where that is 0. ``jobs``, the number
        of this host's processes, is not used.
        """
        self._tasks = tasks
        self._rest = b""
        self._waiting: list[Message] = []
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- close() closes it
        with stop_signals_blocked():
            self._process = start_python(
                "feeder.cluster.pack_driver",
                os.getpid(),
                more={"RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_AWAY_S},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                process_group=0,  # the terminal's Ctrl-C is for the parent
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        try:
            self._send({"address": address, "module": module, "setup": dict(setup)})
            joined = self._next(CONNECT_MAX_S, f"joining the Ray cluster at {address or 'auto'}")
            if joined["kind"] == "error":
                raise_error(joined)
            self._tasks = tasks or max(1, int(joined["cpus"]))
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Iterable[Message]) -> Iterator[tuple[int, str, Message]]:
        """As ``TaskPool.run``. PeerError when Ray is lost; finished parts are kept then."""
        waiting = enumerate(tasks)
        running = 0
        while True:
            while running < self._tasks and (numbered := next(waiting, None)) is not None:
                self._send({"number": numbered[0], "task": numbered[1]})
                running += 1
            if not running:
                return
            message = self._next(STALL_S, "waiting for a task")
            number, kind = int(message.pop("number")), str(message.pop("kind"))
            if kind == "error":
                raise_error(message)
            running -= kind == "done"
            yield number, kind, message

    def close(self) -> None:
        """End the driver; Ray ends its tasks."""
        with contextlib.suppress(OSError):  # what the driver did not read
            self._input.close()
        self._process.kill()
        self._process.wait(_EXIT_MAX_S)
        self._selector.close()
        self._output.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: Message) -> None:
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _next(self, limit_s: float, doing: str) -> Message:
        """Return the next message of the driver."""
        by_s = time.monotonic() + limit_s
        while not self._waiting:
            if time.monotonic() >= by_s:
                raise PeerError(
                    f"Ray did not answer within {limit_s:g} s, {doing}: see `ray status`; finished "
                    "parts are kept, run the same command again"
                )
            if not self._selector.select(_WAIT_S):
                continue
            data = os.read(self._output.fileno(), _READ_BYTES)
            if not data:
                raise self._death()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._waiting += map(json.loads, lines)
        return self._waiting.pop(0)

    def _death(self) -> ResourceError:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no reason")
        return ResourceError(
            f"the connection to Ray was lost ({last}); finished parts are kept, run the same "
            "command again"
        )
