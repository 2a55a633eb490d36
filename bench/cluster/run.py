"""``feeder-bench cluster``: how many hosts a job takes, what bounds them, and what a loss costs."""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Result, single
from .outcomes import (
    HOSTS_MAX,
    PUBLISHED_HOSTS,
    PUBLISHED_IMAGES_S,
    Outcome,
    Scenario,
    find_hosts,
    run_saturated,
    run_scenario,
    run_steady,
    saturate,
)
from .report import ClusterReport, OwnershipCost
from .shape import Cluster, Fault, FaultKind, Lanes
from .validate import compare, compare_loss, judge, tiny_dataset

HOSTS: Final = "1,2,4,8,16,32"
RANKS_A_HOST: Final = 2
RANKS_MAX: Final = 4096
_MOST: Final = 1e9

# What is compared with asking any node: ImageNet's lanes in batches of 256, more for more hosts.
_OWNERS_RANKS: Final = (1, 16, 256)
_OWNERS_LANES: Final = ((2, 64), (3, 64), (4, 64), (16, 64), (64, 64), (64, 256))  # by hosts
_RANK_IMAGES_S: Final = 10_000.0
_ROUNDS: Final = 5
_SEED: Final = 0

_SHAPE: Final = {
    entry.metadata["option"]: entry for entry in fields(Cluster) if "option" in entry.metadata
}
_NUMBERS: Final = (
    *((name, entry.default, entry.metadata["what"]) for name, entry in _SHAPE.items()),
    ("images-per-second", 0.0, "find the fewest hosts that deliver so many, if above 0"),
    ("fault-hosts", 8, "hosts in the simulation of faults"),
    ("images", 512, "images to measure with, or to make, for --measure"),
    ("seconds", 20.0, "seconds of each real run, for --validate"),
)
"""Options with a number, and their defaults. Where the default is 0, 0 is allowed."""

_FLAGS: Final = {
    "cold": "the first epoch: everything is read from storage",
    "any": "what ownership costs with --hosts and --ranks, too, if nothing but cores limits",
    "measure": "measure what a core of this machine makes, instead of --images-per-core",
    "validate": "compare the model with real daemons on this machine, instead",
}
_FAULTS: Final[Sequence[tuple[FaultKind, str, str]]] = (
    ("lose", "HOST@T", "kill a host T seconds after the steady state began"),
    ("freeze", "HOST@T", "the same, as a power failure: connections stay"),
    ("join", "T", "add a host"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    two_a_host = f"each with all numbers of hosts (default: {RANKS_A_HOST} a host)"
    for what, most, default, words in (
        ("hosts", HOSTS_MAX, HOSTS, f"numbers of hosts (default: {HOSTS})"),
        ("ranks", RANKS_MAX, (), f"numbers of ranks, {two_a_host}"),
    ):
        parse = partial(_parse_numbers, f"--{what}", most)
        parser.add_argument(f"--{what}", type=parse, default=default, metavar="N,…", help=words)
    for option, number, what in _NUMBERS:
        words = f"{what} (default: {number:g})"
        parser.add_argument(
            f"--{option}", type=type(number), default=number, metavar="N", help=words
        )
    for option, what in _FLAGS.items():
        parser.add_argument(f"--{option}", action="store_true", help=what)
    for kind, form, what in _FAULTS:
        parser.add_argument(
            f"--{kind}",
            dest="faults",
            action="append",
            type=partial(_parse_fault, kind),
            metavar=form,
            help=f"{what}; repeatable",
        )


def read_cluster(arguments: argparse.Namespace) -> Cluster:
    """Return what is simulated, with one host; ConfigError for options that contradict."""
    values = {}
    for option, default, _ in _NUMBERS:
        value = values[option] = getattr(arguments, option.replace("-", "_"))
        if not 0 <= value <= _MOST or (default and not value):
            least = "above 0" if default else "0 or more"
            raise ConfigError(f"--{option} {value:g} is not {least}, and {_MOST:g} at most")
    shape = {entry.name: values[name] for name, entry in _SHAPE.items()}
    cluster = Cluster(**shape, cold=arguments.cold)
    hosts, ranks, wanted = arguments.hosts, arguments.ranks, arguments.images_per_second
    for fault in arguments.faults or ():
        if fault.kind != "join" and fault.host >= arguments.fault_hosts:
            raise ConfigError(
                f"--{fault.kind} {fault.host}@{fault.at_s:g}: the hosts are 0 .. "
                f"{arguments.fault_hosts - 1}: name one of them, or raise --fault-hosts"
            )
    if arguments.plot is not None and not arguments.validate and (wanted or len(hosts) < 2):
        raise ConfigError("--plot needs two numbers of hosts: add to --hosts, or omit it")
    by_hosts = _ranks_for(wanted) if wanted else RANKS_A_HOST * max(hosts)
    most = max(max(ranks, default=by_hosts), RANKS_A_HOST * arguments.fault_hosts)
    if cluster.samples < cluster.batch_size * most:
        raise ConfigError(
            f"--samples {cluster.samples} gives {most} ranks no batch of {cluster.batch_size} "
            "each: use more samples, fewer ranks or hosts, or smaller batches"
        )
    return cluster


def _ranks_for(images_s: float) -> int:
    """Return the number of ranks that can take this throughput, as a default."""
    return max(1, math.ceil(images_s / _RANK_IMAGES_S))


def _parse_numbers(option: str, most: int, text: str) -> tuple[int, ...]:
    """Return the numbers in ``1,2,4``; ConfigError where one is none, or out of range."""
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = {0}
    if not 1 <= min(numbers) <= max(numbers) <= most:
        raise ConfigError(f"{option} {text}: write numbers 1 .. {most}, as in 1,4,16")
    return tuple(sorted(numbers))


def _parse_fault(kind: FaultKind, text: str) -> Fault:
    """Return the fault of ``HOST@SECONDS``, of a join ``SECONDS``; ConfigError if malformed."""
    form = "SECONDS, as in 3.5" if kind == "join" else "HOST@SECONDS, as in 2@3.5"
    host, at, at_s = text.rpartition("@")
    try:
        fault = Fault(kind=kind, host=int(host or "0"), at_s=float(at_s))
        if bool(at) != (kind == "join") and 0 <= fault.at_s <= 600 and fault.host >= 0:
            return fault
    except ValueError:
        pass
    raise ConfigError(f"--{kind} {text}: write {form}, with 0 .. 600 s")


def run(arguments: argparse.Namespace) -> ClusterReport:
    cluster = read_cluster(arguments)
    machine = describe_machine(decoder="own" if arguments.measure else None)
    if arguments.validate:
        return _validate(arguments.seconds, machine)
    if arguments.measure:
        with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
            cluster = measure_core(
                cluster, path, images=arguments.images, core=choose_core(None), rounds=_ROUNDS
            )
    sizing = scenario = None
    clusters: list[Cluster] = []
    wanted, faults = arguments.images_per_second, arguments.faults
    if wanted:
        ranks = max(arguments.ranks, default=_ranks_for(wanted))
        sizing = find_hosts(replace(cluster, ranks=ranks), wanted, _run_steady)
    else:
        clusters = [
            replace(cluster, hosts=hosts, ranks=ranks)
            for hosts in arguments.hosts
            for ranks in arguments.ranks or (RANKS_A_HOST * hosts,)
        ]
    outcomes = [_run_steady(each) for each in clusters]
    any_node = [_compare_any(each) for each in _owner_clusters(arguments, cluster, clusters)]
    published = []
    for hosts in PUBLISHED_HOSTS:
        if clusters and hosts in arguments.hosts:  # what each host makes was published
            rate, ranks = PUBLISHED_IMAGES_S / cluster.cores, RANKS_A_HOST * hosts
            alike = replace(cluster, hosts=hosts, images_per_core_s=rate, ranks=ranks)
            published.append(_run_steady(alike))
    if faults or not wanted:
        hosts = arguments.fault_hosts
        _note(f"faults, {hosts} hosts")
        faults = tuple(faults or [Fault(kind="lose", host=1, at_s=0.0)])
        scenario = run_scenario(
            replace(cluster, hosts=hosts, ranks=RANKS_A_HOST * hosts, faults=faults)
        )
    return ClusterReport(
        bench="cluster",
        machine=machine,
        results=_results(outcomes, any_node, scenario),
        measured=_describe(cluster, rate="measured here" if arguments.measure else "given"),
        failures=(),
        outcomes=outcomes,
        any_node=any_node,
        published=published,
        sizing=sizing,
        scenario=scenario,
    )


def measure_core(cluster: Cluster, path: Path, *, images: int, core: int, rounds: int) -> Cluster:
    """Return the cluster with the rate of this machine's ``core``, and how much it varies.

    It fills chunks of a dataset, in whole rounds, of which the median counts. Times are CPU times,
    so that a machine in use does not look slower than it is.
    """
    check_libraries()
    tune_allocator()
    with pinned_to(core), Dataset.open(path) as dataset:
        images = min(images, dataset.layout.samples)
        chunk = min(images, ServeConfig().chunk_images)
        count = images // chunk * chunk
        recipe = Recipe.for_split("train", batch_size=chunk)
        order = np.random.default_rng(_SEED).permutation(dataset.layout.samples)[:count]
        reader = SampleReader(dataset, recipe)
        pixels = np.empty((chunk, recipe.image_size, recipe.image_size, 3), np.int8)
        labels = np.empty((chunk, *dataset.labels.row_shape), dataset.labels.dtype)
        rates, spreads = [], []
        for epoch in range(rounds + 1):
            chunks_s = []
            for ids in order.astype(np.int64).reshape(-1, chunk):
                began_s = time.thread_time()
                reader.fill(ids, seed=_SEED, epoch=epoch, pixels=pixels, labels=labels)
                chunks_s.append(time.thread_time() - began_s)
            if epoch:  # the first round warms caches up
                rates.append(count / sum(chunks_s))
                spreads.append(statistics.pstdev(chunks_s) / statistics.fmean(chunks_s))
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return replace(
            cluster,
            images_per_core_s=statistics.median(rates),
            spread=statistics.median(spreads),
            image_bytes=round(size / dataset.layout.samples),
        )


def _run_steady(cluster: Cluster) -> Outcome:
    _note(f"{cluster.hosts} hosts, {cluster.ranks} ranks")
    return run_steady(cluster)


def _owner_clusters(
    arguments: argparse.Namespace, cluster: Cluster, clusters: Sequence[Cluster]
) -> Sequence[Cluster]:
    """Return what to compare with asking any node."""
    if arguments.any:
        return clusters
    if not clusters or arguments.hosts != _parse_numbers("--hosts", HOSTS_MAX, HOSTS):
        return ()
    return [
        replace(cluster, hosts=hosts, ranks=ranks, lanes=lanes)
        for hosts, lanes in _OWNERS_LANES
        for ranks in _OWNERS_RANKS
    ]


def _compare_any(cluster: Cluster) -> OwnershipCost:
    _note(f"{cluster.hosts} hosts, {cluster.ranks} ranks, by owner and any")
    cluster = saturate(cluster)
    return OwnershipCost(
        lanes=Lanes(cluster).count,
        window=cluster.window,
        by_owner=run_saturated(cluster),
        any_node=run_saturated(replace(cluster, any_node=True)),
    )


def _validate(seconds: float, machine: Mapping[str, object]) -> ClusterReport:
    with tiny_dataset() as dataset:
        compared = compare(dataset, seconds=seconds, report=_note)
        _note("a daemon killed")
        killed = compare_loss(dataset)
    results = []
    for each in compared:
        setting = f"{each.daemons}-daemons/window-{each.window}{'/any' * each.any_node}"
        results += [
            single(f"real/{setting}", RATE, each.real_images_s),
            single(f"model/{setting}", RATE, each.model_images_s),
            single(f"real-owner-share/{setting}", "%", 100 * each.real_owner),
            single(f"model-owner-share/{setting}", "%", 100 * each.model_owner),
        ]
    return ClusterReport(
        bench="cluster",
        machine=machine,
        results=results,
        measured={"seconds of each real run": seconds},
        failures=judge(compared),
        compared=compared,
        killed=killed,
    )


def _describe(cluster: Cluster, *, rate: str) -> dict[str, object]:
    wanted = (
        f"{cluster.rank_images_s:,.0f} images/s" if cluster.rank_images_s else "as fast as it can"
    )
    return {
        "a host": (
            f"{cluster.cores} cores of {cluster.images_per_core_s:,.0f} images/s ({rate}), "
            f"{cluster.nic_gbit_s:g} Gbit/s, {cluster.storage_mb_s:g} MB/s from storage, "
            f"{cluster.cache_gb:g} GB of page cache"
        ),
        "a rank": (
            f"batches of {cluster.batch_size}, window {cluster.window}, "
            f"{cluster.rank_gb_s:g} GB/s, {wanted}"
        ),
        "dataset": f"{cluster.samples:,} samples of {cluster.image_bytes:,} bytes",
    }


def _results(
    outcomes: Sequence[Outcome], any_node: Sequence[OwnershipCost], scenario: Scenario | None
) -> list[Result]:
    rows = []
    for each in outcomes:
        setting = f"{each.hosts}-hosts-{each.ranks}-ranks"
        rows += [
            single(f"cluster/{setting}", RATE, each.images_s),
            single(f"owner-share/{setting}", "%", 100 * each.owner_share),
            single(f"sessions/{setting}", "a node process", each.sessions),
            single(f"fds-node/{setting}", "descriptors", each.node_fds),
            single(f"fds-rank/{setting}", "descriptors", each.client_fds),
        ]
    for pair in any_node:
        each = pair.by_owner
        setting = f"{each.hosts}-hosts-{each.ranks}-ranks-{pair.lanes}-lanes"
        rows += [
            single(f"saturated/{setting}", RATE, each.made_images_s),
            single(f"saturated-owner-share/{setting}", "%", 100 * each.owner_share),
            single(f"ownership-cost/{setting}", "%", 100 * pair.cost),
        ]
    for number, dip in enumerate(scenario.dips if scenario is not None else ()):
        name = f"fault/{number}-{dip.fault.kind}"
        rows.append(single(f"{name}/depth", "%", 100 * dip.depth))
        if dip.recovery_s is not None:
            rows.append(single(f"{name}/recovery", "s", dip.recovery_s))
    return rows


def _note(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"feeder-bench: {line}\n")
