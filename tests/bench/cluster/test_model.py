"""The model of many hosts: what it must keep, whatever happens to its hosts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cluster.agenda import Agenda
from bench.cluster.dip import run_scenario
from bench.cluster.outcome import Outcome, run_steady
from bench.cluster.owners import Lanes, asking_any_node
from bench.cluster.shape import Cluster, DatasetShape, Fault, HostShape, JobShape
from bench.cluster.simulation import Simulation
from bench.cluster.sizing import HOSTS_MAX, find_hosts

HOST = HostShape(cores=4, images_per_core_s=320.0, spread=0.1, nic_gbit_s=10.0)
JOB = JobShape(ranks=2, batch_size=64, window=8, chunk_images=16, image_size=32)
DATASET = DatasetShape(samples=8192, shards=8, image_bytes=20_000)
CLUSTER = Cluster(hosts=3, host=HOST, job=JOB, dataset=DATASET)
CPU_IMAGES_S = HOST.cpu_images_s


def test_calls_are_made_in_the_order_of_their_times() -> None:
    agenda, made = Agenda(), []
    agenda.at(2.0, lambda: made.append(("second", agenda.now_s)))
    agenda.at(1.0, lambda: agenda.after(1.0, lambda: made.append(("last", agenda.now_s))))
    agenda.at(1.0, lambda: made.append(("first", agenda.now_s)))
    agenda.at(9.0, lambda: made.append(("never", agenda.now_s)))
    agenda.run(5.0)
    assert made == [("first", 1.0), ("second", 2.0), ("last", 2.0)]
    assert agenda.now_s == 5.0


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
    job = replace(JOB, ranks=ranks, window=window)
    known = tuple(fault for fault in faults if fault.kind == "join" or fault.host < hosts)
    simulation = Simulation(replace(CLUSTER, hosts=hosts, job=job, faults=known, seed=seed))
    simulation.run(4.0)
    assert all(rank.is_whole for rank in simulation.ranks)
    assert all(rank.taken for rank in simulation.ranks)
    taken = [key for rank in simulation.ranks for key in rank.taken]
    assert len(taken) == len(set(taken)) == simulation.tally.batches
    assert simulation.tally.images == 64 * len(taken) == sum(simulation.timeline.bins)
    assert simulation.tally.made_images >= simulation.tally.images


@pytest.mark.parametrize(
    ("bound", "cluster", "most_images_s"),
    [
        ("cpu", CLUSTER, 3 * CPU_IMAGES_S),
        (
            "nic",
            replace(CLUSTER, host=replace(HOST, nic_gbit_s=0.01)),
            3 * 0.01e9 / 8 / JOB.wire_bytes,
        ),
        (
            "storage",
            replace(
                CLUSTER,
                host=replace(HOST, storage_mb_s=8.0),
                dataset=replace(DATASET, is_cold=True),
            ),
            3 * 8e6 / DATASET.image_bytes,
        ),
        (
            "rank",
            replace(CLUSTER, job=replace(JOB, rank_gb_s=0.002)),
            2 * 0.002e9 / JOB.wire_bytes,
        ),
        ("demand", replace(CLUSTER, job=replace(JOB, rank_images_s=640.0)), 2 * 640.0),
    ],
)
def test_the_throughput_is_at_the_bound_and_not_above(
    bound: str, cluster: Cluster, most_images_s: float
) -> None:
    outcome = run_steady(cluster, warm_up_s=3.0, window_s=10.0)
    assert outcome.bound == bound
    assert 0.88 * most_images_s < outcome.images_s < 1.02 * most_images_s
    for share in (outcome.cpu, outcome.nic, outcome.storage, outcome.rank):
        assert 0 <= share < 1.02


def test_too_small_a_window_is_the_bound() -> None:
    job = replace(JOB, ranks=1, window=1)
    outcome = run_steady(replace(CLUSTER, job=job), warm_up_s=2.0, window_s=10.0)
    assert outcome.bound == "window"
    assert outcome.images_s < 2 * CPU_IMAGES_S


def test_a_killed_host_costs_its_share_and_no_more() -> None:
    faults = (Fault(kind="lose", host=1, at_s=0.0),)
    scenario = run_scenario(replace(CLUSTER, faults=faults), before_s=4.0, after_s=12.0)
    (dip,) = scenario.dips
    assert scenario.is_whole
    assert dip.before_images_s == pytest.approx(3 * CPU_IMAGES_S, rel=0.08)
    assert dip.after_images_s == pytest.approx(2 * CPU_IMAGES_S, rel=0.08)
    assert dip.recovery_s is not None
    assert dip.recovery_s < 6.0


def test_a_frozen_host_is_given_up_after_seconds() -> None:
    faults = (Fault(kind="freeze", host=1, at_s=0.0),)
    scenario = run_scenario(replace(CLUSTER, faults=faults), before_s=4.0, after_s=16.0)
    (dip,) = scenario.dips
    assert scenario.is_whole
    assert dip.after_images_s == pytest.approx(2 * CPU_IMAGES_S, rel=0.1)
    assert dip.hedged > 0, "its batches were requested from others"
    assert dip.depth > 1 / 3, "it was missed more than a killed one"
    assert dip.recovery_s is not None


def test_a_host_that_joins_adds_its_share() -> None:
    faults = (Fault(kind="join", at_s=0.0),)
    scenario = run_scenario(replace(CLUSTER, faults=faults), before_s=4.0, after_s=12.0)
    (dip,) = scenario.dips
    assert scenario.is_whole
    assert dip.after_images_s == pytest.approx(4 * CPU_IMAGES_S, rel=0.08)


def test_one_host_owns_all_lanes() -> None:
    outcome = run_steady(replace(CLUSTER, hosts=1))
    assert outcome.owner_share == 1.0
    assert outcome.cold_share == 0.0
    assert (outcome.sessions, outcome.links) == (2, 1)


def test_in_the_first_epoch_everything_is_read_from_storage() -> None:
    cold = replace(CLUSTER, dataset=replace(DATASET, is_cold=True))
    assert run_steady(cold).cold_share == pytest.approx(1.0, abs=0.01)


def test_a_small_cache_is_read_past() -> None:
    host = replace(HOST, cache_gb=DATASET.samples * DATASET.image_bytes / 2e9)
    outcome = run_steady(replace(CLUSTER, hosts=1, host=host))
    assert outcome.cold_share == pytest.approx(0.5, abs=0.02)


def test_the_same_seed_gives_the_same_simulation() -> None:
    def run(seed: int) -> list[int]:
        simulation = Simulation(replace(CLUSTER, seed=seed))
        simulation.run(3.0)
        return simulation.timeline.bins

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_every_lane_has_an_owner_that_is_listed() -> None:
    lanes = Lanes(DATASET, JOB)
    names = [f"host-{number}" for number in range(5)]
    owners = lanes.owners(names)
    assert len(owners) == lanes.count
    assert set(owners.values()) <= set(names)


def test_asking_any_node_ends_with_its_body() -> None:
    host = replace(HOST, storage_mb_s=1e9)
    cluster = replace(CLUSTER, hosts=4, host=host)
    by_owner = run_steady(cluster, warm_up_s=2.0, window_s=8.0)
    with asking_any_node():
        free = run_steady(cluster, warm_up_s=2.0, window_s=8.0)
    assert free.owner_share < by_owner.owner_share
    assert by_owner.images_s > 0.96 * free.images_s
    again = run_steady(cluster, warm_up_s=2.0, window_s=8.0)
    assert again.owner_share == by_owner.owner_share


# --- Sizing -----------------------------------------------------------------------------------


def outcome_of(cluster: Cluster, images_s: float) -> Outcome:
    simulated = run_steady(replace(CLUSTER, hosts=1), warm_up_s=0.1, window_s=0.1)
    return replace(simulated, hosts=cluster.hosts, images_s=images_s)


@settings(deadline=None)
@given(st.floats(1.0, 400_000.0), st.floats(0.3, 1.0))
def test_the_fewest_hosts_that_reach_it_are_found(wanted: float, efficiency: float) -> None:
    rate = efficiency * CPU_IMAGES_S
    known = outcome_of(CLUSTER, 0.0)

    def run(cluster: Cluster) -> Outcome:
        return replace(known, hosts=cluster.hosts, images_s=rate * cluster.hosts)

    sizing = find_hosts(CLUSTER, wanted, run)
    fewest = next((n for n in range(1, HOSTS_MAX + 1) if rate * n >= wanted), None)
    if fewest is None:
        assert sizing.outcome is None
    else:
        assert sizing.outcome is not None
        assert sizing.outcome.hosts == fewest
    assert sizing.least == math.ceil(wanted / CPU_IMAGES_S)


def test_sizing_simulates_and_reaches_the_throughput() -> None:
    wanted = 2.5 * CPU_IMAGES_S
    cluster = replace(CLUSTER, job=replace(JOB, ranks=4))
    sizing = find_hosts(cluster, wanted, run_steady)
    assert sizing.least == 3
    assert sizing.outcome is not None
    assert sizing.outcome.hosts == 3
    assert sizing.outcome.images_s >= wanted
