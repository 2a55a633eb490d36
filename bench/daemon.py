"""``feeder serve`` as the bench and the tests run it: started, awaited, watched and stopped."""

import errno
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from feeder.dataset.manifest import load_manifest
from feeder.errors import ResourceError
from feeder.process.child import child_environment

from .line_process import start_process, stop_process
from .machine import pinned_to

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 8.0  # the daemon promises 5
READY_LINE: Final = r"^feeder: ready, "
ENDPOINTS_LINE: Final = "feeder: endpoints of node process "
DATASET_NAME: Final = "bench"

_LAUNCH: Final = (
    "import sys; from feeder.process.child import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); "
    "from feeder.__main__ import start; del sys.argv[1]; sys.exit(start())"
)
"""PDEATHSIG, so that not even SIGKILL to the bench leaves a daemon behind."""


def feeder_command(*arguments: str) -> list[str]:
    """Return a ``feeder`` command line that dies with this process."""
    return [sys.executable, "-P", "-c", _LAUNCH, str(os.getpid()), *arguments]


class DaemonProcess:
    """A ``feeder serve`` and its log, which a thread reads from standard error as it comes."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start it; without ``environ`` in ``child_environment()``."""
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._is_log_ended = False
        self.process = start_process(
            command,
            env=child_environment() if environ is None else environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
        self._reader = threading.Thread(target=self._read_log, name="log", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether its supervisor lives."""
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor and all processes below it."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def find_line(self, pattern: str, timeout_s: float) -> str | None:
        """Return the first line of the log that matches, once it is there.

        None when it is not there in time, or the log ends without it.
        """

        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._is_log_ended, timeout_s)
            return found()

    def await_ready(self) -> str:
        """Return the line that reports readiness.

        When it does not come in READY_TIMEOUT_S, the daemon is stopped and ResourceError raised
        with the last line of the log.
        """
        try:
            line = self.find_line(READY_LINE, READY_TIMEOUT_S)
        except BaseException:
            self.terminate()
            raise
        if line is not None:
            return line.strip()
        is_late = not self._is_log_ended
        self.terminate()
        state = "still starting" if is_late else f"it ended with status {self.process.returncode}"
        raise ResourceError(
            f"`feeder serve` was not ready within {READY_TIMEOUT_S:g} s ({state}); "
            f"its last log line: {self.last_log_line()}"
        )

    def last_log_line(self) -> str:
        """Return the last line of its log that is not empty, or "none"."""
        with self._changed:
            return next((line.strip() for line in reversed(self.lines) if line.strip()), "none")

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL if it does not end in STOP_TIMEOUT_S. Idempotent."""
        stop_process(self.process, signal.SIGTERM, STOP_TIMEOUT_S)
        self.close_log(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the supervisor; its processes go with it, by PDEATHSIG."""
        stop_process(self.process, signal.SIGKILL)
        self.close_log(STOP_TIMEOUT_S)

    def close_log(self, timeout_s: float) -> bool:
        """Read the rest of the log; return whether its end was reached in time."""
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            return False  # a process that outlives the daemon has it open
        assert self.process.stderr is not None
        self.process.stderr.close()
        return True

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.decode("utf-8", "backslashreplace"))
                self._changed.notify_all()
        with self._changed:
            self._is_log_ended = True
            self._changed.notify_all()


class Daemon(DaemonProcess):
    """A daemon that serves one dataset as DATASET_NAME over ipc and tcp."""

    def __init__(
        self,
        dataset: Path,
        *,
        ipc: str,
        tcp: str,
        workers: int,
        options: Sequence[str] = (),
    ) -> None:
        """Start it; returns when it is ready, raises as ``await_ready``.

        ``options`` are further arguments; where one is given twice, the later counts.
        """
        self.ipc = ipc
        self.tcp = tcp
        self._dataset = dataset
        data = f"{DATASET_NAME}={dataset.resolve()}"
        super().__init__(
            feeder_command(
                *("serve", "--data", data, "--bind", ipc, "--bind", tcp),
                *("--workers", str(workers), "--pin", "off", *options),
            )
        )
        self.await_ready()

    @property
    def samples(self) -> int:
        """The number of samples of its dataset."""
        return load_manifest(self._dataset).samples

    def busy_s(self) -> float:
        """Return the CPU seconds that all its processes have used so far."""
        times = [process.cpu_times() for process in self.processes()]
        return sum(each.user + each.system for each in times)

    def idle_percent(self, idle_s: float, wait: Callable[[float], None] = time.sleep) -> float:
        """Return the CPU time that it uses without requests, in percent of a core.

        ``wait`` lets ``idle_s`` pass, or a little more.
        """
        began_s, busy_before_s = time.monotonic(), self.busy_s()
        wait(idle_s)
        return 100 * (self.busy_s() - busy_before_s) / (time.monotonic() - began_s)

    def worker_bytes(self) -> int:
        """Return the most that a worker holds in memory without shared memory, which exists once.

        That is heap, scratch and the files of its code; the slots that it wrote to are left out.
        """
        return max(
            _own_bytes(process.pid)
            for process in self.processes()
            if "feeder.worker" in process.cmdline()
        )


def _own_bytes(pid: int) -> int:
    """Return what is resident of a process without shared memory, by /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))


@contextmanager
def running_daemon(
    dataset: Path, *, workers: int, cores: Collection[int], options: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Run a Daemon on ``cores``; arguments and errors as there."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        ipc, tcp = f"ipc://{folder}/node", f"tcp://127.0.0.1:{free_port()}"
        with pinned_to(*cores):
            daemon = Daemon(dataset, ipc=ipc, tcp=tcp, workers=workers, options=options)
        try:
            yield daemon
        finally:
            daemon.terminate()


def free_port() -> int:
    """Return a free port of the loopback address.

    The daemon that it is for starts later, perhaps more than once, so the port is outside Linux's
    default range of ephemeral ports (32768 and up).
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
