"""The client's session with nodes that die, hang, lose and repeat: each batch once, in order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.core.fleet import Fleet, Node

_MISHAPS = "kill stop drain cut fail lose heal jump pause list begin calm"


def make_fleet(
    seed: int, *, nodes: int = 2, lends: str = "", buffers: int = 4, ranks: int = 1
) -> Fleet:
    """A fleet whose client fetches epoch 0; ``lends`` has a y for each node that lends."""
    chance = random.Random(seed)
    windows = [buffers if seed < 10 else chance.randint(1, buffers) for _ in range(nodes)]
    members = [
        Node(f"node-{n}", lends[n : n + 1] == "y", 0.05, windows[n], incarnation=1 + n)
        for n in range(nodes)
    ]
    fleet = Fleet(chance, members, buffers=buffers, ranks=ranks)
    fleet.run(0.5)
    fleet.begin(0)
    return fleet


def test_all_nodes_have_work_and_each_batch_comes_once() -> None:
    fleet = make_fleet(1, nodes=3, buffers=6)
    fleet.reading_s = (0.0,)
    fleet.run(10.5)
    assert fleet.taken > 0.85 * 3 * 10.0 / 0.05
    assert fleet.session.scheduler.retried == 0
    assert len(fleet.session.served_endpoints) == 3


@pytest.mark.parametrize("lends", ["yy", "", "y"])
def test_a_node_that_dies_delays_batches_only_briefly(lends: str) -> None:
    fleet = make_fleet(2, lends=lends)
    fleet.run(5.0)
    before = fleet.taken
    fleet.kill(next(iter(fleet.nodes.values())), away_s=60.0)
    fleet.run(6.0)
    assert fleet.taken > before + 10
    assert len(fleet.session.served_endpoints) == 1
    fleet.run(70.0)
    assert len(fleet.session.served_endpoints) == 2


def test_batches_of_a_hanging_node_come_from_another_within_seconds() -> None:
    fleet = make_fleet(3, lends="yy")
    fleet.run(5.0)
    before = fleet.taken
    fleet.stop(next(iter(fleet.nodes.values())), for_s=60.0)
    fleet.run(8.0)
    assert fleet.taken > before + 10
    assert fleet.session.scheduler.hedged > 0


def test_the_client_waits_for_its_only_node() -> None:
    fleet = make_fleet(4, nodes=1)
    fleet.run(5.0)
    before = fleet.taken
    fleet.kill(next(iter(fleet.nodes.values())), away_s=30.0)
    fleet.run(30.0)
    assert fleet.taken <= before + 4
    fleet.run(40.0)
    assert fleet.taken > before + 50


def test_a_lost_answer_is_requested_again() -> None:
    fleet = make_fleet(5, nodes=1)
    fleet.run(2.0)
    fleet.loss = 0.3
    fleet.run(4.0)
    fleet.loss = 0.0
    before = fleet.taken
    fleet.run(60.0)
    assert fleet.taken > before + 100


@pytest.mark.parametrize("lends", ["yy", ""])
@pytest.mark.parametrize("seed", range(10, 16))
def test_the_next_batch_finds_room_even_if_all_windows_are_full(lends: str, seed: int) -> None:
    fleet = make_fleet(seed, lends=lends)  # small windows, which are soon full
    slow = next(iter(fleet.nodes.values()))
    slow.failing, slow.batch_s = 1.0, 0.4  # the other one has finished later batches long before
    fleet.run(15.0)
    assert fleet.taken > 50


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 3),
    lends=st.text("yn", min_size=3, max_size=3),
    buffers=st.integers(1, 9),
    ranks=st.integers(1, 5),
)
def test_the_sequence_is_delivered_under_random_faults(
    seed: int, nodes: int, lends: str, buffers: int, ranks: int
) -> None:
    fleet = make_fleet(seed, nodes=nodes, lends=lends, buffers=buffers, ranks=ranks)
    chance = fleet.chance
    all_nodes = tuple(fleet.nodes)
    for _ in range(25):
        node = chance.choice(list(fleet.nodes.values()))
        match chance.choice(_MISHAPS.split()):
            case "kill" if node.is_up:
                fleet.kill(node, away_s=chance.uniform(0.1, 5.0))
            case "stop":
                fleet.stop(node, for_s=chance.uniform(0.1, 8.0))
            case "drain" if node.is_up and not node.is_draining:
                fleet.drain(node, for_s=chance.uniform(0.0, 4.0))
            case "fail":
                first = fleet.nodes[all_nodes[0]]
                first.failing = chance.choice((0.0, 0.5, 1.0)) if nodes > 1 else 0.0
            case "cut":
                fleet.cut(chance.choice(list(fleet.lines)))
            case "lose":
                fleet.loss, fleet.repetition = chance.choice(((0.1, 0.1), (0.5, 0.0), (0.0, 0.5)))
            case "heal":
                fleet.loss = fleet.repetition = 0.0
            case "jump":  # the host was suspended
                fleet.now_s += chance.uniform(0.0, 100.0)
            case "pause":
                fleet.is_paused = not fleet.is_paused
            case "list":
                listed = chance.sample(all_nodes, chance.randint(1, nodes))
                if listed == [all_nodes[0]]:  # its disk may be bad
                    listed = [all_nodes[-1]]
                fleet.set_endpoints(tuple(listed))
            case "begin" if chance.random() < 0.3:
                fleet.begin(chance.randrange(3))
            case _:
                pass
        fleet.run(fleet.now_s + chance.uniform(0.05, 2.0))
    fleet.loss = fleet.repetition = 0.0
    fleet.is_paused = False
    fleet.nodes[all_nodes[0]].failing = 0.0
    fleet.set_endpoints(all_nodes)
    for node in fleet.nodes.values():
        node.batch_s = 0.2  # a minute of batches at full speed would take most of the test's time
    fleet.run(fleet.now_s + 60.0)
    before = fleet.taken
    fleet.run(fleet.now_s + 20.0)
    assert fleet.session.error is None
    assert fleet.taken > before + 50
    assert len(fleet.session.served_endpoints) == nodes
