"""Which feeder owns which lane: even shares, and few lanes that move."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.client.core.owners import Ownership
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import choose_lanes
from feeder.plan.recipe import Recipe
from feeder.wire.messages import Hello
from tests.support.client_shell import prefer

IMAGENET_LANES = choose_lanes(1_281_167, 256)

name_lists = st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=9)


def owners(names: Sequence[str], lanes: int) -> list[str]:
    ownership = Ownership(names, lanes)
    return [ownership.owner(lane) for lane in range(lanes)]


@settings(deadline=None, max_examples=60)
@given(names=name_lists, lanes=st.integers(1, 40), data=st.data())
def test_the_order_of_a_lane_is_a_function_of_the_names_and_changes_little_with_one_less(
    names: list[str], lanes: int, data: st.DataObject
) -> None:
    """It has every name once, its owner first, whatever the order of a client's list."""
    shuffled = data.draw(st.permutations(names))
    gone = data.draw(st.sampled_from(names))
    kept = [name for name in names if name != gone]
    ownership, other = Ownership(names, lanes), Ownership([*shuffled, names[0]], lanes)
    less = Ownership(kept or names, lanes)
    for lane in range(lanes):
        order = ownership.order(lane)
        assert order == other.order(lane)
        assert sorted(order) == sorted(names)
        assert order[0] == ownership.owner(lane)
        stand_ins = [name for name in order[1:] if name in kept]
        assert [name for name in less.order(lane)[1:] if name in stand_ins] == [
            name for name in stand_ins if name != less.owner(lane)
        ]


@pytest.mark.parametrize(
    ("count", "least_share"), [(2, 0.96), (4, 0.96), (16, 0.95), (64, 0.91), (256, 0.83)]
)
def test_lanes_are_spread_evenly_and_few_move_with_a_name(count: int, least_share: float) -> None:
    """The share of lanes that names own up to the even share: what saturated feeders keep."""
    even, kept, moved = IMAGENET_LANES / count, [], []
    for salt in range(4):
        names = [f"rack{salt}-node{number}/0" for number in range(count)]
        before = owners(names, IMAGENET_LANES)
        kept.append(sum(min(owned, even) for owned in Counter(before).values()) / IMAGENET_LANES)
        for gone in names[:: max(1, count // 12)]:
            after = owners([name for name in names if name != gone], IMAGENET_LANES)
            pairs = [*zip(before, after, strict=True)]
            moved.append(sum(old != new for old, new in pairs))
            if count == 4:
                heirs = Counter(new for old, new in pairs if old == gone)
                assert {*heirs} == {*names} - {gone}
                assert max(heirs.values()) < 0.5 * heirs.total(), "spread over the others"
    assert min(kept) > least_share
    assert sum(kept) / len(kept) > least_share + 0.01
    assert sum(moved) / len(moved) <= 2 * even, "those that come back when it is added again"


def test_more_names_than_lanes_own_one_lane_or_none() -> None:
    owned = Counter(owners([f"rack1-node{number}/0" for number in range(300)], 64))
    assert max(owned.values()) <= 3
    assert len(owned) > 50


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_batch_belongs_to_the_lane_that_its_samples_are_in(split: str) -> None:
    recipe = Recipe.for_split(split, batch_size=4, image_size=8, lanes=3)  # type: ignore[arg-type]
    hello = Hello(dataset="birds", recipe=recipe, seed=7, window=2, client="me")
    batches = 32 if split == "train" else 33
    preference = prefer(hello, samples=131, shards=7, lanes=3, batches=batches)
    lanes = set()
    for epoch in (0, 3, 4, 0):
        plan = EpochPlan(
            ShardLayout(samples=131, shards=7),
            batch_size=4,
            seed=7,
            epoch=epoch,
            shuffle=recipe.shuffle,
            last_batch=recipe.last_batch,
            lanes=3,
        )
        for index in range(plan.batches):
            lane = plan.lane(index)
            assert preference.lane((epoch, index)) == (
                lane if lane is not None else (epoch + index) % 3
            )
            lanes.add(lane)
        assert preference.lane((epoch, plan.batches)) in range(3), "padding"
    assert lanes >= {0, 1, 2}
    assert recipe.last_batch in LastBatch
