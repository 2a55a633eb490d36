"""A real ``feeder serve`` for the length of a bench: started, awaited, watched, and gone again."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from bench.machine import pinned_to
from feeder.errors import ResourceError

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5
DATASET_NAME: Final = "bench"

_LAUNCH: Final = (
    "import sys; from feeder.parent_death import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); "
    "from feeder.cli import main; sys.exit(main(sys.argv[2:]))"
)
"""PDEATHSIG, so that not even SIGKILL to the bench leaves a daemon behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """What a worker holds in memory, in bytes."""

    own_bytes: int
    """Resident without shared memory: heap, scratch, and the files of its code."""
    slots_bytes: int
    """Resident shared memory: the slots it wrote to, which exist once for all processes."""

    @classmethod
    def of_process(cls, pid: int) -> Self:
        """Read it from /proc/PID/status, which keeps shared memory apart."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        anonymous, file, shared = (
            int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "RssShmem")
        )
        return cls(own_bytes=anonymous + file, slots_bytes=shared)


class Daemon:
    """A running daemon that serves one dataset as DATASET_NAME."""

    def __init__(self, process: "subprocess.Popen[bytes]", ipc: str, tcp: str, log: Path) -> None:
        self.ipc = ipc
        self.tcp = tcp
        self._process = process
        self._log = log

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor and all processes below it."""
        supervisor = psutil.Process(self._process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def busy_s(self) -> float:
        """Return the CPU seconds that all its processes have used so far."""
        times = [process.cpu_times() for process in self.processes()]
        return sum(each.user + each.system for each in times)

    def last_words(self) -> str:
        """Return the last line of its log."""
        return _last_line(self._log)

    def worker_memory(self) -> list[WorkerMemory]:
        """Return the memory of each worker."""
        return [
            WorkerMemory.of_process(process.pid)
            for process in self.processes()
            if "feeder.worker" in process.cmdline()
        ]


@contextmanager
def running_daemon(
    dataset: Path, *, workers: int, cores: frozenset[int], options: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Serve ``dataset`` with ``workers`` on ``cores`` over ipc and tcp; ready when it is given.

    ``options`` are more of the command line; where one is named twice, the later counts.

    Raises ResourceError with what the daemon said when it does not get ready in READY_TIMEOUT_S.
    """
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        ipc = f"ipc://{folder}/node"
        tcp = f"tcp://127.0.0.1:{free_port()}"
        command = [sys.executable, "-c", _LAUNCH, str(os.getpid()), "serve"]
        command += ["--data", f"{DATASET_NAME}={dataset.resolve()}", "--bind", ipc, "--bind", tcp]
        command += ["--workers", str(workers), "--pin", "off", *options]
        log = Path(folder) / "stderr"
        notify_path = Path(folder) / "notify"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
            log.open("wb") as stderr,
            pinned_to(cores),
        ):
            notify.bind(str(notify_path))
            process = subprocess.Popen(
                command,
                env=os.environ | {"NOTIFY_SOCKET": str(notify_path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
            try:
                _await_ready(process, notify, log)
            except BaseException:
                _stop(process)
                raise
        try:
            yield Daemon(process, ipc, tcp, log)
        finally:
            _stop(process)


def free_port() -> int:
    """Return a port of the loopback address that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_ready(process: "subprocess.Popen[bytes]", notify: socket.socket, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    notify.settimeout(0.1)  # to look whether the process still lives
    while time.monotonic() < deadline_s:
        try:
            if b"READY=1" in notify.recv(4096).split(b"\n"):
                return
        except TimeoutError:
            if process.poll() is not None:
                break
    state = "still starting" if process.poll() is None else f"gone with status {process.poll()}"
    raise ResourceError(
        f"`feeder serve` was not ready within {READY_TIMEOUT_S:g} s ({state}); it said: "
        f"{_last_line(log)}"
    )


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its processes go with it, by PDEATHSIG
        process.wait()
