"""A real Slurm on this machine: munge, a controller and four node daemons on loopback addresses.

Everything is in one folder and belongs to this process's user; no file of the system's own Slurm is
read. There are no cgroups: processes are found by their parents (proctrack/linuxproc).
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from bench.daemon import free_port
from tests.support.daemon import DEADLINE_S, command_of, is_alive, wait_until
from tests.support.sources import REPOSITORY

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
NODES = ("n1", "n2", "n3", "n4")
SCRIPT = "docs/slurm/feeder.sbatch"
JOB_DEADLINE_S = 4 * DEADLINE_S
_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"  # where the daemons are, for users too
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"}


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]


class Cluster:
    """A running Slurm; leaving its context ends all of its daemons and cancels its jobs."""

    path = _PATH

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="feeder-slurm-"))  # short, for munge's socket
        self.conf = self.folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._daemons:
            for job in self._jobs():
                subprocess.run(["scancel", job], env=self.environ(), check=False, timeout=60)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self._jobs(), "all jobs have ended")
        for process in reversed(self._daemons.values()):
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environ(self, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return own | {"PATH": _PATH, "SLURM_CONF": str(self.conf)} | more

    def address(self, node: str) -> str:
        return f"127.0.0.{11 + NODES.index(node)}"

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and all processes of its jobs, as when the host fails."""
        daemon = self._daemons.pop(f"slurmd-{node}")
        daemon.kill()
        daemon.wait()
        tasks = set(_with_environ({"SLURMD_NODENAME": node, "SLURM_CONF": str(self.conf)}))
        for process in {*tasks, *(step for task in tasks for step in _steps_above(task))}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def node_state(self, node: str) -> str:
        """In the controller's words; a star: it does not respond."""
        return self.run("sinfo", "--noheader", "--nodes", node, "--format", "%T").strip()

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ(), capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def submit(
        self, shape: Sequence[str], command: Sequence[str], environ: Mapping[str, str], shared: Path
    ) -> "Job":
        """Submit the script with sbatch's options ``shape``; ``shared`` is where it was run."""
        output = Path(tempfile.mkstemp(dir=shared, suffix=".out")[1])
        options = ["--parsable", f"--output={output}"]
        first, *others = " ".join([*options, *shape]).split(" : ")
        words = [word for part in (first, *others) for word in (":", *part.split())][1:]
        done = subprocess.run(
            ["sbatch", *words, str(REPOSITORY / SCRIPT), *command],
            cwd=shared,
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return Job(self, done.stdout.strip(), output)

    def _start_all(self) -> None:
        (self.folder / "munge").mkdir()
        key = self.folder / "munge/key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        names = ("socket", "pid-file", "log-file", "seed-file")
        paths = [f"--{name}={self.folder}/munge/{name}" for name in names]
        self._spawn("munged", "munged", "--foreground", "--force", f"--key-file={key}", *paths)
        wait_until((self.folder / "munge/socket").exists, "munge answers")
        self.conf.write_text(self._configuration())
        (self.folder / "state").mkdir()
        self._spawn("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self._spawn(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        for node in NODES:
            wait_until(lambda n=node: self._is_idle(n), f"{node} is idle")  # type: ignore[misc]

    def _is_idle(self, node: str) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):  # no controller yet
            return self.node_state(node) == "idle"
        return False

    def _configuration(self) -> str:
        host = socket.gethostname()
        user = psutil.Process().username()
        lines = [
            *("ClusterName=feeder", f"SlurmctldHost={host}(127.0.0.1)"),
            *(f"SlurmctldPort={free_port()}", f"SlurmUser={user}", f"SlurmdUser={user}"),
            *("AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge/socket"),
            *(f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool-%n"),
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none"),
            *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"),
            "SlurmdParameters=config_overrides",  # nodes have the CPUs of this file
            "SchedulerParameters=bf_interval=1,sched_interval=2",  # heterogeneous jobs start soon
            *("KillWait=5", "SlurmdTimeout=10", "ReturnToService=2", "JobCompType=jobcomp/none"),
        ]
        for node in NODES:
            own = f"NodeHostname={host} NodeAddr={self.address(node)} Port={free_port()}"
            lines.append(f"NodeName={node} {own} CPUs=4")
        lines.append(f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP")
        return "\n".join(lines) + "\n"

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environ(), stdout=log, stderr=log, start_new_session=True
            )

    def _jobs(self) -> list[str]:
        done = subprocess.run(
            ["squeue", "--noheader", "--format", "%A"],
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()


class Job:
    """A job of the script."""

    def __init__(self, cluster: Cluster, number: str, output: Path) -> None:
        """``output`` is the file of its standard output and error."""
        self.cluster = cluster
        self.number = number
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def folder(self) -> Path:
        return self._output.parent / f"feeder-{self.number}"

    def nodes(self) -> set[str]:
        numbers = f"{self.number},{int(self.number) + 1}"  # the second of a heterogeneous job
        lists = self.cluster.run("squeue", "--noheader", "--jobs", numbers, "--format", "%N")
        names = self.cluster.run("scontrol", "show", "hostnames", ",".join(lists.split()))
        return set(names.split())

    def own_lines(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("feeder: ")]

    def state(self) -> tuple[str, str]:
        shown = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number)
        found = re.search(r"JobState=(\S+)", shown), re.search(r"ExitCode=(\S+)", shown)
        assert found[0] is not None
        assert found[1] is not None
        return found[0][1], found[1][1]

    def wait(self) -> int:
        """Its exit status once it and all of its processes have ended."""
        wait_until(
            lambda: self.state()[0] in _ENDED, f"job {self.number} has ended", JOB_DEADLINE_S
        )
        self.wait_gone()
        return int(self.state()[1].partition(":")[0])

    def wait_gone(self) -> None:
        wait_until(lambda: not self.processes(), f"no process of job {self.number} is left")

    def processes(self, *words: str) -> list[psutil.Process]:
        """On all nodes, with ``words`` in their command line."""
        numbers = {self.number, str(int(self.number) + 1)}  # the second part of a heterogeneous job
        conf = str(self.cluster.conf)
        found = [
            each
            for number in numbers
            for each in _with_environ({"SLURM_JOB_ID": number, "SLURM_CONF": conf})
        ]
        return [process for process in found if set(words) <= set(command_of(process))]

    def kill_feeders(self) -> None:
        """Kill the supervisor of each of its feeders."""
        for process in self.processes("serve", "--bind"):
            process.send_signal(signal.SIGKILL)


def _with_environ(wanted: Mapping[str, str]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if wanted.items() <= process.environ().items() and is_alive(process):
                yield process


def _steps_above(task: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [each for each in task.parents() if each.name().startswith("slurmstepd")]
    return []
