"""The model beside real daemons: 2, 3 and 4 of a fixed rate on this machine, the same simulated.

Both are of the same ``Cluster``. The real ranks are processes, too, which take batches over tcp as
a loader does:

    python -m bench.cluster.validate PARENT_PID ORDERS

ORDERS is the JSON of ``RankOrders``. A rank prints ``open`` when all feeders have answered, takes
batches from then on, and when its input ends prints the JSON of ``RankRecord``. A line ``error …``
comes before it ends by itself.
"""

import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import psutil
from PIL import Image

from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.transport import Transport
from feeder.errors import FeederError, PeerError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.plan.epoch import rank_indices
from feeder.process.child import child_environment, die_with_parent, python_command
from feeder.wire.messages import Hello

from ..daemon import DATASET_NAME, DaemonProcess, feeder_command, free_port
from ..line_process import LineProcess
from .outcomes import Dip, choose_smooth, find_dip, run_scenario, run_steady
from .shape import SEED, Cluster, Fault, Lanes, requesting
from .simulation import Timeline

# The greatest differences of throughput, as a share, and of the owner share; and the most that
# ownership may cost against asking any node.
THROUGHPUT_MAX: Final = 0.05
OWNER_MAX: Final = 0.05
LOSS_MAX: Final = 0.02

DAEMONS: Final = (2, 3, 4)
LOSS_DAEMONS: Final = 4  # that are compared with asking any node
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
_WARM_UP_S: Final = 1.5  # until queues are full
_PACED: Final = """\
import sys
if "feeder.worker" in sys.orig_argv:
    import time
    from feeder.worker.filler import ChunkFiller

    def fill(filler, chunk, due_s=[0.0], fill=ChunkFiller.fill):
        began_s = time.monotonic()
        # A chunk that begins so soon after the last one was due was waiting for it: the wait is
        # made up, or each chunk would take as much longer as the worker sleeps too long.
        if began_s - due_s[0] > 0.01:
            due_s[0] = began_s
        due_s[0] += {chunk_s}
        filled = fill(filler, chunk)
        time.sleep(max(0.0, due_s[0] - time.monotonic()))
        return filled

    ChunkFiller.fill = fill
"""
"""The ``sitecustomize`` of a daemon whose workers have a fixed rate, so that it does not depend on
the cores: chunks are really read, decoded and written, and then a worker waits."""

_TIMEOUT_S: Final = 30.0
_CLASSES: Final = 4


class RankOrders(msgspec.Struct, frozen=True):
    cluster: Cluster
    endpoints: tuple[str, ...]
    rank: int


class Taken(NamedTuple):
    """A batch that a rank has taken, and the totals of its requests then."""

    at_s: float  # on the monotonic clock, one for the whole machine
    images: int
    requested: int
    owned: int  # of ``requested``, from their lane's owner
    again: int  # requests of a batch from another node, too


class RankRecord(msgspec.Struct, frozen=True):
    taken: list[Taken]
    nodes: list[str]  # their names
    descriptors: int


class Measured(NamedTuple):
    """What real daemons and ranks did from the time on when the queues are full."""

    timeline: Timeline
    killed_s: float  # on the time line, as ``end_s``
    end_s: float
    owner_share: float
    again: int
    nodes: tuple[str, ...]  # names, in the order of the list of endpoints
    costs: Mapping[str, Any]  # by fields of ``Compared``


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One setting, real and simulated."""

    daemons: int
    window: int
    any_node: bool
    real_images_s: float
    model_images_s: float
    most_images_s: float  # by arithmetic: all workers, always
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


def compare(dataset: Path, seconds: float, report: Callable[[str], None]) -> Sequence[Compared]:
    """Run all settings with ``tiny_dataset``; ``report`` gets a line before each."""
    compared = []
    for window in WINDOWS:
        for daemons in DAEMONS:
            for any_node in (False, True) if daemons == LOSS_DAEMONS else (False,):
                report(f"{daemons} daemons, window {window}{', any node' * any_node}")
                cluster = replace(PACED, hosts=daemons, window=window, any_node=any_node)
                compared.append(_compare(dataset, cluster, seconds))
    return compared


def _compare(dataset: Path, cluster: Cluster, seconds: float) -> Compared:
    real = _measure(dataset, cluster, seconds)
    named = replace(cluster, names=real.nodes)
    model = run_steady(named, warm_up_s=_WARM_UP_S, window_s=seconds)
    return Compared(
        daemons=cluster.hosts,
        window=cluster.window,
        any_node=cluster.any_node,
        real_images_s=sum(real.timeline.bins) / real.end_s,
        model_images_s=model.images_s,
        most_images_s=cluster.hosts * cluster.host_images_s,
        real_owner=real.owner_share,
        model_owner=model.owner_share,
        **real.costs,
    )


def compare_loss(dataset: Path) -> ComparedLoss:
    """Kill one of some real daemons with SIGKILL, and simulate that."""
    cluster = replace(PACED, hosts=_KILL_DAEMONS)
    real = _measure(dataset, cluster, _KILL_AFTER_S, is_one_killed=True)
    fault = Fault(kind="lose", host=_KILLED, at_s=real.killed_s)
    measured = find_dip(
        real.timeline,
        fault,
        steady_s=0.0,
        began_s=0.0,
        end_s=real.end_s,
        smooth=choose_smooth(real.timeline, 0.0, real.killed_s, cluster.batch_size),
        hedged=real.again,
    )
    cluster = replace(cluster, names=real.nodes, faults=(replace(fault, at_s=0.0),))
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
        owner = each.model_owner - each.real_owner
        if not each.any_node and abs(owner) > OWNER_MAX:
            lines.append(
                f"{where} owner share differs by {100 * owner:+.1f} points, "
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


def _measure(
    dataset: Path, cluster: Cluster, seconds: float, *, is_one_killed: bool = False
) -> Measured:
    """Run daemons and ranks for ``seconds`` after their queues are full.

    Then, if one is to be killed, for _AFTER_KILL_S without it.
    """
    with ExitStack() as stack:
        ports = [free_port() for _ in range(cluster.hosts)]
        endpoints = tuple(f"tcp://127.0.0.1:{port}" for port in ports)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-"))
        Path(folder, "sitecustomize.py").write_text(_PACED.format(chunk_s=cluster.chunk_s))
        path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        daemons = []
        for endpoint in endpoints:
            command = feeder_command(
                *("serve", "--data", f"{DATASET_NAME}={dataset}", "--bind", endpoint),
                *("--workers", str(cluster.cores), "--chunk-images", str(cluster.chunk_images)),
                *("--pin", "off"),
            )
            daemons.append(DaemonProcess(command, environ=child_environment({"PYTHONPATH": path})))
            stack.callback(daemons[-1].terminate)
        for daemon in daemons:
            daemon.await_ready()
        ranks = []
        for rank in range(cluster.ranks):
            orders = msgspec.json.encode(RankOrders(cluster, endpoints, rank)).decode()
            command = python_command(f"{__package__}.validate", os.getpid(), orders)
            ranks.append(stack.enter_context(LineProcess(command)))
        for process in ranks:
            _expect(process, "open")
        time.sleep(_WARM_UP_S)
        begin_s, before = time.monotonic(), psutil.cpu_times()
        time.sleep(seconds)  # what is measured
        node_fds = max(
            each.num_fds()
            for daemon in daemons
            for each in daemon.processes()
            if "feeder.node" in each.cmdline()
        )
        killed_s = time.monotonic()
        if is_one_killed:
            daemons[_KILLED].kill()
            time.sleep(_AFTER_KILL_S)  # the fall and the recovery are measured, too
        end_s, after = time.monotonic(), psutil.cpu_times()
        for process in ranks:
            process.close_input()
        records = [msgspec.json.decode(_expect(each, "{"), type=RankRecord) for each in ranks]
    timeline, requested, owned, again = Timeline(), 0, 0, 0
    for record in records:
        taken = [each for each in record.taken if begin_s <= each.at_s < end_s]
        for each in taken:
            timeline.add(each.at_s - begin_s, each.images)
        requested += taken[-1].requested - taken[0].requested
        owned += taken[-1].owned - taken[0].owned
        again += taken[-1].again - taken[0].again
    names = records[0].nodes
    return Measured(
        timeline=timeline,
        killed_s=killed_s - begin_s,
        end_s=end_s - begin_s,
        owner_share=owned / max(1, requested),
        again=again,
        nodes=tuple(name for port in ports for name in names if f":{port}" in name),
        costs={
            "idle": (after.idle - before.idle) / (sum(after) - sum(before)),
            "rank_fds": max(record.descriptors for record in records),
            "links": max(len(record.nodes) for record in records),
            "node_fds": node_fds,
        },
    )


def _expect(rank: LineProcess, start: str) -> str:
    """Return a rank's next line; PeerError where it is another one."""
    try:
        line = rank.next_line(2 * _TIMEOUT_S)
    except (TimeoutError, EOFError) as error:
        line = str(error)
    if not line.startswith(start):
        raise PeerError(f"a rank of the validation gave up: {line}")
    return line


def _take_batches(orders: RankOrders) -> RankRecord:
    """Take batches as a rank until the input ends."""
    cluster, recipe = orders.cluster, Lanes(orders.cluster).recipe
    hello = Hello(
        dataset=DATASET_NAME,
        recipe=recipe,
        seed=SEED,
        window=cluster.window,
        client=f"rank {orders.rank}",
    )
    job = Job(name="bench", hello=hello, share_memory=False, rank=orders.rank)
    session = ClientSession(job, buffers=cluster.window + 1)
    counts = session.scheduler
    transport = Transport(session, Directory(orders.endpoints))
    try:
        batches = transport.wait_for_welcome(_TIMEOUT_S).batches
        nodes = [link.node_name for link in session.links.by_number.values()]
        print("open", flush=True)
        indices = rank_indices(batches, orders.rank, cluster.ranks, recipe.last_batch)
        sequence = BatchSequence(0, indices)
        transport.begin(sequence)
        taken: list[Taken] = []
        while not select.select([sys.stdin], [], [], 0)[0]:
            batch = transport.take(sequence.key(len(taken)), _TIMEOUT_S)
            totals = counts.requested, counts.owned, counts.hedged + counts.retried
            taken.append(Taken(time.monotonic(), batch.valid, *totals))
            transport.return_buffers([batch.buffer], before_waiting=True)
        descriptors = len(os.listdir("/proc/self/fd")) - 1
        return RankRecord(taken, nodes, descriptors)
    finally:
        transport.close()


def _main(parent: int, orders: RankOrders) -> int:
    die_with_parent(parent)
    try:
        with requesting(orders.cluster):
            print(msgspec.json.encode(_take_batches(orders)).decode(), flush=True)
    except FeederError as error:
        print(f"error {error}", flush=True)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=RankOrders)))
