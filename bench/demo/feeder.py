"""The demo's ``feeder`` commands: run beside it, and never outliving it, not even by SIGKILL."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

from feeder.errors import ResourceError
from feeder.process.python_process import child_environment

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5

_LAUNCH: Final = (
    "import sys; from feeder.process.parent_death import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); "
    "from feeder.__main__ import start; del sys.argv[1]; sys.exit(start())"
)


@contextmanager
def _feeder(
    *arguments: str,
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the ``feeder`` command beside us; it is gone when the context is left."""
    with ExitStack() as stack:
        with _signals_held_back():
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-c", _LAUNCH, str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours to pass on
                stdout=stdout,
                stderr=stderr,
                env=child_environment(environment),
            )
            stack.callback(_stop, process)
        yield process


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its processes go with it, by PDEATHSIG
        process.wait()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let SIGINT and SIGTERM count only at the end: none comes between a start and its noting."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for first in came[:1]:
        signal.raise_signal(first)


def run_feeder(*arguments: str) -> None:
    """Run a ``feeder`` command to its end; ResourceError when it fails (it says why on stderr)."""
    with _feeder(*arguments) as process:
        status = process.wait()
    if status != 0:
        raise ResourceError(f"`feeder {' '.join(arguments)}` ended with status {status}")


@contextmanager
def serving(datasets: dict[str, Path], endpoint: str, folder: Path) -> Iterator[str]:
    """Serve ``datasets`` at ``endpoint``; gives the line with which the daemon says it is ready.

    ``folder`` is for the daemon's log. Raises ResourceError with what the daemon said when it is
    not ready in READY_TIMEOUT_S, or does not end well afterwards.
    """
    log = folder / "feeder.log"
    arguments = [text for name, path in datasets.items() for text in ("--data", f"{name}={path}")]
    with ExitStack() as stack:
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.bind(str(folder / "notify"))
        stack.callback((folder / "notify").unlink)
        process = stack.enter_context(
            _feeder(
                "serve",
                *arguments,
                "--bind",
                endpoint,
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context(log.open("wb")),
                environment=os.environ | {"NOTIFY_SOCKET": str(folder / "notify")},
            )
        )
        _await_ready(process, notify, log)
        yield _last_line(log).removeprefix("feeder: ")
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_TIMEOUT_S) != 0:
            raise ResourceError(f"`feeder serve` did not end well; it said: {_last_line(log)}")


def _await_ready(process: "subprocess.Popen[bytes]", notify: socket.socket, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    notify.settimeout(0.1)  # to look whether the process still lives
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            if b"READY=1" in notify.recv(4096).split(b"\n"):
                return
        except TimeoutError:
            continue
    state = "still starting" if process.poll() is None else f"gone with status {process.poll()}"
    raise ResourceError(
        f"`feeder serve` was not ready within {READY_TIMEOUT_S:g} s ({state}); it said: "
        f"{_last_line(log)}"
    )


def _last_line(log: Path) -> str:
    return (log.read_text("utf-8", "replace").strip().splitlines() or ["nothing"])[-1]
