"""``feeder-bench chaos``: breaks things at random while clients train; does one get a wrong batch?

    calm ──► faults, one at a time, from a seeded schedule ──► calm ──► everybody leaves ──► judged

Feeders are real daemons, clients real processes with a ``FeederLoader`` over all of them; odd ones
reach the feeders by tcp through proxies. A fault comes only when all feeders are whole again after
the one before, so one at least can always be reached, but for a run with a single feeder. What each
client got is compared with batches that are made afterwards, with no daemon. Lost, repeated or
different batches, what is left behind, too little throughput and too long a wait after a node
process was killed end the bench with status 1 and the reason.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.chaos_check import (
    GAP_MAX_S,
    RATIO_MIN,
    Arrival,
    Course,
    Verdict,
    check_arrivals,
    gaps_within,
)
from bench.chaos_clients import Client, ClientOrders, make_digests
from bench.chaos_faults import KINDS, draw_faults
from bench.chaos_feeders import Feeder
from bench.chaos_scene import Scene, Struck
from bench.machine import describe_machine
from bench.material import dataset_or_synthetic
from bench.report import RATE, JudgedReport, Result, single
from feeder.dataset import Dataset
from feeder.errors import ConfigError
from feeder.plan import rank_indices
from feeder.progress import ProgressLine
from feeder.recipe import Recipe

LEASE_S: Final = 5.0
_COURSE_MIN: Final = 64
"""Different batches in all that clients go through before they begin anew, at least."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport(JudgedReport):
    """A report with every fault, and with the reasons for which the run has failed."""

    faults: Sequence[tuple[float, str, float]]
    """When, what, and the longest that a client waited for a batch then, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened, in times of the monotonic clock."""

    began_s: float
    struck: Sequence[Struck]
    chaos_s: tuple[float, float]
    """Begin and end of the time with faults."""
    ended_s: float
    arrivals: Sequence[Sequence[Arrival]]
    """Of each rank."""
    errors: Sequence[str]
    left: Sequence[str]
    """What was not given back in the end."""


def measure_chaos(path: Path, options: ChaosOptions) -> ChaosReport:
    """Run on the dataset at ``path``; what was wrong is in the report's ``failures``."""
    machine = describe_machine()
    courses = _plan_courses(path, options)
    with ExitStack() as stack:
        feeders = [
            stack.enter_context(Feeder(path, workers=1, lease_s=LEASE_S))
            for _ in range(options.feeders)
        ]
        scene = stack.enter_context(Scene(feeders))
        orders = [_orders_of(course, feeders, options) for course in courses]
        run = _run(scene, orders, options)
    keys = [arrival.key for arrivals in run.arrivals for arrival in arrivals]
    known = [key for key in keys if any(course.place(key) is not None for course in courses)]
    digests = make_digests(orders[0], path, known)
    verdict = sum(
        (
            check_arrivals(arrivals, course, digests)
            for arrivals, course in zip(run.arrivals, courses, strict=True)
        ),
        Verdict(),
    )
    results, failures = judge(run, verdict, options)
    return ChaosReport(
        bench="chaos",
        machine=machine,
        results=results,
        failures=failures,
        faults=[
            (round(struck.at_s - run.began_s, 3), struck.fault.kind, _longest_gap(run, struck))
            for struck in run.struck
        ],
    )


def judge(run: Run, verdict: Verdict, options: ChaosOptions) -> tuple[list[Result], list[str]]:
    """Return the rows, and a line for each reason for which the run has failed."""
    calm, chaos = _throughputs(run, options.batch_size)
    ratio = chaos / calm if calm else 0.0
    node_kills = [struck for struck in run.struck if struck.fault.kind == "kill-node"]
    gap_s = max((_longest_gap(run, struck) for struck in node_kills), default=0.0)
    batches = sum(map(len, run.arrivals))
    kinds = {struck.fault.kind for struck in run.struck}
    rows = [
        single("chaos/faults", "faults", len(run.struck)),
        single("chaos/kinds", "kinds", len(kinds)),
        single("chaos/batches", "batches", batches),
        single("chaos/lost", "batches", verdict.lost),
        single("chaos/repeated", "batches", verdict.repeated),
        single("chaos/different", "batches", verdict.different),
        single("chaos/leaked", "things", len(run.left)),
        single("chaos/errors", "errors", len(run.errors)),
        single("chaos/throughput-undisturbed", RATE, calm),
        single("chaos/throughput", RATE, chaos),
        single("chaos/throughput-ratio", "", ratio),
        single("chaos/longest-gap-after-node-kill-s", "s", gap_s),
        *_gap_rows(run),
    ]
    for kind in KINDS:
        gaps_s = [_longest_gap(run, each) for each in run.struck if each.fault.kind == kind]
        if gaps_s:
            rows.append(single(f"faults/{kind}", "faults", len(gaps_s)))
            rows.append(single(f"faults/{kind}/longest-gap", "s", max(gaps_s)))
    failures = [
        f"{count} batches {what}"
        for what, count in (
            ("were lost", verdict.lost),
            ("came twice", verdict.repeated),
            ("had other bytes than they must, or were another rank's", verdict.different),
        )
        if count
    ]
    failures += [f"left behind: {what}" for what in run.left]
    failures += [f"a client gave up: {error}" for error in run.errors]
    if options.feeders > 1 and ratio < RATIO_MIN:
        failures.append(
            f"throughput among faults was {ratio:.2f} of the undisturbed, not {RATIO_MIN:g}"
        )
    if options.feeders > 1 and gap_s >= GAP_MAX_S:
        failures.append(
            f"a client waited {gap_s:.2f} s after a node process was killed, allowed are "
            f"{GAP_MAX_S:g}"
        )
    return rows, failures


def _plan_courses(path: Path, options: ChaosOptions) -> list[Course]:
    """Return the course of each rank; ConfigError where the dataset has too few batches."""
    recipe = Recipe.for_split("train", batch_size=options.batch_size)
    with Dataset.open(path) as dataset:
        batches = recipe.plan_epoch(dataset.layout, seed=0, epoch=0).batches
    steps = len(rank_indices(batches, 0, options.clients, recipe.last_batch))
    if not steps:
        raise ConfigError(
            f"an epoch of {path} has {batches} batches of {options.batch_size}, fewer than the "
            f"{options.clients} clients: lower --clients or --batch-size"
        )
    epochs = max(2, math.ceil(_COURSE_MIN / (steps * options.clients)))
    return [
        Course(rank=rank, world_size=options.clients, steps=steps, epochs=epochs)
        for rank in range(options.clients)
    ]


def _orders_of(course: Course, feeders: Sequence[Feeder], options: ChaosOptions) -> ClientOrders:
    return ClientOrders(
        endpoints=[feeder.tcp if course.rank % 2 else feeder.ipc for feeder in feeders],
        rank=course.rank,
        world_size=course.world_size,
        batch_size=options.batch_size,
        image_size=options.image_size,
        epochs=course.epochs,
    )


def _run(scene: Scene, orders: Sequence[ClientOrders], options: ChaosOptions) -> Run:
    """Have the clients train, calmly, among faults, calmly; Ctrl-C ends the faults early."""
    scene.note_idle(
        Recipe.for_split("train", batch_size=options.batch_size, image_size=options.image_size)
    )
    scene.add_clients([Client(each) for each in orders])
    began_s = time.monotonic()
    scene.pump(began_s + options.calm_s)
    scene.note_clients()
    chaos_from_s = time.monotonic()
    chaos_to_s = chaos_from_s
    try:
        _break_things(scene, options, chaos_from_s + 60 * options.minutes)
        chaos_to_s = time.monotonic()
        scene.pump(chaos_to_s + options.calm_s)
    except KeyboardInterrupt:
        sys.stderr.write("feeder-bench: interrupted: what has been seen so far is judged\n")
        chaos_to_s = max(chaos_to_s, time.monotonic())
    ended_s = time.monotonic()
    left = scene.close_and_count()
    return Run(
        began_s=began_s,
        struck=scene.struck,
        chaos_s=(chaos_from_s, chaos_to_s),
        ended_s=ended_s,
        arrivals=[client.arrivals for client in scene.clients],
        errors=[client.error for client in scene.clients if client.error is not None],
        left=left,
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


def _longest_gap(run: Run, struck: Struck) -> float:
    """Return the longest wait of a client for a batch between a fault and the next."""
    gaps = [
        gap
        for rank, arrivals in enumerate(run.arrivals)
        if not struck.hits_client(rank)
        for gap in gaps_within(arrivals, struck.at_s, struck.until_s)
    ]
    return round(max(gaps, default=0.0), 3)


def _throughputs(run: Run, batch_size: int) -> tuple[float, float]:
    """Return the images a second of all clients, undisturbed and among faults."""
    from_s, to_s = run.chaos_s
    times = [arrival.at_s for arrivals in run.arrivals for arrival in arrivals]
    first_s = max((each[0].at_s for each in run.arrivals if each), default=run.began_s)
    calm_s = max(0.0, from_s - first_s) + run.ended_s - to_s
    calm = sum(first_s <= at_s < from_s or to_s <= at_s < run.ended_s for at_s in times)
    chaos = sum(from_s <= at_s < to_s for at_s in times)
    return batch_size * calm / calm_s, batch_size * chaos / (to_s - from_s)


def _gap_rows(run: Run) -> list[Result]:
    from_s, to_s = run.chaos_s
    spans = {"": [(from_s, to_s)], "-undisturbed": [(run.began_s, from_s), (to_s, run.ended_s)]}
    rows = []
    for name, times in spans.items():
        gaps = [
            gap
            for arrivals, (since_s, until_s) in itertools.product(run.arrivals, times)
            for gap in gaps_within(arrivals, since_s, until_s)
        ]
        for percent in (50, 99) if gaps else ():
            gap_ms = 1e3 * float(np.percentile(gaps, percent))
            rows.append(single(f"chaos/gap-p{percent}{name}", "ms", gap_ms))
    return rows


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
