"""The real daemon for tests, with its log and processes; and a client that can misbehave."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import psutil
import pytest
import zmq
from numpy.typing import NDArray

from bench.daemon import ENDPOINTS_LINE, READY_LINE, DaemonProcess
from bench.line_process import LineProcess
from feeder.client.stats import request_counters
from feeder.dataset.opened import Dataset
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.messages import (
    Bye,
    Chunk,
    ClientMessage,
    Hello,
    NodeMessage,
    Ping,
    Refused,
    Request,
    Welcome,
    decode_from_node,
    encode,
)
from tests.support.sources import REPOSITORY, feeder_command, make_source, pack

Key = tuple[int, int]
SAMPLES = 53
DEADLINE_S = 60.0
"""For events that are expected soon: generous, because test machines are busy."""


def wait_until(holds: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return once ``holds()`` is true; AssertionError with ``what`` if it is not in time."""
    give_up_s = time.monotonic() + deadline_s
    never = threading.Event()
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {deadline_s:g} s: {what}"
        never.wait(0.01)


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
    """Return how many batches could not be made, for any reason."""
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
        """The first endpoint that it bound."""
        return str(self.endpoints[0])

    @property
    def node(self) -> psutil.Process:
        """The first node process."""
        return node_processes(psutil.Process(self.process.pid))[0]

    def workers(self) -> list[psutil.Process]:
        """The workers of the first node process."""
        return [
            child for child in self.node.children() if not runs(child, "feeder.dataset.first_read")
        ]

    def family(self) -> set[psutil.Process]:
        """All processes that the daemon has now, and those of earlier calls."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family.update(self.processes())
        return self._family

    def counters(self) -> dict[str, Any]:
        """The counters of the first node process."""
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
        """Return once all processes of the daemon have ended."""
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


def _holders(pipe: IO[bytes] | None) -> list[str]:
    """Return the processes that have an end of a pipe open."""
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


@dataclass
class Arrived:
    """The received rows of a batch: pixels int8 (rows, S, S, 3), labels and ids int64 (rows,)."""

    pixels: NDArray[np.int8]
    labels: NDArray[np.int64]
    sample_ids: NDArray[np.int64]
    missing: int
    valid: int = -1

    def add(self, chunk: Chunk, frames: list[bytes]) -> None:
        rows = slice(chunk.first, chunk.first + chunk.images)
        shape = (chunk.images, *self.pixels.shape[1:])
        self.pixels[rows] = np.frombuffer(frames[0], np.int8).reshape(shape)
        self.labels[rows] = np.frombuffer(frames[1], np.int64)
        self.sample_ids[rows] = np.frombuffer(frames[2], np.int64)
        self.missing -= chunk.images
        self.valid = chunk.valid


class RawClient:
    """One DEALER socket that sends what the test asks for."""

    def __init__(self, endpoint: str, receive_mark: int = 1000, receive_bytes: int = -1) -> None:
        """Connect; the socket queues ``receive_mark`` messages, ``receive_bytes`` in the kernel.

        Without a fixed size (-1) Linux lets a connection's receive buffer grow to many megabytes.
        """
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, receive_mark)
        self.socket.set(zmq.RCVBUF, receive_bytes)
        self.socket.connect(endpoint)
        self.recipe: Recipe | None = None
        self.session = 0
        self.batches: dict[Key, Arrived] = {}
        self.others: list[NodeMessage] = []

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def send(self, message: ClientMessage) -> None:
        """Send a valid message."""
        self.socket.send(encode(message))

    def receive(self, deadline_s: float = DEADLINE_S) -> NodeMessage:
        """Return the next message; a chunk's frames go into ``batches``."""
        assert self.socket.poll(int(deadline_s * 1000)), f"no message within {deadline_s:g} s"
        header, *frames = self.socket.recv_multipart()
        message = decode_from_node(header)
        if isinstance(message, Chunk):
            assert message.session == self.session
            self.batches[message.epoch, message.index].add(message, frames)
        return message

    def hello(self, recipe: Recipe, *, window: int = 4, seed: int = 3, dataset: str = "d") -> Any:
        """Send a Hello; return the Welcome or Refused."""
        self.recipe = recipe
        self.send(Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client="test"))
        answer = self.receive()
        while not isinstance(answer, Welcome | Refused) or _is_of_no_session(answer):
            answer = self.receive()  # messages to the session that this Hello replaces
        if isinstance(answer, Welcome):
            self.session = answer.session
        return answer

    def want(self, *keys: Key, release: tuple[Key, ...] = ()) -> None:
        """Ask for batches and release others."""
        assert self.recipe is not None
        rows, size = self.recipe.batch_size, self.recipe.image_size
        for key in keys:
            self.batches[key] = Arrived(
                np.full((rows, size, size, 3), 99, np.int8),
                np.full(rows, -7, np.int64),
                np.full(rows, -7, np.int64),
                rows,
            )
        self.send(Request(session=self.session, want=keys, release=release))

    def take(self, key: Key, deadline_s: float = DEADLINE_S) -> Arrived:
        """Return a requested batch once all of it has arrived."""
        while self.batches[key].missing > 0:
            message = self.receive(deadline_s)
            if not isinstance(message, Chunk):
                self.others.append(message)
        assert self.batches[key].missing == 0, "rows came twice"
        return self.batches[key]

    def ping(self) -> None:
        """Send a Ping."""
        self.send(Ping(session=self.session))

    def await_no_session(self) -> None:
        """Ping until the node replies that it has no such session; pings may be lost."""

        def is_unknown() -> bool:
            self.ping()
            while self.socket.poll(100):
                if _is_of_no_session(self.receive()):
                    return True
            return False

        wait_until(is_unknown, "the session is unknown")

    def bye(self) -> None:
        """End the session."""
        self.send(Bye(session=self.session))


def _is_of_no_session(message: NodeMessage) -> bool:
    return isinstance(message, Refused) and message.code == "unknown-session"


def small_recipe(
    split: Literal["train", "val"] = "train", *, batch_size: int = 10, **fields: Any
) -> Recipe:
    """Return a recipe of small images."""
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


def open_fds(process: psutil.Process) -> int:
    """Return how many descriptors a process has open."""
    return int(process.num_fds())


def run_status(endpoint: str) -> dict[str, Any]:
    """Return what ``feeder status --counters --json`` prints."""
    done = subprocess.run(
        feeder_command("status", endpoint, "--counters", "--json"),
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    return dict(json.loads(done.stdout))


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
