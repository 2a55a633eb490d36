"""The model beside real daemons: 2, 3 and 4 of a fixed rate on this machine, the same simulated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .dip import Dip, choose_smooth, find_dip, run_scenario
from .outcome import run_steady
from .owners import Lanes, asking_any_node
from .real_cluster import AFTER_KILL_S, IMAGE_PX, WARM_UP_S, Measured, Pace, measure
from .shape import Cluster, DatasetShape, Fault, HostShape, JobShape

THROUGHPUT_MAX: Final = 0.05
"""The greatest difference of throughput, as a share."""

OWNER_MAX: Final = 0.05
"""The same of the owner share, in shares of 1."""

LOSS_MAX: Final = 0.02
"""The most that ownership may cost against asking any node."""

IMAGES: Final = 4096
DAEMONS: Final = (2, 3, 4)
LOSS_DAEMONS: Final = 4
"""That are compared with asking any node."""

KILL_DAEMONS: Final = 3
KILLED: Final = 1
KILL_AFTER_S: Final = 8.0
WINDOWS: Final = (8, 16)
_PACE: Final = Pace(
    daemons=0,
    workers=4,
    chunk_s=0.05,
    chunk_images=8,
    ranks=2,
    window=8,
    batch_size=32,
    lanes=16,
)
_LOOPBACK_S: Final = 0.0003
"""From a client's socket to the node process's loop, and back."""


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
    def owner_points(self) -> float:
        """Of the model's owner share from the real one, in points."""
        return 100 * (self.model_owner - self.real_owner)

    @property
    def failures(self) -> list[str]:
        """A line for each target that is missed."""
        where = f"{self.daemons} daemons, window {self.window}"
        lines = []
        if abs(self.difference) > THROUGHPUT_MAX:
            lines.append(
                f"{where}: the model's throughput differs by {100 * self.difference:+.1f} %, "
                f"{100 * THROUGHPUT_MAX:.0f} % is allowed"
            )
        if not self.any_node and abs(self.owner_points) > 100 * OWNER_MAX:
            lines.append(
                f"{where}: the model's owner share differs by {self.owner_points:+.1f} points, "
                f"{100 * OWNER_MAX:.0f} are allowed"
            )
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLoss:
    """A daemon that is killed, real and simulated; shown, not judged."""

    daemons: int
    real: Dip
    model: Dip


def compare_loss(dataset: Path) -> ComparedLoss:
    """Kill one of KILL_DAEMONS real daemons with SIGKILL, and simulate that."""
    pace = replace(_PACE, daemons=KILL_DAEMONS)
    real = measure(dataset, pace, seconds=KILL_AFTER_S, killed=KILLED)
    timeline, killed_s = real.timeline, real.killed_s
    fault = Fault(kind="lose", host=KILLED, at_s=killed_s)
    measured = find_dip(
        timeline,
        fault,
        steady_s=0.0,
        began_s=0.0,
        end_s=real.end_s,
        smooth=choose_smooth(timeline, 0.0, killed_s, pace.batch_size),
        hedged=real.hedged,
    )
    cluster = replace(simulated(pace, real.nodes), faults=(replace(fault, at_s=0.0),))
    (model,) = run_scenario(cluster, before_s=KILL_AFTER_S, after_s=AFTER_KILL_S).dips
    return ComparedLoss(daemons=KILL_DAEMONS, real=measured, model=model)


def compare(
    dataset: Path, *, seconds: float, report: Callable[[str], None] = lambda line: None
) -> Sequence[Compared]:
    """Run all settings with a dataset of IMAGES; ``report`` gets a line before each."""
    done = []
    for window in WINDOWS:
        for daemons in DAEMONS:
            for any_node in (False, True) if daemons == LOSS_DAEMONS else (False,):
                pace = replace(_PACE, daemons=daemons, window=window, any_node=any_node)
                report(f"{daemons} daemons, window {window}{', any node' * any_node}")
                real = measure(dataset, pace, seconds=seconds)
                done.append(_compare(pace, real, seconds=seconds))
    return done


def judge(results: Sequence[Compared]) -> list[str]:
    """Return a line for each target that is missed."""
    lines = [line for each in results for line in each.failures]
    for window in WINDOWS:
        cost = loss(results, window, is_real=True)
        if cost > LOSS_MAX:
            lines.append(
                f"window {window}: {LOSS_DAEMONS} daemons lose {100 * cost:.1f} % of the "
                f"throughput by ownership, {100 * LOSS_MAX:.0f} % is allowed"
            )
    return lines


def loss(results: Sequence[Compared], window: int, *, is_real: bool) -> float:
    """Return the share of throughput that ownership costs LOSS_DAEMONS against any node."""
    rates = {
        each.any_node: each.real_images_s if is_real else each.model_images_s
        for each in results
        if (each.daemons, each.window) == (LOSS_DAEMONS, window)
    }
    return 1 - rates[False] / rates[True]


def _compare(pace: Pace, real: Measured, *, seconds: float) -> Compared:
    cluster = simulated(pace, real.nodes)
    with asking_any_node(pace.any_node):
        model = run_steady(cluster, warm_up_s=WARM_UP_S, window_s=seconds)
    lanes = Lanes(cluster.dataset, cluster.job)
    owners = lanes.owners(list(real.nodes))
    owned = [
        owners[lane] == node for key, node in real.asked if (lane := lanes.lane_of(key)) is not None
    ]
    rate = pace.daemons * pace.workers * pace.chunk_images / pace.chunk_s
    return Compared(
        daemons=pace.daemons,
        window=pace.window,
        any_node=pace.any_node,
        real_images_s=real.images_s,
        model_images_s=model.images_s,
        most_images_s=rate,
        real_owner=sum(owned) / max(1, len(owned)),
        model_owner=model.owner_share,
        idle=real.idle,
        rank_fds=real.rank_fds,
        links=real.links,
        node_fds=real.node_fds,
    )


def simulated(pace: Pace, names: Sequence[str]) -> Cluster:
    """Return the model of real daemons with these names."""
    return Cluster(
        hosts=pace.daemons,
        host=HostShape(
            cores=pace.workers,
            images_per_core_s=pace.chunk_images / pace.chunk_s,
            spread=0.0,
            nic_gbit_s=30.0,
            storage_mb_s=1e9,
        ),
        job=JobShape(
            ranks=pace.ranks,
            batch_size=pace.batch_size,
            window=pace.window,
            chunk_images=pace.chunk_images,
            image_size=IMAGE_PX,
        ),
        dataset=DatasetShape(samples=IMAGES, shards=1, lanes=pace.lanes),
        latency_s=_LOOPBACK_S,
        names=tuple(names),
    )
