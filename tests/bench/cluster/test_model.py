"""The model of many hosts: what it must keep, whatever happens to its hosts."""

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.cluster.outcomes import (
    HOSTS_MAX,
    Outcome,
    find_hosts,
    run_saturated,
    run_scenario,
    run_steady,
    saturate,
)
from bench.cluster.shape import Cluster, Fault, FaultKind
from bench.cluster.simulation import Simulation

CLUSTER = Cluster(
    hosts=3,
    cores=4,
    images_per_core_s=320.0,
    spread=0.1,
    nic_gbit_s=10.0,
    ranks=2,
    batch_size=64,
    chunk_images=16,
    image_px=32,
    samples=8192,
    shards=8,
    lanes=16,
    image_bytes=20_000,
)
HOST_IMAGES_S = CLUSTER.host_images_s


@functools.cache
def any_outcome() -> Outcome:
    return run_steady(replace(CLUSTER, hosts=1), warm_up_s=0.1, window_s=0.1)


@settings(deadline=None, max_examples=8)
@given(
    hosts=st.integers(1, 4),
    ranks=st.integers(1, 3),
    window=st.integers(1, 12),
    faults=st.lists(
        st.builds(
            Fault,
            kind=st.sampled_from(["lose", "freeze", "join"]),
            at_s=st.floats(0, 2),
            host=st.integers(1, 3),
        ),
        max_size=3,
    ),
    seed=st.integers(0, 5),
)
def test_each_rank_takes_its_batches_in_order_each_once(
    hosts: int, ranks: int, window: int, faults: list[Fault], seed: int
) -> None:
    """Host 0 stays; the others are killed, freeze and join."""
    known = tuple(fault for fault in faults if fault.kind == "join" or fault.host < hosts)
    simulation = Simulation(
        replace(CLUSTER, hosts=hosts, ranks=ranks, window=window, faults=known, seed=seed)
    )
    simulation.run(4.0)
    assert all(rank.is_whole for rank in simulation.ranks)
    assert all(rank.taken for rank in simulation.ranks)
    taken = [key for rank in simulation.ranks for key in rank.taken]
    assert len(taken) == len(set(taken)) == simulation.tally.batches
    assert simulation.tally.images == 64 * len(taken) == sum(simulation.timeline.bins)
    assert simulation.tally.made_images >= simulation.tally.images


@pytest.mark.parametrize(
    ("bound", "changes", "most_images_s"),
    [
        ("cpu", {}, 3 * HOST_IMAGES_S),
        ("nic", {"nic_gbit_s": 0.01}, 3 * 0.01e9 / 8 / CLUSTER.wire_bytes),
        ("storage", {"storage_mb_s": 8.0, "cold": True}, 3 * 8e6 / CLUSTER.image_bytes),
        ("rank", {"rank_gb_s": 0.002}, 2 * 0.002e9 / CLUSTER.wire_bytes),
        ("demand", {"rank_images_s": 640.0}, 2 * 640.0),
        ("window", {"ranks": 1, "window": 1}, 0.6 * 3 * HOST_IMAGES_S),
    ],
)
def test_the_throughput_is_at_the_bound_and_not_above(
    bound: str, changes: dict[str, Any], most_images_s: float
) -> None:
    outcome = run_steady(replace(CLUSTER, **changes), warm_up_s=3.0, window_s=10.0)
    assert outcome.bound == bound
    assert outcome.images_s < 1.02 * most_images_s
    assert bound == "window" or outcome.images_s > 0.88 * most_images_s
    for share in (outcome.cpu, outcome.nic, outcome.storage, outcome.rank):
        assert 0 <= share < 1.02


@pytest.mark.parametrize(
    ("hosts", "ranks", "least_share"),
    [
        *[(2, 16, 0.75), (4, 1, 0.75), (16, 1, 0.85)],
        *(
            pytest.param(*case, marks=pytest.mark.extensive("other sizes of the same cluster"))
            for case in [(3, 1, 0.75), (4, 16, 0.75), (16, 16, 0.85)]
        ),
    ],
)
def test_owners_make_most_batches_and_cost_no_throughput_where_hosts_are_the_bottleneck(
    hosts: int, ranks: int, least_share: float
) -> None:
    cluster = saturate(Cluster(hosts=hosts, ranks=ranks, lanes=64))
    outcome, any_node = run_saturated(cluster), run_saturated(replace(cluster, any_node=True))
    assert outcome.bound == "cpu"
    assert outcome.owner_share >= least_share
    assert outcome.made_images_s >= 0.98 * any_node.made_images_s


@pytest.mark.parametrize(("kind", "hosts_after"), [("lose", 2), ("freeze", 2), ("join", 4)])
def test_a_fault_changes_the_throughput_by_a_host(kind: FaultKind, hosts_after: int) -> None:
    faults = (Fault(kind=kind, host=1, at_s=0.0),)
    scenario = run_scenario(replace(CLUSTER, faults=faults), before_s=4.0, after_s=14.0)
    (dip,) = scenario.dips
    assert scenario.is_whole
    assert dip.before_images_s == pytest.approx(3 * HOST_IMAGES_S, rel=0.08)
    assert dip.after_images_s == pytest.approx(hosts_after * HOST_IMAGES_S, rel=0.03)
    assert dip.recovery_s is not None
    assert dip.recovery_s < 6.0 or kind == "freeze"
    assert dip.depth < 0.5 or kind == "freeze"
    # Of a killed host, what was in flight is requested from others; a frozen one is missed longer.
    assert (dip.hedged > CLUSTER.ranks * CLUSTER.window) == (kind == "freeze")
    assert kind != "freeze" or dip.depth > 1 / 3


def test_a_fault_is_compared_with_the_time_since_the_one_before() -> None:
    faults = (Fault(kind="join", at_s=5.0), Fault(kind="freeze", host=1, at_s=0.0))
    first, second = run_scenario(replace(CLUSTER, faults=faults), before_s=4.0).dips
    assert (first.fault.at_s, second.fault.at_s) == (4.0, 9.0)
    assert first.after_images_s == pytest.approx(2 * HOST_IMAGES_S, rel=0.09), "in its last quarter"
    assert first.hedged > second.hedged == 0
    assert second.before_images_s < 0.75 * first.before_images_s
    assert second.recovery_s == 0


def test_one_host_owns_all_lanes_and_is_cold_only_where_its_cache_ends() -> None:
    one = replace(CLUSTER, hosts=1)
    outcome = run_steady(one)
    assert (outcome.owner_share, outcome.cold_share) == (1.0, 0.0)
    assert (outcome.sessions, outcome.links) == (2, 1)
    half_gb = CLUSTER.samples * CLUSTER.image_bytes / 2e9
    assert run_steady(replace(one, cache_gb=half_gb)).cold_share == pytest.approx(0.5, abs=0.02)
    assert run_steady(replace(CLUSTER, cold=True)).cold_share == pytest.approx(1.0, abs=0.01)


@settings(deadline=None)
@given(st.floats(1.0, 400_000.0), st.floats(0.3, 1.0))
@example(1e9, 1.0)  # by arithmetic already too many
def test_the_fewest_hosts_that_reach_it_are_found(wanted: float, efficiency: float) -> None:
    rate = efficiency * HOST_IMAGES_S

    def run(cluster: Cluster) -> Outcome:
        return replace(any_outcome(), hosts=cluster.hosts, images_s=rate * cluster.hosts)

    sizing = find_hosts(CLUSTER, wanted, run)
    fewest = next((n for n in range(1, HOSTS_MAX + 1) if rate * n >= wanted), None)
    assert (sizing.outcome.hosts if sizing.outcome else None) == fewest
    assert sizing.least == math.ceil(wanted / HOST_IMAGES_S)
