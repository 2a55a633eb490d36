"""Runs a command to a Ray cluster in a child process, with a deadline.

    parent ── the request, then orders: JSON, one a line ──► ray_process (a child, with Ray)
           ◄── what it does before each step that may hang, then the result or an error ──

The child imports Ray, which may hang for minutes on a dead head, print what it likes and end its
process. Here it becomes one result or one line.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any, Final, Self

import msgspec

from feeder import errors
from feeder.cluster.settings import ENVIRONMENT, RESOURCE, Request, explain_missing
from feeder.errors import ConfigError, PeerError
from feeder.process.child import child_environment, start_python
from feeder.process.stop_signals import stop_signals_blocked

_HEAD_AWAY_S: Final = "30"  # then a packing ends with a line; for hosts it may be a day
_READ_BYTES: Final = 1 << 16
_EXIT_MAX_S: Final = 5.0

_LOCAL_ADDRESS: Final = "127.0.0.2"
"""Of loopback: whoever reaches Ray's ports may run code. Ray replaces 127.0.0.1 by the machine's
address in its network."""

_LOCAL_PORT: Final = 6379  # Ray's default


class RayChild:
    """The child process; a context manager that kills it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.doing = "starting"
        self._rest = b""
        self._waiting: list[dict[str, Any]] = []
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- close() closes it
        with stop_signals_blocked():
            self._process = start_python(
                "feeder.cluster.ray_process",
                os.getpid(),
                more={
                    "RAY_DEDUP_LOGS": "0",
                    "RAY_gcs_rpc_server_reconnect_timeout_s": _HEAD_AWAY_S,
                },
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
        with contextlib.suppress(EOFError):  # ``receive`` has the reason
            self.send(request)

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises EOFError, as ``receive``."""
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise EOFError(self._last_line()) from None

    def receive(self, limit_s: float) -> dict[str, Any]:
        """The next result.

        Raises the child's FeederError, EOFError with its last line if it has ended, and
        TimeoutError; ``doing`` is what it did then.
        """
        by_s = time.monotonic() + limit_s
        while True:
            while not self._waiting:
                self._read(by_s)
            message = self._waiting.pop(0)
            if "failed" in message:
                kind = getattr(errors, message["failed"], PeerError)
                raise kind(message["text"])
            if "doing" not in message:
                return message
            self.doing = message["doing"]

    def _read(self, by_s: float) -> None:
        if not self._selector.select(max(0.0, by_s - time.monotonic())):
            raise TimeoutError
        data = os.read(self._output.fileno(), _READ_BYTES)
        if not data:
            raise EOFError(self._last_line())
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._waiting += map(json.loads, lines)

    def close(self) -> None:
        """Kill the child; Ray ends its tasks."""
        with contextlib.suppress(OSError):  # what the child did not read
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

    def _last_line(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _READ_BYTES))
        return last_line(self._log.read().decode("utf-8", "replace"))


def last_line(text: str) -> str:
    """The last line that is not blank: of a log, the reason."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next(filter(None, lines), "it wrote nothing")


def perform(request: Request) -> dict[str, Any]:
    """The result of a request; raises its FeederError, and PeerError at the deadline."""
    with RayChild(msgspec.to_builtins(request)) as child:
        try:
            return child.receive(request.timeout_s)
        except EOFError as end:
            raise PeerError(f"Ray ended the command while {child.doing}: {end}") from None
        except TimeoutError:
            raise PeerError(
                f"no answer within {request.timeout_s:g} s, while {child.doing}: is the head of "
                "the Ray cluster alive (`ray status`)? Feeders that run need no head and go on"
            ) from None


def start_local(address: str, timeout_s: float) -> list[str]:
    """Start a head with the resource, for this machine alone; the lines to print. FeederError."""
    if address:
        raise ConfigError(f"--local starts a cluster here, and {address} names one: leave one out")
    command = [
        sys.executable,
        "-P",
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--node-ip-address={_LOCAL_ADDRESS}",
        f"--port={_LOCAL_PORT}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--resources={json.dumps({RESOURCE: 1})}",
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
            env=child_environment(ENVIRONMENT),
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"`ray start --head` did not end within {timeout_s:g} s") from None
    output = done.stdout.decode("utf-8", "replace")
    if "No module named ray" in output:
        raise explain_missing()
    if done.returncode:
        raise PeerError(f"`ray start --head` failed: {last_line(output)}")
    return [
        f"Ray was started at {_LOCAL_ADDRESS}:{_LOCAL_PORT}, for this machine only, with",
        *(f"  {name}={value}" for name, value in ENVIRONMENT.items()),
    ]
