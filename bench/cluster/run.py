"""``feeder-bench cluster``: how many hosts a job takes, what bounds them, and what a loss costs."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine
from ..report import RATE, Result, single
from .dip import Scenario, run_scenario
from .options import ClusterOptions, add_arguments
from .outcome import Outcome, run_steady
from .owners import asking_any_node
from .published import HOSTS as PUBLISHED_HOSTS
from .published import published_cluster
from .rates import measure_core
from .real_cluster import tiny_dataset
from .report import ClusterReport, OwnershipCost
from .shape import Cluster, Fault
from .sizing import Sizing, choose_ranks, find_hosts
from .validate import IMAGES, Compared, compare, compare_loss, judge

__all__ = ["add_arguments", "run"]

_WARM_STORAGE_MB_S = 1e9
"""To compare ownership with asking any node by their evenness alone."""


def run(arguments: argparse.Namespace) -> ClusterReport:
    """Run the bench; ConfigError for options that contradict each other."""
    options = ClusterOptions.of(arguments)
    machine = describe_machine(decoder="own" if options.measure else None)
    if options.validate:
        return _validate(options, machine)
    if options.measure:
        options = _measure(options)
    sizing: Sizing | None = None
    outcomes: list[Outcome] = []
    any_node: list[OwnershipCost] = []
    if options.wanted_images_s:
        sizing = _find(options)
    else:
        outcomes = [_run_steady(cluster) for cluster in options.clusters]
        if options.any_node:
            any_node = _run_any(options)
    published = [
        _run_steady(published_cluster(options.cluster, hosts))
        for hosts in PUBLISHED_HOSTS
        if hosts in options.hosts and sizing is None
    ]
    scenario = _run_faults(options) if not sizing or options.faults else None
    return ClusterReport(
        bench="cluster",
        machine=machine,
        results=_results(outcomes, scenario),
        measured=_describe(options),
        failures=(),
        outcomes=outcomes,
        any_node=any_node,
        published=published,
        sizing=sizing,
        scenario=scenario,
    )


def _run_steady(cluster: Cluster) -> Outcome:
    _note(f"{cluster.hosts} hosts, {cluster.job.ranks} ranks")
    return run_steady(cluster)


def _run_any(options: ClusterOptions) -> list[OwnershipCost]:
    found = []
    for cluster in options.clusters:
        host = replace(cluster.host, storage_mb_s=_WARM_STORAGE_MB_S)
        warm = replace(cluster, host=host)
        by_owner = _run_steady(warm)
        with asking_any_node():
            found.append(OwnershipCost(by_owner=by_owner, any_node=_run_steady(warm)))
    return found


def _find(options: ClusterOptions) -> Sizing:
    wanted = options.wanted_images_s
    ranks = options.ranks or (choose_ranks(wanted),)
    job = replace(options.cluster.job, ranks=ranks[-1])
    return find_hosts(replace(options.cluster, job=job), wanted, _run_steady)


def _run_faults(options: ClusterOptions) -> Scenario:
    faults = options.faults or (Fault(kind="lose", host=1, at_s=0.0),)
    _note(f"faults, {options.fault_hosts} hosts")
    return run_scenario(replace(options.of_size(options.fault_hosts), faults=faults))


def _measure(options: ClusterOptions) -> ClusterOptions:
    """Return the options with this machine's rate."""
    with dataset_or_synthetic(options.dataset, images=options.images) as path:
        rate = measure_core(path, images=options.images, core=choose_core(None))
    cluster = options.cluster
    host = replace(cluster.host, images_per_core_s=rate.images_s, spread=rate.spread)
    dataset = replace(cluster.dataset, image_bytes=rate.image_bytes)
    return replace(options, cluster=replace(cluster, host=host, dataset=dataset))


def _validate(options: ClusterOptions, machine: Mapping[str, object]) -> ClusterReport:
    with tiny_dataset(IMAGES) as dataset:
        compared = compare(dataset, seconds=options.seconds, report=_note)
        _note("a daemon killed")
        killed = compare_loss(dataset)
    return ClusterReport(
        bench="cluster",
        machine=machine,
        results=_compared_results(compared),
        measured={"seconds of each real run": options.seconds},
        failures=judge(compared),
        compared=compared,
        killed=killed,
    )


def _describe(options: ClusterOptions) -> dict[str, object]:
    """Return what was simulated, for the header."""
    host, job, dataset = options.cluster.host, options.cluster.job, options.cluster.dataset
    rate = "measured here" if options.measure else "given"
    consumes = f"{job.rank_images_s:,.0f} images/s" if job.rank_images_s else "as fast as it can"
    return {
        "a host": (
            f"{host.cores} cores of {host.images_per_core_s:,.0f} images/s ({rate}), "
            f"{host.nic_gbit_s:g} Gbit/s, {host.storage_mb_s:g} MB/s from storage, "
            f"{host.cache_gb:g} GB of page cache"
        ),
        "a rank": (
            f"batches of {job.batch_size}, window {job.window}, {job.rank_gb_s:g} GB/s, {consumes}"
        ),
        "dataset": f"{dataset.samples:,} samples of {dataset.image_bytes:,} bytes",
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
