"""A real ``feeder serve`` for the length of a bench: started, awaited, watched, and gone again."""

import errno
import os
import random
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
from feeder.process.python_process import child_environment

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5
DATASET_NAME: Final = "bench"

_LAUNCH: Final = (
    "import sys; from feeder.process.parent_death import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); "
    "from feeder.__main__ import start; del sys.argv[1]; sys.exit(start())"
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
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
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

    @property
    def is_running(self) -> bool:
        """Whether its supervisor lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the supervisor, and number of the session that all its processes are in."""
        return self._process.pid

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

    def stop(self) -> None:
        """End it: by SIGTERM, and by SIGKILL if that takes too long. Idempotent."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the supervisor; its processes go with it, by PDEATHSIG."""
        self._process.kill()
        self._process.wait()

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
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as name:
        folder = Path(name)
        tcp = f"tcp://127.0.0.1:{free_port()}"
        with pinned_to(cores):
            daemon = start_daemon(dataset, folder, tcp=tcp, workers=workers, options=options)
        try:
            yield daemon
        finally:
            daemon.stop()


def start_daemon(
    dataset: Path, folder: Path, *, tcp: str, workers: int, options: Sequence[str] = ()
) -> Daemon:
    """Start a daemon that keeps its ipc socket and its log in ``folder``; return it when ready.

    One that has ended can be followed by another in the same folder. Raises as ``running_daemon``.
    """
    ipc = f"ipc://{folder}/node"
    command = [sys.executable, "-P", "-c", _LAUNCH, str(os.getpid()), "serve"]
    command += ["--data", f"{DATASET_NAME}={dataset.resolve()}", "--bind", ipc, "--bind", tcp]
    command += ["--workers", str(workers), "--pin", "off", *options]
    log, notify_path = folder / "stderr", folder / "notify"
    notify_path.unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
        log.open("ab") as stderr,
    ):
        notify.bind(str(notify_path))
        process = subprocess.Popen(
            command,
            env=child_environment({"NOTIFY_SOCKET": str(notify_path)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        daemon = Daemon(process, ipc, tcp, log)
        try:
            _await_ready(process, notify, log)
        except BaseException:
            daemon.stop()
            raise
    return daemon


def free_port() -> int:
    """Return a port of the loopback address that nobody has at the moment.

    The daemon that it is for starts later, maybe again and again: so it is none of those that Linux
    gives, unless told otherwise, to whoever asks for any.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
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
    return (log.read_text("utf-8", "replace").strip().splitlines() or ["nothing"])[-1]
