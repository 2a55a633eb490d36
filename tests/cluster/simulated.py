"""A Ray cluster of simulated hosts: real ``ray start`` processes, each on a loopback address.

A host is ``ray start --block`` with all processes below it: raylet, agents, actors, daemons. It can
be killed, stopped and resumed as a whole. Importing this module does not import Ray.
"""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from bench.daemon import free_port
from feeder.cluster.settings import ENVIRONMENT
from feeder.process.child import child_environment
from tests.support.daemon import wait_until
from tests.support.sources import REPOSITORY, feeder_command

START_S = 60.0
_STORE_BYTES = 80_000_000
_FIRST = 20
"""The last part of the head's address; hosts follow."""


class SimulatedHost:
    """One host; ``address`` is its Ray node's."""

    def __init__(
        self,
        address: str,
        *options: str,
        environ: Mapping[str, str] | None = None,
        instead: Mapping[Path, Path] | None = None,
        log: Path,
    ) -> None:
        """``instead`` shows it other files or folders at the paths that are its keys."""
        self.address = address
        self._stopped: list[psutil.Process] = []
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *_with_mounts(instead or {}),
                    *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
                    *(f"--node-ip-address={address}", "--disable-usage-stats"),
                    *(f"--object-store-memory={_STORE_BYTES}", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment({**ENVIRONMENT, **(environ or {})}),
                process_group=0,
            )

    def processes(self) -> list[psutil.Process]:
        """All processes of the host, the topmost first."""
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def daemons(self) -> list[psutil.Process]:
        """The supervisors of its feeders."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if {"feeder", "serve"} <= {*process.cmdline()}:
                    found.append(process)
        return found

    def kill(self) -> None:
        """SIGKILL everything at once, as a loss of power would."""
        self._signal(signal.SIGKILL)
        self.process.wait(START_S)

    def stop(self) -> None:
        """SIGSTOP everything, as a hanging machine would."""
        self._stopped = self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT what was stopped."""
        for process in self._stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self._stopped = []

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        family = self.processes()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return family


def _with_mounts(instead: Mapping[Path, Path]) -> list[str]:
    """The beginning of a command that sees other files; empty where there are none."""
    mounts = [shlex.join(["mount", "--bind", str(to), str(at)]) for at, to in instead.items()]
    if not mounts:
        return []
    return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]


class SimulatedCluster:
    """A head without the resource, and hosts with it; its context ends all of them."""

    def __init__(self, folder: Path, *, head_environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.lookup_port = free_port()
        # Ray's socket paths must be short.
        self._sockets = tempfile.TemporaryDirectory(prefix="ray-")
        self.head_address = f"127.0.0.{_FIRST}"
        self.address = f"{self.head_address}:{self.port}"
        self._head_environ = head_environ
        self._family: set[psutil.Process] = set()
        self.hosts: dict[int, SimulatedHost] = {}
        self.head = self._start_head()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._remember()
        for host in (*self.hosts.values(), self.head):
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.kill()
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(OSError):
            self._sockets.cleanup()

    def restart_head(self) -> None:
        # Ray also sees the other hosts' processes, and would take the head for running.
        (Path(self._sockets.name) / "ray_current_cluster").unlink(missing_ok=True)
        self.head = self._start_head()

    def add(self, *numbers: int, instead: Mapping[Path, Path] | None = None) -> None:
        options = [f"--address={self.address}", "--num-cpus=1"]
        options.append(f"--resources={json.dumps({'feeder': 1})}")
        for number in numbers:
            address = f"127.0.0.{_FIRST + number}"
            log = self.folder / f"host{number}.log"
            self.hosts[number] = SimulatedHost(address, *options, instead=instead, log=log)
            # One after the other: at the same time, hosts of a machine choose the same socket.
            _await_start(log)
        self._remember()

    def daemons(self) -> list[psutil.Process]:
        """The supervisors of all feeders."""
        return [each for host in self.hosts.values() for each in host.daemons()]

    def host_of(self, slot: Mapping[str, Any]) -> SimulatedHost:
        return next(each for each in self.hosts.values() if each.address == slot["address"])

    def command(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        name, *rest = map(str, arguments)
        done = subprocess.run(
            feeder_command("cluster", name, "--address", self.address, *rest),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )
        self._remember()
        return done

    def up(self, config: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
        """``feeder cluster up`` that succeeds."""
        lookup = ("--lookup", str(self.lookup_port))
        done = self.command("up", "--config", config, "--timeout", "90", *lookup, *options)
        assert done.returncode == 0, done.stderr
        return done

    def status(self) -> dict[str, Any]:
        done = self.command("status", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def wait_status(self, holds: Any, what: str, deadline_s: float = 60.0) -> dict[str, Any]:
        give_up_s = time.monotonic() + deadline_s
        while True:
            status = self.status()
            if holds(status):
                return status
            assert time.monotonic() < give_up_s, f"not within {deadline_s:g} s: {what}: {status}"

    def _start_head(self) -> SimulatedHost:
        log = self.folder / "head.log"
        log.write_bytes(b"")
        head = SimulatedHost(
            self.head_address,
            *("--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false"),
            f"--temp-dir={self._sockets.name}",
            environ=self._head_environ,
            log=log,
        )
        _await_start(log)
        return head

    def _remember(self) -> None:
        for host in (*self.hosts.values(), self.head):
            self._family.update(host.processes())


def _await_start(log: Path) -> None:
    wait_until(lambda: b"Ray runtime started" in log.read_bytes(), f"{log}", START_S)
