"""Real daemons at a fixed rate on this machine, and real ranks: what the model is compared with."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil
from PIL import Image

from feeder.errors import PeerError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.plan.recipe import Recipe
from feeder.process.child import child_environment, python_command

from ..daemon import DaemonProcess, free_port
from ..line_process import LineProcess
from .paced_worker import CHUNK_TIME
from .real_rank import RankOrders, RankRecord
from .tally import Timeline

IMAGE_PX: Final = 48
"""Of the pictures and of the batches: decoding them leaves the cores idle."""

SEED: Final = 7
WARM_UP_S: Final = 1.5
"""Until queues are full."""

AFTER_KILL_S: Final = 10.0
_OPEN_S: Final = 60.0
_CLASSES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Daemons of one rate, and their ranks."""

    daemons: int
    workers: int
    chunk_s: float
    """What a worker takes for a chunk."""
    chunk_images: int
    ranks: int
    window: int
    batch_size: int
    lanes: int
    any_node: bool = False
    """Ask any node for any batch (``owners.asking_any_node``)."""

    @property
    def recipe(self) -> Recipe:
        """The ranks' recipe."""
        return Recipe.for_split(
            "train", batch_size=self.batch_size, image_size=IMAGE_PX, lanes=self.lanes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What real daemons and ranks did."""

    images_s: float
    timeline: Timeline
    """From the time on when the queues are full."""
    killed_s: float
    """When a daemon was killed, on the time line."""
    end_s: float
    asked: Sequence[tuple[tuple[int, int], str]]
    """Each batch that was first requested in the window, and the node process."""
    nodes: Sequence[str]
    """The names of all node processes, in the order of the list of endpoints."""
    hedged: int
    idle: float
    """Share of the machine's CPU time that was idle."""
    rank_fds: int
    links: int
    node_fds: int
    sessions: int


@contextmanager
def tiny_dataset(images: int) -> Iterator[Path]:
    """Yield a packed dataset of tiny pictures, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        random = np.random.Generator(np.random.Philox(0))
        for number in range(images):
            path = Path(folder, "source", f"class{number % _CLASSES}", f"{number}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (IMAGE_PX, IMAGE_PX, 3), np.uint8)
            Image.fromarray(pixels).save(path, quality=60)
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            packed = Path(folder, "dataset")
            pack_dataset(Path(folder, "source"), packed, PackOptions(), ProgressLine(nowhere))
        yield packed


def measure(dataset: Path, pace: Pace, *, seconds: float, killed: int | None = None) -> Measured:
    """Run daemons and ranks for ``seconds`` after their queues are full.

    SIGKILL ends the daemon ``killed`` then, and they run for AFTER_KILL_S more.
    """
    with ExitStack() as stack:
        ports = [free_port() for _ in range(pace.daemons)]
        endpoints = tuple(f"tcp://127.0.0.1:{port}" for port in ports)
        daemons = [stack.enter_context(_serving(dataset, pace, endpoint)) for endpoint in endpoints]
        for daemon in daemons:
            daemon.await_ready()
        ranks = [
            stack.enter_context(
                LineProcess(
                    python_command(
                        f"{__package__}.real_rank", os.getpid(), _orders(pace, endpoints, rank)
                    )
                )
            )
            for rank in range(pace.ranks)
        ]
        for rank in ranks:
            _expect(rank, "open")
        time.sleep(WARM_UP_S)
        begin_s, before = time.monotonic(), psutil.cpu_times()
        time.sleep(seconds)
        nodes = [_find_node(daemon) for daemon in daemons]
        node_fds = max(node.num_fds() for node in nodes)
        killed_s = time.monotonic()
        if killed is not None:
            daemons[killed].kill()
            time.sleep(AFTER_KILL_S)
        end_s, after = time.monotonic(), psutil.cpu_times()
        for rank in ranks:
            rank.close_input()
        records = [msgspec.json.decode(_expect(rank, ""), type=RankRecord) for rank in ranks]
    timeline = Timeline()
    for each in records:
        for at_s, count in each.taken:
            if begin_s <= at_s < end_s:
                timeline.add(at_s - begin_s, count)
    asked = [each for record in records for each in record.asked if begin_s <= each.at_s < end_s]
    names = sorted({each.node for each in asked}, key=lambda name: _position(name, ports))
    spent = sum(after) - sum(before)
    return Measured(
        images_s=sum(timeline.bins) / (end_s - begin_s),
        timeline=timeline,
        killed_s=killed_s - begin_s,
        end_s=end_s - begin_s,
        asked=[(each.key, each.node) for each in asked if each.is_first],
        nodes=names,
        hedged=sum(not each.is_first for each in asked),
        idle=(after.idle - before.idle) / spent if spent else 0.0,
        rank_fds=max(each.descriptors for each in records),
        links=max(each.links for each in records),
        node_fds=node_fds,
        sessions=len(records),
    )


@contextmanager
def _serving(dataset: Path, pace: Pace, endpoint: str) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(
        python_command(
            f"{__package__}.paced_serve",
            os.getpid(),
            str(dataset),
            endpoint,
            pace.workers,
            pace.chunk_images,
        ),
        environ=child_environment({CHUNK_TIME: str(pace.chunk_s)}),
    )
    try:
        yield daemon
    finally:
        daemon.terminate()


def _orders(pace: Pace, endpoints: tuple[str, ...], rank: int) -> str:
    orders = RankOrders(
        endpoints=endpoints,
        recipe=pace.recipe,
        seed=SEED,
        window=pace.window,
        rank=rank,
        world_size=pace.ranks,
        any_node=pace.any_node,
    )
    return msgspec.json.encode(orders).decode()


def _expect(rank: LineProcess, start: str) -> str:
    """Return a rank's next line; PeerError where it is another one."""
    try:
        line = rank.next_line(_OPEN_S)
    except (TimeoutError, EOFError) as error:
        raise PeerError(f"a rank of the validation gave up: {error}") from error
    if not line.startswith(start) or line.startswith("error"):
        raise PeerError(f"a rank of the validation gave up: {line}")
    return line


def _find_node(daemon: DaemonProcess) -> psutil.Process:
    return next(each for each in daemon.processes() if "feeder.node" in each.cmdline())


def _position(name: str, ports: Sequence[int]) -> int:
    return next(n for n, port in enumerate(ports) if f":{port}" in name)
