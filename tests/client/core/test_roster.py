"""Which endpoints a client keeps links to, and which feeder owns which lane."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.client.core.events import EndpointsListed
from feeder.client.core.links import (
    LINKS_MAX,
    SPARES,
    choose_spares,
    find_siblings,
    limit_links,
)
from feeder.client.core.owners import Ownership
from feeder.client.core.prefetch import Prefetch
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.wire.messages import Hello
from tests.support.client_shell import RECIPE, Shell, prefer, welcome

TCP = ("tcp://0.0.0.0:5555",), ("tcp://0.0.0.0:5556",), ("tcp://0.0.0.0:5557",)
IPC = ("ipc:///run/feeder/n",), ("ipc:///run/feeder/n.1",)
SEVERAL = (
    ("ipc:///run/n", "tcp://10.0.0.1:5555", "tcp://10.1.0.1:6000"),
    ("ipc:///run/n.1", "tcp://10.0.0.1:5556", "tcp://10.1.0.1:6001"),
)
IPV6 = ("tcp://[::]:5555",), ("tcp://[::]:5556",)


@pytest.mark.parametrize(
    ("dialled", "number", "bound", "siblings"),
    [
        ("tcp://feeder-3:5556", 1, TCP, ("tcp://feeder-3:5555", "tcp://feeder-3:5557")),
        ("ipc:///run/feeder/n", 0, IPC, ("ipc:///run/feeder/n.1",)),
        ("ipc:///mnt/host/n.1", 1, IPC, ("ipc:///mnt/host/n",)),  # in a container
        # By the bind that was dialled.
        ("ipc:///run/n", 0, SEVERAL, ("ipc:///run/n.1",)),
        ("tcp://10.0.0.1:5555", 0, SEVERAL, ("tcp://10.0.0.1:5556",)),
        ("tcp://second:6001", 1, SEVERAL, ("tcp://second:6000",)),
        ("tcp://[fd00::7]:5555", 0, IPV6, ("tcp://[fd00::7]:5556",)),
        ("tcp://feeder-3:5555", 0, IPV6, ("tcp://feeder-3:5556",)),
        # None are known if another name or port was dialled.
        *(
            (dialled, 0, TCP, ())
            for dialled in (
                "tcp://balancer:80",
                "tcp://feeder-3:15555",
                "ipc:///run/other",
                "ipc:///run/5555",
            )
        ),
        # A node that is not among them has none.
        ("tcp://h:1", 0, (), ()),
        ("tcp://h:1", 3, (("tcp://h:1",), ("tcp://h:2",)), ()),
        # Those that are not bound the same way are left out.
        ("tcp://h:5555", 0, (("ipc:///run/n", "tcp://h:5555"), ("ipc:///run/n.1",)), ()),
        ("tcp://h:5555", 0, (("tcp://h:5555",), ("ipc:///run/n.1",)), ()),
    ],
)
def test_siblings_are_reached_as_the_reporting_node_is(
    dialled: str, number: int, bound: tuple[tuple[str, ...], ...], siblings: tuple[str, ...]
) -> None:
    assert find_siblings(dialled, welcome(number=number, siblings=bound)) == siblings


# The roster


SIBLINGS = ("tcp://0.0.0.0:1",), ("tcp://0.0.0.0:2",), ("tcp://0.0.0.0:3",)


def report(shell: Shell, endpoint: str, number: int = 0, siblings: object = SIBLINGS) -> None:
    (link,) = (link for link, dialled in shell.links.items() if dialled == endpoint)
    shell.lose(link)
    shell.connect(link)
    answer = welcome(link + 1, node=endpoint, number=number, siblings=siblings)
    shell.receive(answer, link)


def linked(shell: Shell) -> list[str]:
    return sorted(shell.links.values())


def test_siblings_are_dialled_as_long_as_the_reporting_endpoint_is_listed() -> None:
    shell = Shell("tcp://b:1", "tcp://a:2")
    report(shell, "tcp://a:2", 1)
    assert linked(shell) == ["tcp://a:1", "tcp://a:2", "tcp://a:3", "tcp://b:1"]
    shell.change_list("tcp://a:3", "tcp://a:2")
    assert linked(shell) == ["tcp://a:1", "tcp://a:2", "tcp://a:3"]
    shell.change_list("tcp://b:1")
    assert linked(shell) == ["tcp://b:1"]


def test_only_the_latest_report_of_a_listed_endpoint_counts() -> None:
    shell = Shell("tcp://a:1")
    report(shell, "tcp://a:1")
    report(shell, "tcp://a:2", 0, (("tcp://a:2",), ("tcp://a:9",)))
    assert linked(shell) == ["tcp://a:1", "tcp://a:2", "tcp://a:3"]
    report(shell, "tcp://a:1", 0, SIBLINGS[:2])
    assert linked(shell) == ["tcp://a:1", "tcp://a:2"]


def test_a_feeder_is_a_line_of_the_list_with_the_siblings_that_it_reports() -> None:
    shell = Shell()
    shell.do(EndpointsListed({"tcp://a:1": "rack-1", "tcp://b:1": ""}))
    report(shell, "tcp://a:1")
    links = shell.session.links
    assert links.feeders == ("rack-1", "tcp://b:1")
    assert links.endpoints == {
        "tcp://a:1": "rack-1",
        "tcp://b:1": "tcp://b:1",
        "tcp://a:2": "rack-1",
        "tcp://a:3": "rack-1",
    }


# Spares, and how many links there are


FEEDERS = tuple(f"f{number:04}" for number in range(300))


def test_spares_are_dealt_out_evenly_over_ranks() -> None:
    dealt = Counter(name for rank in range(200) for name in choose_spares(FEEDERS, rank, FEEDERS))
    assert set(dealt) == set(FEEDERS)
    assert max(dealt.values()) - min(dealt.values()) <= 1


def test_other_feeders_stand_in_for_unusable_spares() -> None:
    assert choose_spares(FEEDERS, 0, (FEEDERS[0], *FEEDERS[3:])) == [FEEDERS[0], *FEEDERS[3:5]]
    assert choose_spares(FEEDERS, 0, ()) == []


def test_a_job_of_2048_ranks_has_few_sessions_at_each_feeder() -> None:
    for feeders in (64, 256, 1024):
        limit = limit_links(feeders, Prefetch(RECIPE, buffers=7, world_size=2048))
        assert limit * 2048 / feeders <= 512
    assert limit_links(256, Prefetch(RECIPE, buffers=7)) == LINKS_MAX
    assert limit_links(16, Prefetch(RECIPE, buffers=7, world_size=2048)) == 7 + SPARES, (
        "one for each buffer"
    )


# Lanes: equal shares, and few lanes that move


name_lists = st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=9)


def owners(names: Sequence[str], lanes: int) -> list[str]:
    ownership = Ownership(names, lanes)
    return [name for lane in range(lanes) for name in ownership.owners(lane)]


@settings(deadline=None, max_examples=25)
@given(names=name_lists, lanes=st.integers(1, 40), data=st.data())
def test_the_order_of_a_batch_is_a_function_of_the_names_and_changes_little_with_one_less(
    names: list[str], lanes: int, data: st.DataObject
) -> None:
    """It has every name once, an owner first, whatever the order of a client's list."""
    shuffled = data.draw(st.permutations(names))
    gone = data.draw(st.sampled_from(names))
    kept = [name for name in names if name != gone]
    ownership, other = Ownership(names, lanes), Ownership([*shuffled, names[0]], lanes)
    less = Ownership(kept or names, lanes)
    for lane in range(lanes):
        index = lane + lanes * data.draw(st.integers(0, 20))
        order = ownership.order(lane, index)
        assert order == other.order(lane, index)
        assert sorted(order) == sorted(names)
        assert {*order[: len(ownership.owners(lane))]} == {*ownership.owners(lane)}
        if len(names) <= lanes:
            after = less.order(lane, index)
            stand_ins = [name for name in order[1:] if name in kept and name != after[0]]
            assert [name for name in after[1:] if name != order[0]] == stand_ins


@settings(deadline=None)
@given(names=name_lists, lanes=st.integers(1, 40))
def test_names_own_equally_many_lanes_and_share_those_that_are_too_few(
    names: list[str], lanes: int
) -> None:
    owned = Counter(owners(names, lanes))
    assert {*owned} == {*names}
    assert max(owned.values()) - min(owned.values()) <= 1
    if len(names) <= lanes:
        assert owned.total() == lanes
    else:
        ownership = Ownership(names, lanes)
        sharers = [len(ownership.owners(lane)) for lane in range(lanes)]
        assert max(owned.values()) == 1
        assert max(sharers) - min(sharers) <= 1
        for lane, share in enumerate(sharers):
            turns = [ownership.order(lane, lane + lanes * turn)[0] for turn in range(2 * share)]
            assert Counter(turns) == dict.fromkeys(ownership.owners(lane), 2)


@pytest.mark.parametrize(
    ("lanes", "count", "shares"),
    [(64, 4, 1.3), (64, 16, 2.5), (64, 64, 5), (256, 64, 4), (512, 16, 1.6), (16, 64, 5)],
)
def test_few_lanes_move_with_a_name(lanes: int, count: int, shares: float) -> None:
    moved = []
    for salt in range(4):
        names = [f"rack{salt}-node{number}/0" for number in range(count)]
        before = Ownership(names, lanes)
        for gone in names[:: max(1, count // 12)]:
            after = Ownership([name for name in names if name != gone], lanes)
            pairs = [(before.owners(lane), after.owners(lane)) for lane in range(lanes)]
            moved.append(sum(len({*old} - {*new}) for old, new in pairs))
            if count == 4:
                heirs = Counter(new[0] for old, new in pairs if old == [gone])
                assert {*heirs} == {*names} - {gone}
                assert max(heirs.values()) < 0.75 * heirs.total(), "spread over the others"
    share = max(1.0, lanes / count)
    assert sum(moved) / len(moved) <= shares * share, "those that come back when it is added again"


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
