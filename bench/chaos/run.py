"""``feeder-bench chaos``: injects random faults while clients train; does one get a wrong batch?

    calm ──► faults, one at a time, from a seeded schedule ──► calm ──► all clients end ──► judged

Feeders are real daemons; clients are real processes with a ``FeederLoader`` over all of them, those
of odd rank by tcp through proxies. A fault comes only after all feeders have recovered from the one
before, so at least one can always be reached, unless the run has a single feeder. Each client's
batches are compared with batches made afterwards without a daemon. Lost, repeated or different
batches, leaks, too little throughput and too long a wait after a node process was killed end the
bench with status 1 and the reason.

With ``--mix`` the dataset is served as a weighted mix of its halves, with several crops a sample.
With ``--store`` the dataset is in a store, behind a proxy with faults of its own, and all feeders
share one disk cache, which holds a part of it.
"""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from feeder.choose.make import select
from feeder.choose.members import open_samples
from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError
from feeder.pack.progress import ProgressLine
from feeder.plan.epoch import rank_indices
from feeder.plan.recipe import Recipe

from ..daemon import DATASET_NAME
from ..data.material import dataset_or_synthetic
from ..loopback_store import LoopbackStore
from ..machine import describe_machine
from ..report import JudgedReport
from ..store_proxy import StoreProxy
from .clients import Client, ClientOrders
from .judgement import Run, check_arrivals, draw_faults, judge
from .scene import Feeder, Remote, Scene

LEASE_S: Final = 5.0
CACHE_SHARE: Final = 0.6  # of the dataset, for all feeders together
_SCHEDULE_MIN: Final = 64  # batches of all clients before the schedule repeats, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport(JudgedReport):
    faults: Sequence[tuple[float, str, float]]  # when, kind, a client's longest wait then


def run(arguments: argparse.Namespace) -> ChaosReport:
    with ExitStack() as stack:
        path = stack.enter_context(dataset_or_synthetic(arguments.dataset, images=arguments.images))
        machine = describe_machine()
        steps, epochs = _plan_schedule(path, arguments)
        size = arguments.batch_size
        recipe = dict[str, Any]()
        if arguments.mix:
            if arguments.store:
                raise ConfigError("--mix and --store: give one of them")
            path = stack.enter_context(_mix(path))
            side = arguments.image_size
            recipe = {
                "crops": [{"count": 2, "size": side}, {"count": 2, "size": max(8, side // 2)}]
            }
        remote = stack.enter_context(_remote(path, size)) if arguments.store else None
        if remote is not None:
            recipe["working_set"] = remote.working_set
        feeders = [
            stack.enter_context(Feeder(remote or path, lease_s=LEASE_S))
            for _ in range(arguments.nodes)
        ]
        orders = [
            ClientOrders(
                endpoints=[feeder.proxy.endpoint if rank % 2 else feeder.ipc for feeder in feeders],
                rank=rank,
                world_size=arguments.clients,
                batch_size=arguments.batch_size,
                image_size=arguments.image_size,
                recipe=recipe,
                steps=steps,
                epochs=epochs,
            )
            for rank in range(arguments.clients)
        ]
        scene = stack.enter_context(Scene(feeders, remote.proxy if remote else None))
        record = _run(scene, orders, arguments)
        if remote is not None:
            record.leaks.extend(f"{path.name} in the cache" for path in remote.cache.rglob("*.tmp"))
        keys = {arrival.key for arrivals in record.arrivals for arrival in arrivals}
        from .trainer import make_digests  # with torch, which takes seconds to import

        known = [key for key in keys if any(each.position(key) is not None for each in orders)]
        digests = make_digests(orders[0], path, known)
    wrong = Counter[str]()
    for arrivals, each in zip(record.arrivals, orders, strict=True):
        wrong.update(check_arrivals(arrivals, each, digests))
    results, failures = judge(record, wrong)
    return ChaosReport(
        bench="chaos",
        machine=machine,
        results=results,
        failures=failures,
        faults=[
            (round(fault.at_s - record.began_s, 3), fault.kind, record.longest_gap_s(fault))
            for fault in record.faults
        ],
    )


@contextmanager
def _mix(path: Path) -> Iterator[Path]:
    """Yield a selection that mixes the halves of a dataset, with weights, for as many draws."""
    samples = load_manifest(path).samples
    with tempfile.TemporaryDirectory(prefix="feeder-chaos-") as folder:
        halves = [Path(folder, name) for name in ("even", "odd")]
        for first, half in enumerate(halves):
            select(half.name, {path: np.arange(first, samples, 2)}, half)
        mix = Path(folder, "mix")
        sizes = [(samples + 1) // 2, samples // 2]
        select(
            "mix",
            dict.fromkeys(halves),
            mix,
            weights={
                half: 1 + np.arange(size) % 3 for half, size in zip(halves, sizes, strict=True)
            },
            shares=dict(zip(halves, (0.7, 0.3), strict=True)),
            epoch_samples=samples,
        )
        yield mix


@contextmanager
def _remote(path: Path, batch_size: int) -> Iterator[Remote]:
    """Put the dataset into a store behind a proxy; the cache holds a part, so fetches go on.

    Batches are drawn from a window, and pieces fetched for it, if a half of the dataset has room
    for one; from everywhere, and single samples fetched, if not.
    """
    layout = load_manifest(path).layout
    working_set = layout.size_bytes // 2
    recipe = Recipe.for_split("train", batch_size=batch_size, working_set=working_set)
    try:
        recipe.plan_epoch(layout, seed=0, epoch=0)
    except ConfigError:
        working_set = 0
    with (
        LoopbackStore({DATASET_NAME: path}) as store,
        StoreProxy(store.port) as proxy,
        tempfile.TemporaryDirectory(prefix="feeder-chaos-") as folder,
    ):
        yield Remote(
            store.url(DATASET_NAME),
            store.environ(proxy.endpoint),
            Path(folder),
            round(CACHE_SHARE * layout.size_bytes),
            working_set,
            proxy,
        )


def _plan_schedule(path: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """Return each rank's steps in an epoch, and the epochs before they repeat; ConfigError."""
    recipe = Recipe.for_split("train", batch_size=arguments.batch_size)
    with open_samples(path) as dataset:
        batches = recipe.plan_epoch(dataset.layout, seed=0, epoch=0).batches
    steps = len(rank_indices(batches, 0, arguments.clients, recipe.last_batch))
    if not steps:
        raise ConfigError(
            f"an epoch of {path} has {batches} batches of {arguments.batch_size}, fewer than the "
            f"{arguments.clients} clients: lower --clients or --batch-size"
        )
    return steps, max(2, math.ceil(_SCHEDULE_MIN / (steps * arguments.clients)))


def _run(scene: Scene, orders: Sequence[ClientOrders], arguments: argparse.Namespace) -> Run:
    """Train calmly, among faults, and calmly again; Ctrl-C ends the faults early."""
    size = arguments.batch_size
    scene.note_idle(Recipe.for_split("train", batch_size=size, image_size=arguments.image_size))
    scene.add_clients([Client(each) for each in orders])
    began_s = time.monotonic()
    scene.pump(began_s + arguments.calm)
    scene.note_clients()
    chaos_from_s = time.monotonic()
    chaos_to_s = None
    try:
        _break_things(scene, arguments, chaos_from_s + 60 * arguments.minutes)
        chaos_to_s = time.monotonic()
        scene.pump(chaos_to_s + arguments.calm)
    except KeyboardInterrupt:
        sys.stderr.write("feeder-bench: interrupted: the run so far is judged\n")
    ended_s = time.monotonic()
    leaks = scene.close_and_count()
    delivered = Counter({"lent": 0, "asked-again": 0, "hedged": 0})
    for client in scene.clients:
        delivered.update(client.delivered)
    return Run(
        batch_size=size,
        feeders=len(scene.feeders),
        began_s=began_s,
        faults=scene.faults,
        chaos_s=(chaos_from_s, chaos_to_s or ended_s),
        ended_s=ended_s,
        arrivals=[client.arrivals for client in scene.clients],
        delivered=delivered,
        errors=[client.error for client in scene.clients if client.error is not None],
        leaks=leaks,
        requests=len(scene.store.exchanges) if scene.store else 0,
        struck=scene.store.struck().total() if scene.store else 0,
    )


def _break_things(scene: Scene, arguments: argparse.Namespace, until_s: float) -> None:
    progress = ProgressLine(sys.stderr)
    progress.begin("breaking", "faults", round(60 * arguments.minutes / arguments.every))
    faults = draw_faults(
        arguments.seed,
        feeders=len(scene.feeders),
        clients=len(scene.clients),
        has_store=scene.store is not None,
    )
    next_s = time.monotonic()
    while next_s < until_s and scene.is_well:
        scene.pump(next_s)
        scene.strike(next(faults))
        progress.add(1)
        next_s = max(next_s + arguments.every, time.monotonic())
    progress.end()
