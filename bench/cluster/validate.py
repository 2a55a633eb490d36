"""The model beside real daemons: 2, 3 and 4 of a fixed rate on this machine, the same simulated.

Both are of the same ``Cluster``. The real ranks are processes with a loader over tcp:

    python -m bench.cluster.validate PARENT_PID ORDERS

ORDERS is the JSON of ``RankOrders``. A rank prints a line when all feeders have answered, takes
batches from then on, and when its input ends prints the JSON of ``RankRecord``.
"""

import itertools
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

from feeder.errors import FeederError, PeerError
from feeder.process.child import die_with_parent, python_command
from trainer_client import NumpyLoader

from ..daemon import DATASET_NAME, running_daemon, sitecustomize
from ..data.material import pack
from ..line_process import LineProcess
from .outcomes import Dip, choose_smooth, find_dip, run_scenario, run_steady
from .shape import SEED, Cluster, Fault, requesting
from .simulation import Timeline

# The most that throughput, as a share, and the owner share may differ; and that ownership may cost
# against asking any node, by window.
THROUGHPUT_MAX: Final = 0.05
OWNER_MAX: Final = 0.05
LOSS_MAX: Final = {8: 0.05, 16: 0.02}

DAEMONS: Final = (2, 3, 4)
LOSS_DAEMONS: Final = 4  # that are compared with asking any node
WINDOWS: Final = tuple(LOSS_MAX)
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
"""Gives a daemon's workers a fixed rate, so that it does not depend on the cores: chunks are really
read, decoded and written, and then a worker waits."""

_TIMEOUT_S: Final = 30.0
_CLASSES: Final = 4


class RankOrders(msgspec.Struct, frozen=True):
    cluster: Cluster
    endpoints: Sequence[str]
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
    nodes: dict[str, str]  # their names, by endpoint
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
        yield pack(Path(folder, "source"), Path(folder, "dataset"))


def compare(dataset: Path, seconds: float, report: Callable[[str], None]) -> Sequence[Compared]:
    """Run all settings with ``tiny_dataset``; ``report`` gets a line before each."""
    compared = []
    for window, daemons, any_node in itertools.product(WINDOWS, DAEMONS, (False, True)):
        if any_node and daemons != LOSS_DAEMONS:
            continue
        report(f"{daemons} daemons, window {window}{', any node' * any_node}")
        cluster = replace(PACED, hosts=daemons, window=window, any_node=any_node)
        real = _measure(dataset, cluster, seconds)
        named = replace(cluster, names=real.nodes)
        model = run_steady(named, warm_up_s=_WARM_UP_S, window_s=seconds)
        compared.append(
            Compared(
                daemons=daemons,
                window=window,
                any_node=any_node,
                real_images_s=sum(real.timeline.bins) / real.end_s,
                model_images_s=model.images_s,
                most_images_s=daemons * cluster.host_images_s,
                real_owner=real.owner_share,
                model_owner=model.owner_share,
                **real.costs,
            )
        )
    return compared


def compare_loss(dataset: Path) -> ComparedLoss:
    """Kill one of some real daemons with SIGKILL, and simulate that."""
    cluster = replace(PACED, hosts=_KILL_DAEMONS)
    real = _measure(dataset, cluster, _KILL_AFTER_S, is_one_killed=True)
    fault = Fault(kind="lose", host=_KILLED, at_s=real.killed_s)
    smooth = choose_smooth(real.timeline, real.killed_s, cluster.batch_size)
    measured = find_dip(real.timeline, fault, 0.0, real.end_s, smooth=smooth, hedged=real.again)
    cluster = replace(cluster, names=real.nodes, faults=(replace(fault, at_s=0.0),))
    (model,) = run_scenario(cluster, before_s=_KILL_AFTER_S, after_s=_AFTER_KILL_S).dips
    return ComparedLoss(daemons=_KILL_DAEMONS, real=measured, model=model)


def judge(results: Sequence[Compared]) -> list[str]:
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
        if cost > LOSS_MAX[window]:
            lines.append(
                f"window {window}: {LOSS_DAEMONS} daemons lose {100 * cost:.1f} % of the "
                f"throughput by ownership, {100 * LOSS_MAX[window]:.0f} % is allowed"
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
    """Run daemons and ranks ``seconds`` with full queues, then _AFTER_KILL_S with one killed."""
    with ExitStack() as stack:
        cores = os.sched_getaffinity(0)
        options = ("--chunk-images", str(cluster.chunk_images))
        stack.enter_context(sitecustomize(_PACED.format(chunk_s=cluster.chunk_s)))
        daemons = [
            stack.enter_context(
                running_daemon(dataset, workers=cluster.cores, cores=cores, options=options)
            )
            for _ in range(cluster.hosts)
        ]
        endpoints = [daemon.tcp for daemon in daemons]
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
        nodes = [daemon.find("feeder.node") for daemon in daemons]
        node_fds = max(node.num_fds() for node in nodes)
        killed_s = time.monotonic()
        if is_one_killed:
            daemons[_KILLED].kill()
            time.sleep(_AFTER_KILL_S)  # the fall and the recovery are measured, too
        end_s, after = time.monotonic(), psutil.cpu_times()
        for process in ranks:
            process.close_input()
        records = [msgspec.json.decode(_expect(each, "{"), type=RankRecord) for each in ranks]
    timeline, requested, owned, again = Timeline(begin_s), 0, 0, 0
    for record in records:
        taken = [each for each in record.taken if begin_s <= each.at_s < end_s]
        for each in taken:
            timeline.add(each.at_s, each.images)
        requested += taken[-1].requested - taken[0].requested
        owned += taken[-1].owned - taken[0].owned
        again += taken[-1].again - taken[0].again
    return Measured(
        timeline=timeline,
        killed_s=killed_s - begin_s,
        end_s=end_s - begin_s,
        owner_share=owned / max(1, requested),
        again=again,
        nodes=tuple(records[0].nodes[endpoint] for endpoint in endpoints),
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
    cluster, taken = orders.cluster, list[Taken]()
    with NumpyLoader(
        orders.endpoints,
        dataset=DATASET_NAME,
        batch_size=cluster.batch_size,
        image_size=cluster.image_px,
        seed=SEED,
        rank=orders.rank,
        world_size=cluster.ranks,
        window=cluster.window,
        copy=False,
        timeout_s=_TIMEOUT_S,
        recipe={"lanes": cluster.lanes},
    ) as loader:
        links = loader._feed._session.links.by_number.values()
        nodes = {link.endpoint: link.node_name for link in links}
        print("open", flush=True)
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            totals = loader.statistics()
            taken.append(
                Taken(
                    time.monotonic(),
                    batch.valid,
                    totals.batches_requested,
                    totals.batches_of_owners,
                    totals.batches_hedged + totals.batches_asked_again,
                )
            )
            if select.select([sys.stdin], [], [], 0)[0]:
                break
        return RankRecord(taken, nodes, len(os.listdir("/proc/self/fd")) - 1)


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
