"""``feeder-bench cluster``: how many hosts a job takes, what bounds them, and what a loss costs."""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Result, single
from .dip import Scenario, run_scenario
from .options import RANKS_A_HOST, add_arguments, read_cluster
from .owners import asking_any_node
from .report import ClusterReport, OwnershipCost
from .shape import Cluster, Fault
from .steady import (
    PUBLISHED_HOSTS,
    Outcome,
    choose_ranks,
    find_hosts,
    published_cluster,
    run_steady,
)
from .validate import Compared, compare, compare_loss, judge, tiny_dataset

__all__ = ["add_arguments", "run"]

_WARM_STORAGE_MB_S: Final = 1e9
"""To compare ownership with asking any node by their evenness alone."""
_ROUNDS: Final = 5
_SEED: Final = 0


def run(arguments: argparse.Namespace) -> ClusterReport:
    """Run the bench; ConfigError for options that contradict each other."""
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
    outcomes: list[Outcome] = []
    any_node: list[OwnershipCost] = []
    published: list[Outcome] = []
    wanted, faults = arguments.images_per_second, arguments.faults
    if wanted:
        ranks = max(arguments.ranks, default=choose_ranks(wanted))
        sizing = find_hosts(replace(cluster, ranks=ranks), wanted, _run_steady)
    else:
        clusters = [*clusters_of(arguments, cluster)]
        outcomes = [_run_steady(each) for each in clusters]
        if arguments.any:
            any_node = [_compare_any(each) for each in clusters]
        published = [
            _run_steady(published_cluster(cluster, hosts))
            for hosts in PUBLISHED_HOSTS
            if hosts in arguments.hosts
        ]
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
        results=_results(outcomes, scenario),
        measured=_describe(cluster, rate="measured here" if arguments.measure else "given"),
        failures=(),
        outcomes=outcomes,
        any_node=any_node,
        published=published,
        sizing=sizing,
        scenario=scenario,
    )


def clusters_of(arguments: argparse.Namespace, cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with each number of hosts, and each number of ranks with that."""
    for hosts in arguments.hosts:
        for ranks in arguments.ranks or (RANKS_A_HOST * hosts,):
            yield replace(cluster, hosts=hosts, ranks=ranks)


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


def _compare_any(cluster: Cluster) -> OwnershipCost:
    warm = replace(cluster, storage_mb_s=_WARM_STORAGE_MB_S)
    by_owner = _run_steady(warm)
    with asking_any_node():
        return OwnershipCost(by_owner=by_owner, any_node=_run_steady(warm))


def _validate(seconds: float, machine: Mapping[str, object]) -> ClusterReport:
    with tiny_dataset() as dataset:
        compared = compare(dataset, seconds=seconds, report=_note)
        _note("a daemon killed")
        killed = compare_loss(dataset)
    return ClusterReport(
        bench="cluster",
        machine=machine,
        results=_compared_results(compared),
        measured={"seconds of each real run": seconds},
        failures=judge(compared),
        compared=compared,
        killed=killed,
    )


def _describe(cluster: Cluster, *, rate: str) -> dict[str, object]:
    """Return what was simulated, for the header."""
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


def _results(outcomes: Sequence[Outcome], scenario: Scenario | None) -> list[Result]:
    rows = []
    for each in outcomes:
        name = f"{each.hosts}-hosts-{each.ranks}-ranks"
        rows += [
            single(f"cluster/{name}", RATE, each.images_s),
            single(f"owner-share/{name}", "%", 100 * each.owner_share),
            single(f"sessions/{name}", "a node process", each.sessions),
            single(f"fds-node/{name}", "descriptors", each.node_fds),
            single(f"fds-rank/{name}", "descriptors", each.client_fds),
        ]
    for number, dip in enumerate(scenario.dips if scenario is not None else ()):
        rows.append(single(f"fault/{number}-{dip.fault.kind}/depth", "%", 100 * dip.depth))
        if dip.recovery_s is not None:
            rows.append(single(f"fault/{number}-{dip.fault.kind}/recovery", "s", dip.recovery_s))
    return rows


def _compared_results(compared: Sequence[Compared]) -> list[Result]:
    rows = []
    for each in compared:
        name = f"{each.daemons}-daemons/window-{each.window}{'/any' * each.any_node}"
        rows += [
            single(f"real/{name}", RATE, each.real_images_s),
            single(f"model/{name}", RATE, each.model_images_s),
            single(f"real-owner-share/{name}", "%", 100 * each.real_owner),
            single(f"model-owner-share/{name}", "%", 100 * each.model_owner),
        ]
    return rows


def _note(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"feeder-bench: {line}\n")
