"""Which node is asked for a lane first: rendezvous hashing."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.client.core.rendezvous import LaneKeys, rank_nodes
from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.wire.messages import Hello
from tests.support.client_shell import welcome

LANES = 1000
NODES = [(f"host-{number}/0 tcp://0.0.0.0:5555", number) for number in range(5)]

node_lists = st.lists(st.text(max_size=8), unique=True, max_size=8).map(
    lambda names: [(name, link) for link, name in enumerate(names)]
)


@given(nodes=node_lists, place=st.text(max_size=8), seed=st.integers())
def test_the_order_has_every_node_once_and_is_the_same_for_any_list(
    nodes: list[tuple[str, int]], place: str, seed: int
) -> None:
    order = rank_nodes(nodes, place)
    assert sorted(order) == [link for _, link in nodes]
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    assert rank_nodes(shuffled, place) == order


@given(nodes=node_lists, place=st.text(max_size=8), data=st.data())
def test_without_one_node_the_others_keep_their_order(
    nodes: list[tuple[str, int]], place: str, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from([None, *nodes]))
    order = rank_nodes(nodes, place)
    left = rank_nodes([node for node in nodes if node != gone], place)
    assert left == [link for link in order if gone is None or link != gone[1]]


def test_links_are_not_hashed_but_names_are() -> None:
    """Every client has its own numbers for the same nodes."""
    renumbered = [(name, link + 70) for name, link in NODES]
    for lane in range(50):
        order = rank_nodes(NODES, f"lane {lane}")
        assert rank_nodes(renumbered, f"lane {lane}") == [link + 70 for link in order]


def count_owned(nodes: list[tuple[str, int]]) -> Counter[int]:
    return Counter(rank_nodes(nodes, f"lane {lane}")[0] for lane in range(LANES))


def test_every_node_owns_about_as_many_lanes() -> None:
    owned = count_owned(NODES)
    mean = LANES / len(NODES)
    assert set(owned) == set(range(len(NODES)))
    assert all(0.75 * mean < count < 1.25 * mean for count in owned.values()), owned


def test_the_lanes_of_a_lost_node_are_spread_over_all_others() -> None:
    before, after = count_owned(NODES), count_owned(NODES[1:])
    gained = [after[link] - before[link] for _, link in NODES[1:]]
    assert sum(gained) == before[0]
    assert min(gained) > before[0] / 8


# Lanes


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_batch_belongs_to_the_lane_that_its_samples_are_in(split: str) -> None:
    recipe = Recipe.for_split(split, batch_size=4, image_size=8)  # type: ignore[arg-type]
    answer = welcome(samples=131, shards=7, lanes=3)
    hello = Hello(dataset="birds", recipe=recipe, seed=7, window=2, client="me")
    lane_keys = LaneKeys(answer, hello)
    layout = ShardLayout(samples=answer.samples, shards=answer.shards, lanes=answer.lanes)
    lanes = set()
    for epoch in (0, 3, 4, 0):
        plan = EpochPlan(
            layout,
            batch_size=4,
            seed=7,
            epoch=epoch,
            shuffle=recipe.shuffle,
            last_batch=recipe.last_batch,
        )
        for index in range(plan.batches):
            lane = plan.lane(index)
            lanes.add(lane)
            expected = f"batch {epoch} {index}" if lane is None else f"lane {lane}"
            assert lane_keys.hash_key((epoch, index)) == expected
            shards, _ = layout.locate(plan.samples(index))
            assert lane is None or {int(shard) % answer.lanes for shard in shards} == {lane}
    assert lanes >= {0, 1, 2}
