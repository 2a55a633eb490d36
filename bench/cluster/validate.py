"""The model beside real daemons: 2, 3 and 4 of a fixed rate on this machine, the same simulated.

Both are of the same ``Cluster``. The real ranks are processes, too (``real_rank``).
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil
from PIL import Image

from feeder.errors import PeerError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.process.child import child_environment, python_command

from ..daemon import DaemonProcess, free_port
from ..line_process import LineProcess
from .dip import Dip, choose_smooth, find_dip, run_scenario
from .owners import Lanes, asking_any_node
from .paced import CHUNK_TIME
from .real_rank import Asked, RankOrders, RankRecord
from .shape import Cluster, Fault
from .simulation import Timeline
from .steady import run_steady

THROUGHPUT_MAX: Final = 0.05
"""The greatest difference of throughput, as a share."""

OWNER_MAX: Final = 0.05
"""The same of the owner share, in shares of 1."""

LOSS_MAX: Final = 0.02
"""The most that ownership may cost against asking any node."""

DAEMONS: Final = (2, 3, 4)
LOSS_DAEMONS: Final = 4
"""That are compared with asking any node."""

WINDOWS: Final = (8, 16)
PACED: Final = Cluster(
    cores=4,
    images_per_core_s=160.0,
    spread=0.0,
    nic_gbit_s=30.0,
    storage_mb_s=1e9,
    ranks=2,
    batch_size=32,
    chunk_images=8,
    image_px=48,  # of the pictures, too: decoding them leaves the cores idle
    samples=4096,
    shards=1,
    lanes=16,
    latency_us=300.0,  # from a client's socket to the node process's loop, and back
)
_KILL_DAEMONS: Final = 3
_KILLED: Final = 1
_KILL_AFTER_S: Final = 8.0
_AFTER_KILL_S: Final = 10.0
_WARM_UP_S: Final = 1.5
"""Until queues are full."""

_OPEN_S: Final = 60.0
_CLASSES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What real daemons and ranks did."""

    timeline: Timeline
    """From the time on when the queues are full."""
    killed_s: float
    """When a daemon was killed, on the time line."""
    end_s: float
    asked: Sequence[Asked]
    """In that time."""
    nodes: Sequence[str]
    """The names of all node processes, in the order of the list of endpoints."""
    costs: Mapping[str, Any]
    """By fields of ``Compared``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One setting, real and simulated."""

    daemons: int
    window: int
    any_node: bool
    real_images_s: float
    model_images_s: float
    most_images_s: float
    """By arithmetic: all workers, always."""
    real_owner: float
    model_owner: float
    idle: float
    rank_fds: int
    links: int
    node_fds: int

    @property
    def difference(self) -> float:
        """Of the model's throughput from the real one, as a share."""
        return self.model_images_s / self.real_images_s - 1

    @property
    def owner_difference(self) -> float:
        """Of the model's owner share from the real one, in shares of 1."""
        return self.model_owner - self.real_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLoss:
    """A daemon that is killed, real and simulated; shown, not judged."""

    daemons: int
    real: Dip
    model: Dip


@contextmanager
def tiny_dataset() -> Iterator[Path]:
    """Yield a packed dataset of PACED's pictures, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        random = np.random.Generator(np.random.Philox(0))
        for number in range(PACED.samples):
            path = Path(folder, "source", f"class{number % _CLASSES}", f"{number}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (PACED.image_px, PACED.image_px, 3), np.uint8)
            Image.fromarray(pixels).save(path, quality=60)
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            packed = Path(folder, "dataset")
            pack_dataset(Path(folder, "source"), packed, PackOptions(), ProgressLine(nowhere))
        yield packed


def compare(
    dataset: Path, *, seconds: float, report: Callable[[str], None] = lambda line: None
) -> Sequence[Compared]:
    """Run all settings with ``tiny_dataset``; ``report`` gets a line before each."""
    done = []
    for window in WINDOWS:
        for daemons in DAEMONS:
            for any_node in (False, True) if daemons == LOSS_DAEMONS else (False,):
                report(f"{daemons} daemons, window {window}{', any node' * any_node}")
                cluster = replace(PACED, hosts=daemons, window=window)
                done.append(_compare(dataset, cluster, any_node=any_node, seconds=seconds))
    return done


def compare_loss(dataset: Path) -> ComparedLoss:
    """Kill one of some real daemons with SIGKILL, and simulate that."""
    cluster = replace(PACED, hosts=_KILL_DAEMONS)
    real = _measure(dataset, cluster, seconds=_KILL_AFTER_S, killed=_KILLED)
    fault = Fault(kind="lose", host=_KILLED, at_s=real.killed_s)
    measured = find_dip(
        real.timeline,
        fault,
        began_s=0.0,
        end_s=real.end_s,
        smooth=choose_smooth(real.timeline, 0.0, real.killed_s, cluster.batch_size),
        hedged=sum(not each.is_first for each in real.asked),
    )
    cluster = replace(cluster, names=tuple(real.nodes), faults=(replace(fault, at_s=0.0),))
    (model,) = run_scenario(cluster, before_s=_KILL_AFTER_S, after_s=_AFTER_KILL_S).dips
    return ComparedLoss(daemons=_KILL_DAEMONS, real=measured, model=model)


def judge(results: Sequence[Compared]) -> list[str]:
    """Return a line for each target that is missed."""
    lines = []
    for each in results:
        where = f"{each.daemons} daemons, window {each.window}: the model's"
        if abs(each.difference) > THROUGHPUT_MAX:
            lines.append(
                f"{where} throughput differs by {100 * each.difference:+.1f} %, "
                f"{100 * THROUGHPUT_MAX:.0f} % is allowed"
            )
        if not each.any_node and abs(each.owner_difference) > OWNER_MAX:
            lines.append(
                f"{where} owner share differs by {100 * each.owner_difference:+.1f} points, "
                f"{100 * OWNER_MAX:.0f} are allowed"
            )
    for window in WINDOWS:
        cost = find_cost(results, window)
        if cost > LOSS_MAX:
            lines.append(
                f"window {window}: {LOSS_DAEMONS} daemons lose {100 * cost:.1f} % of the "
                f"throughput by ownership, {100 * LOSS_MAX:.0f} % is allowed"
            )
    return lines


def find_cost(results: Sequence[Compared], window: int) -> float:
    """Return the share of real throughput that ownership costs LOSS_DAEMONS against any node."""
    rates = {
        each.any_node: each.real_images_s
        for each in results
        if (each.daemons, each.window) == (LOSS_DAEMONS, window)
    }
    return 1 - rates[False] / rates[True]


def _compare(dataset: Path, cluster: Cluster, *, any_node: bool, seconds: float) -> Compared:
    real = _measure(dataset, cluster, any_node=any_node, seconds=seconds)
    with asking_any_node(any_node):
        named = replace(cluster, names=tuple(real.nodes))
        model = run_steady(named, warm_up_s=_WARM_UP_S, window_s=seconds)
    lanes = Lanes(cluster)
    owners = lanes.owners(real.nodes)
    owned = [
        owners[lane] == each.node
        for each in real.asked
        if each.is_first and (lane := lanes.lane_of(each.key)) is not None
    ]
    return Compared(
        daemons=cluster.hosts,
        window=cluster.window,
        any_node=any_node,
        real_images_s=sum(real.timeline.bins) / real.end_s,
        model_images_s=model.images_s,
        most_images_s=cluster.hosts * cluster.host_images_s,
        real_owner=sum(owned) / max(1, len(owned)),
        model_owner=model.owner_share,
        **real.costs,
    )


def _measure(
    dataset: Path,
    cluster: Cluster,
    *,
    any_node: bool = False,
    seconds: float,
    killed: int | None = None,
) -> Measured:
    """Run daemons and ranks for ``seconds`` after their queues are full.

    SIGKILL ends the daemon ``killed`` then, and they run for _AFTER_KILL_S more.
    """
    with ExitStack() as stack:
        ports = [free_port() for _ in range(cluster.hosts)]
        endpoints = tuple(f"tcp://127.0.0.1:{port}" for port in ports)
        daemons = []
        for endpoint in endpoints:
            workers, chunk_images = cluster.cores, cluster.chunk_images
            paced = (os.getpid(), str(dataset), endpoint, workers, chunk_images)
            command = python_command(f"{__package__}.paced", *paced)
            environ = child_environment({CHUNK_TIME: str(cluster.chunk_s)})
            daemons.append(DaemonProcess(command, environ=environ))
            stack.callback(daemons[-1].terminate)
        for daemon in daemons:
            daemon.await_ready()
        ranks = []
        for rank in range(cluster.ranks):
            orders = msgspec.json.encode(
                RankOrders(cluster=cluster, endpoints=endpoints, rank=rank, any_node=any_node)
            ).decode()
            command = python_command(f"{__package__}.real_rank", os.getpid(), orders)
            ranks.append(stack.enter_context(LineProcess(command)))
        for process in ranks:
            _expect(process, "open")
        time.sleep(_WARM_UP_S)
        begin_s, before = time.monotonic(), psutil.cpu_times()
        time.sleep(seconds)  # what is measured
        nodes = [
            next(each for each in daemon.processes() if "feeder.node" in each.cmdline())
            for daemon in daemons
        ]
        node_fds = max(node.num_fds() for node in nodes)
        killed_s = time.monotonic()
        if killed is not None:
            daemons[killed].kill()
            time.sleep(_AFTER_KILL_S)  # the fall and the recovery are measured, too
        end_s, after = time.monotonic(), psutil.cpu_times()
        for process in ranks:
            process.close_input()
        records = [msgspec.json.decode(_expect(each, "{"), type=RankRecord) for each in ranks]
    timeline = Timeline()
    for record in records:
        for at_s, count in record.taken:
            if begin_s <= at_s < end_s:
                timeline.add(at_s - begin_s, count)
    asked = [each for record in records for each in record.asked if begin_s <= each.at_s < end_s]
    names = {each.node for each in asked}
    spent = sum(after) - sum(before)
    return Measured(
        timeline=timeline,
        killed_s=killed_s - begin_s,
        end_s=end_s - begin_s,
        asked=asked,
        nodes=[name for port in ports for name in names if f":{port}" in name],
        costs={
            "idle": (after.idle - before.idle) / spent if spent else 0.0,
            "rank_fds": max(record.descriptors for record in records),
            "links": max(record.links for record in records),
            "node_fds": node_fds,
        },
    )


def _expect(rank: LineProcess, start: str) -> str:
    """Return a rank's next line; PeerError where it is another one."""
    try:
        line = rank.next_line(_OPEN_S)
    except (TimeoutError, EOFError) as error:
        raise PeerError(f"a rank of the validation gave up: {error}") from error
    if not line.startswith(start):
        raise PeerError(f"a rank of the validation gave up: {line}")
    return line
