"""The real daemon for tests, with its log and processes."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import psutil
import pytest

from bench.daemon import ENDPOINTS_LINE, READY_LINE, DaemonProcess
from bench.line_process import LineProcess
from feeder.client.stats import request_counters
from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.support.raw_client import DEADLINE_S, Arrived, Key, wait_until
from tests.support.raw_client import RawClient as RawClient
from tests.support.sources import REPOSITORY, call_feeder, feeder_command, make_source, pack

SAMPLES = 53


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6 on the loopback device")
"""For tests that connect over IPv6, which containers often lack."""


def resume(process: psutil.Process) -> None:
    """Send SIGCONT to a stopped process, unless the daemon has replaced it meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()


def happens_within(limit_s: float, attempt: Callable[[], float]) -> None:
    """Assert that one of four attempts, each of which returns its seconds, is below ``limit_s``.

    A busy machine may delay some attempts; code that is too slow fails all of them.
    """
    took_s = [attempt()]
    while took_s[-1] >= limit_s:
        assert len(took_s) < 4, f"it took {took_s} s, never less than {limit_s:g} s"
        took_s.append(attempt())


def failed_batches(counters: Mapping[str, Any]) -> int:
    return sum(
        value for name, value in counters.items() if name.partition(".")[0] == "batches_failed"
    )


def pack_small(folder: Path) -> Path:
    """Pack a dataset of SAMPLES small images, a prime number, in 5 shards; return its folder."""
    pack(make_source(folder / "source", SAMPLES, side=72), folder / "dataset", shards=5)
    return folder / "dataset"


class Daemon(DaemonProcess):
    """A running ``feeder serve``; its context ends it and checks that no process is left."""

    def __init__(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str] | None = None,
        is_ready: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it, and wait for its ready line unless ``is_ready`` is false.

        ``prefix`` is a command that executes its arguments in its own process.
        """
        assert "--bind" in arguments, "the default port is shared by all tests that run at a time"
        self._family: set[psutil.Process] = set()
        super().__init__(
            [*prefix, *feeder_command("serve", *arguments)],
            environ={**os.environ, **(environ or {})},
            cwd=REPOSITORY,
        )
        if is_ready:
            try:
                last = self.wait_line(READY_LINE)
            except BaseException:
                self.close()
                raise
            report = self.lines[: self.lines.index(last) + 1]
            self.ready = "".join(report)
            """The report of the start, up to the line that says that it is ready."""
            listed = [line for line in report if line.startswith(ENDPOINTS_LINE)]
            self.endpoints = re.findall(r"(?:tcp|ipc)://[^,\s]+", "".join(listed))
            self.family()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        survivors = self.close()
        if kind is None:
            assert not survivors, f"processes outlived the daemon: {survivors}"

    @property
    def endpoint(self) -> str:
        return str(self.endpoints[0])

    @property
    def node(self) -> psutil.Process:
        return node_processes(psutil.Process(self.process.pid))[0]

    def workers(self) -> list[psutil.Process]:
        return [
            child for child in self.node.children() if not runs(child, "feeder.dataset.first_read")
        ]

    def family(self) -> set[psutil.Process]:
        """All processes that the daemon has now, and those of earlier calls."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family.update(self.processes())
        return self._family

    def counters(self) -> dict[str, Any]:
        return dict(request_counters(self.endpoint, DEADLINE_S))

    def wait_line(self, pattern: str, deadline_s: float = DEADLINE_S) -> str:
        """Return the first line of its log that matches, once there is one."""
        line = self.find_line(pattern, deadline_s)
        assert line is not None, f"no line {pattern!r} in:\n" + "".join(self.lines)
        return line

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Signal it; return its exit status and the seconds that it took to end."""
        self.family()
        began_s = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        return status, time.monotonic() - began_s

    def wait_gone(self) -> None:
        for process in self._family:
            wait_until(lambda p=process: not is_alive(p), f"{process} is gone")  # type: ignore[misc]

    def close(self) -> list[psutil.Process]:
        """End it; return the processes that outlived it, which are killed."""
        self.family()
        if self.is_running:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # a failed test may have left it stopped
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DEADLINE_S)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(map(is_alive, self._family)), "all are gone")
        survivors = [process for process in self._family if is_alive(process)]
        for process in survivors:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        assert self.close_log(DEADLINE_S), f"{_holders(self.process.stderr)} have its stderr"
        return survivors


def serve(
    packed: Path | str,
    *more: str | Path,
    bind: str = "tcp://127.0.0.1:0",
    workers: int = 2,
    **settings: Any,
) -> Daemon:
    """A daemon that serves ``packed`` as d; ``settings`` are Daemon's."""
    options = ("--data", f"d={packed}", "--bind", bind, "--workers", str(workers))
    return Daemon(*options, *more, **settings)


def customised(folder: Path, code: str) -> dict[str, str]:
    """Return an environment in which every Python runs ``code`` first, as its sitecustomize."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    former = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [former])])}


def _holders(pipe: IO[bytes] | None) -> list[str]:
    assert pipe is not None
    inode = f"pipe:[{os.fstat(pipe.fileno()).st_ino}]"
    holders = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if inode in map(os.readlink, Path(f"/proc/{process.pid}/fd").iterdir()):
                holders.append(f"{process} {process.cmdline()}")
    return holders


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended; a zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def small_recipe(
    split: Literal["train", "val"] = "train", *, batch_size: int = 10, **fields: Any
) -> Recipe:
    fields = {"image_size": 32, "resize_size": 36} | fields
    return Recipe.for_split(split, batch_size=batch_size, **fields)


def check_batch(
    dataset: Dataset, recipe: Recipe, key: Key, arrived: Arrived, *, seed: int = 3
) -> None:
    """Compare a batch with the same one made in this process, to the last bit."""
    epoch, index = key
    plan = recipe.plan_epoch(dataset.layout, seed=seed, epoch=epoch)
    ids = plan.samples(index)
    real = len(ids)
    pixels = np.zeros_like(arrived.pixels)
    labels = np.full(recipe.batch_size, -100, np.int64)
    SampleReader(dataset, recipe).fill(
        ids, seed=seed, epoch=epoch, pixels=pixels[:real], labels=labels[:real]
    )
    assert arrived.valid == real
    assert arrived.sample_ids.tolist() == ids.tolist() + [-1] * (recipe.batch_size - real)
    assert arrived.labels.tolist() == labels.tolist()
    assert np.array_equal(arrived.pixels, pixels)


def node_processes(supervisor: psutil.Process) -> list[psutil.Process]:
    """Return a supervisor's node processes, without its processes that check datasets."""
    return [child for child in supervisor.children() if runs(child, "feeder.node")]


def runs(process: psutil.Process, module: str) -> bool:
    """Whether a process lives and has a module of ours, or another word, in its command line."""
    return module in command_of(process)


def command_of(process: psutil.Process) -> list[str]:
    """Return a process's command line; [] when it has ended, reaped or not."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def run_status(endpoint: str) -> dict[str, Any]:
    """Return what ``feeder status --counters --json`` prints."""
    return dict(json.loads(call_feeder("status", endpoint, "--counters", "--json").stdout))


@contextlib.contextmanager
def listening_port() -> Iterator[int]:
    """Hold a tcp port of the loopback interface."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


@contextlib.contextmanager
def client_process(endpoint: str, recipe: Recipe, keys: list[Key]) -> Iterator[LineProcess]:
    """A process that has asked for batches, and reads no more than the first chunk.

    What exceeds its small buffers, and the daemon's send buffer, stays with the daemon. It is
    killed in the end, because a test may have stopped it.
    """
    program = (
        "import sys, json\n"
        "from feeder.plan.recipe import Recipe\n"
        "from tests.support.daemon import RawClient\n"
        "import msgspec\n"
        "endpoint, recipe, keys = sys.argv[1:]\n"
        "client = RawClient(endpoint, receive_mark=1, receive_bytes=65536)\n"
        "client.hello(msgspec.json.decode(recipe, type=Recipe), window=len(json.loads(keys)))\n"
        "client.want(*map(tuple, json.loads(keys)))\n"
        "client.receive()\n"
        "print('asked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    text = msgspec.json.encode(recipe).decode()
    command = [sys.executable, "-c", program, endpoint, text, json.dumps(keys)]
    client = LineProcess(command, cwd=REPOSITORY)
    try:
        assert client.next_line(DEADLINE_S) == "asked"
        yield client
    finally:
        client.kill()
