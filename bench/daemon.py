"""``feeder serve`` as the bench and the tests run it: started, awaited, watched and stopped."""

import contextlib
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
from feeder.errors import PeerError, ResourceError
from feeder.process.child import child_environment

from .footprint import busy_s, family
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
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._is_log_ended = False
        self.process = start_process(
            command, environ=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=cwd
        )
        self._reader = threading.Thread(target=self._read_log, name="log", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        return family(self.process.pid)

    def find(self, module: str) -> psutil.Process:
        """Return its first process that runs "feeder.node" or "feeder.worker"."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # dataset checks are short-lived
                if module in process.cmdline():
                    return process
        raise PeerError(f"a feeder has no process of {module}: {self.last_log_line()}")

    def find_line(self, pattern: str, timeout_s: float) -> str | None:
        """Return the first line of the log that matches; None if it does not come in time."""

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

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it, and SIGKILL it if it does not end in STOP_TIMEOUT_S. Idempotent."""
        stop_process(self.process, number, STOP_TIMEOUT_S)
        self.close_log(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the supervisor; its processes go with it, by PDEATHSIG."""
        self.terminate(signal.SIGKILL)

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
        dataset: Path | str,
        *,
        ipc: str,
        tcp: str,
        workers: int,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and await that it is ready; of ``options`` given twice, the later counts.

        ``dataset`` is a folder, or the URL of one in a store, for which ``environ`` has variables.
        """
        self.ipc = ipc
        self.tcp = tcp
        self._dataset = dataset
        data = f"{DATASET_NAME}={dataset if isinstance(dataset, str) else dataset.resolve()}"
        super().__init__(
            feeder_command(
                *("serve", "--data", data, "--bind", ipc, "--bind", tcp),
                *("--workers", str(workers), "--pin", "off", *options),
            ),
            environ=child_environment(environ),
        )
        self.await_ready()

    @property
    def samples(self) -> int:
        """How many a dataset on this machine has."""
        assert isinstance(self._dataset, Path)
        return load_manifest(self._dataset).samples

    def busy_s(self) -> float:
        return busy_s(process.pid for process in self.processes())

    def idle_percent(self, idle_s: float, wait: Callable[[float], None] = time.sleep) -> float:
        """Return its CPU time without requests, in percent of a core, while ``wait`` waits."""
        began_s, busy_before_s = time.monotonic(), self.busy_s()
        wait(idle_s)
        return 100 * (self.busy_s() - busy_before_s) / (time.monotonic() - began_s)


@contextmanager
def sitecustomize(text: str) -> Iterator[None]:
    """Have each Python process that is started in the body run ``text`` first."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        Path(folder, "sitecustomize.py").write_text(text)
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before


@contextmanager
def running_daemon(
    dataset: Path | str,
    *,
    workers: int,
    cores: Collection[int],
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Daemon]:
    """Run a Daemon on ``cores``; arguments and errors as there."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        ipc, tcp = f"ipc://{folder}/node", f"tcp://127.0.0.1:{free_port()}"
        with pinned_to(*cores):
            daemon = Daemon(
                dataset, ipc=ipc, tcp=tcp, workers=workers, options=options, environ=environ
            )
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
