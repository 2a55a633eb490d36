"""``feeder-bench chaos``: injects random faults while clients train; does one get a wrong batch?

    calm ──► faults, one at a time, from a seeded schedule ──► calm ──► all clients end ──► judged

Feeders are real daemons; clients are real processes with a ``FeederLoader`` over all of them, those
of odd rank by tcp through proxies. A fault comes only after all feeders have recovered from the one
before, so at least one can always be reached, unless the run has a single feeder. Each client's
batches are compared with batches made afterwards without a daemon. Lost, repeated or different
batches, leaks, too little throughput and too long a wait after a node process was killed end the
bench with status 1 and the reason.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError
from feeder.pack.progress import ProgressLine
from feeder.plan.epoch import rank_indices
from feeder.plan.recipe import Recipe

from ..data.material import dataset_or_synthetic
from ..machine import describe_machine
from .check import ClientSchedule, Verdict, check_arrivals
from .clients import Client, ClientOrders, DeliveryCounts, make_digests
from .faults import draw_faults
from .feeders import Feeder
from .report import ChaosReport, Run, judge, longest_gap
from .scene import Scene

LEASE_S: Final = 5.0
_SCHEDULE_MIN: Final = 64
"""The least number of different batches of all clients before the schedule repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """How long, how often, and with how many."""

    minutes: float
    calm_s: float
    every_s: float
    seed: int
    feeders: int
    clients: int
    batch_size: int
    image_size: int


def measure_chaos(path: Path, options: ChaosOptions) -> ChaosReport:
    """Run on the dataset at ``path``; what was wrong is in the report's ``failures``."""
    machine = describe_machine()
    schedules = _plan_schedules(path, options)
    with ExitStack() as stack:
        feeders = [
            stack.enter_context(Feeder(path, workers=1, lease_s=LEASE_S))
            for _ in range(options.feeders)
        ]
        scene = stack.enter_context(Scene(feeders))
        orders = [_orders_of(schedule, feeders, options) for schedule in schedules]
        run = _run(scene, orders, options)
    keys = [arrival.key for arrivals in run.arrivals for arrival in arrivals]
    known = [key for key in keys if any(each.position(key) is not None for each in schedules)]
    digests = make_digests(orders[0], path, known)
    verdict = sum(
        (
            check_arrivals(arrivals, schedule, digests)
            for arrivals, schedule in zip(run.arrivals, schedules, strict=True)
        ),
        Verdict(),
    )
    results, failures = judge(run, verdict)
    return ChaosReport(
        bench="chaos",
        machine=machine,
        results=results,
        failures=failures,
        faults=[
            (round(struck.at_s - run.began_s, 3), struck.fault.kind, longest_gap(run, struck))
            for struck in run.struck
        ],
    )


def _plan_schedules(path: Path, options: ChaosOptions) -> list[ClientSchedule]:
    """Return the schedule of each rank; ConfigError where the dataset has too few batches."""
    recipe = Recipe.for_split("train", batch_size=options.batch_size)
    with Dataset.open(path) as dataset:
        batches = recipe.plan_epoch(dataset.layout, seed=0, epoch=0).batches
    steps = len(rank_indices(batches, 0, options.clients, recipe.last_batch))
    if not steps:
        raise ConfigError(
            f"an epoch of {path} has {batches} batches of {options.batch_size}, fewer than the "
            f"{options.clients} clients: lower --clients or --batch-size"
        )
    epochs = max(2, math.ceil(_SCHEDULE_MIN / (steps * options.clients)))
    return [
        ClientSchedule(rank=rank, world_size=options.clients, steps=steps, epochs=epochs)
        for rank in range(options.clients)
    ]


def _orders_of(
    schedule: ClientSchedule, feeders: Sequence[Feeder], options: ChaosOptions
) -> ClientOrders:
    return ClientOrders(
        endpoints=[feeder.tcp if schedule.rank % 2 else feeder.ipc for feeder in feeders],
        rank=schedule.rank,
        world_size=schedule.world_size,
        batch_size=options.batch_size,
        image_size=options.image_size,
        epochs=schedule.epochs,
    )


def _run(scene: Scene, orders: Sequence[ClientOrders], options: ChaosOptions) -> Run:
    """Train calmly, among faults, and calmly again; Ctrl-C ends the faults early."""
    scene.note_idle(
        Recipe.for_split("train", batch_size=options.batch_size, image_size=options.image_size)
    )
    scene.add_clients([Client(each) for each in orders])
    began_s = time.monotonic()
    scene.pump(began_s + options.calm_s)
    scene.note_clients()
    chaos_from_s = time.monotonic()
    chaos_to_s = None
    try:
        _break_things(scene, options, chaos_from_s + 60 * options.minutes)
        chaos_to_s = time.monotonic()
        scene.pump(chaos_to_s + options.calm_s)
    except KeyboardInterrupt:
        sys.stderr.write("feeder-bench: interrupted: the run so far is judged\n")
    ended_s = time.monotonic()
    leaks = scene.close_and_count()
    return Run(
        batch_size=options.batch_size,
        feeders=options.feeders,
        began_s=began_s,
        struck=scene.struck,
        chaos_s=(chaos_from_s, chaos_to_s or ended_s),
        ended_s=ended_s,
        arrivals=[client.arrivals for client in scene.clients],
        delivered=sum((client.delivered for client in scene.clients), DeliveryCounts()),
        errors=[client.error for client in scene.clients if client.error is not None],
        leaks=leaks,
    )


def _break_things(scene: Scene, options: ChaosOptions, until_s: float) -> None:
    progress = ProgressLine(sys.stderr)
    progress.begin("breaking", "faults", round(60 * options.minutes / options.every_s))
    faults = draw_faults(options.seed, feeders=options.feeders, clients=options.clients)
    next_s = time.monotonic()
    while next_s < until_s and scene.is_well:
        scene.pump(next_s)
        scene.strike(next(faults))
        progress.add(1)
        next_s = max(next_s + options.every_s, time.monotonic())
    progress.end()


def run(arguments: argparse.Namespace) -> ChaosReport:
    """Do what the command line asks."""
    options = ChaosOptions(
        minutes=arguments.minutes,
        calm_s=arguments.calm,
        every_s=arguments.every,
        seed=arguments.seed,
        feeders=arguments.nodes,
        clients=arguments.clients,
        batch_size=arguments.batch_size,
        image_size=arguments.image_size,
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_chaos(path, options)
