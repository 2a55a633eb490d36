"""Loaders that resume where others stopped, against a correct fake node."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from feeder.errors import ConfigError, DatasetError, PeerError
from feeder.wire.messages import Bye, Hello, Request
from tests.support.daemon import wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import (
    BATCH,
    TensorBatch,
    check_batch,
    make_loader,
    plan,
    wanted_keys,
)
from trainer_client import FeederLoader

STEPS = 97 // BATCH


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake
        assert fake.problems == []


def position_of(batch: TensorBatch) -> tuple[int, int]:
    return batch.epoch, batch.index


def rows(batches: list[TensorBatch]) -> list[int]:
    """Return the sample ids, without padding, which depends on the number of ranks."""
    return [row for batch in batches for row in batch.sample_ids[: batch.valid].tolist()]


def take(loader: FeederLoader, count: int) -> list[TensorBatch]:
    """Take ``count`` batches, across epochs."""
    taken: list[TensorBatch] = []
    while len(taken) < count:
        for batch in loader:
            taken.append(batch)
            if len(taken) == count:
                break
    return taken


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("before", [0, 1, 5, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 3])
def test_a_resumed_loader_continues_like_an_uninterrupted_one(
    node: FakeNode, before: int, split: str
) -> None:
    steps = STEPS + (split == "val")
    with make_loader(node, split=split) as loader:
        take(loader, before)
        state = loader.state_dict()
    assert (state["epoch"], state["step"]) == divmod(before, steps)
    with make_loader(node, split=split) as resumed:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert len(resumed) == steps
        for number, batch in enumerate(take(resumed, steps + 2), before):
            assert position_of(batch) == divmod(number, steps)
            check_batch(node, batch, split=split)
        assert resumed.statistics().reconnects == 0


def test_prefetched_batches_do_not_advance_the_state(node: FakeNode) -> None:
    with make_loader(node, window=4) as loader:
        batches = iter(loader)
        next(batches)
        node.wait_until(lambda: (0, 4) in wanted_keys(node), "nothing is prefetched")
        assert loader.state_dict()["step"] == 1


def test_no_batch_before_the_position_is_requested(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        state = loader.state_dict() | {"epoch": 2, "step": 7}
        loader.load_state_dict(state)
        node.wait_until(lambda: (2, 10) in wanted_keys(node), "loading does not start fetching")
        loader.set_epoch(2)
        assert [position_of(batch) for batch in loader] == [(2, step) for step in range(7, STEPS)]
    assert min(wanted_keys(node)) == (2, 7)
    assert len(wanted_keys(node)) == len(set(wanted_keys(node)))


def test_the_documented_loop_resumes_in_the_loaded_epoch(node: FakeNode) -> None:
    with make_loader(node) as loader:
        start = loader.state_dict() | {"epoch": 1, "step": STEPS - 1}
        loader.load_state_dict(start)
        seen = []
        for epoch in range(int(start["epoch"]), 4):
            loader.set_epoch(epoch)
            seen += [position_of(batch) for batch in loader]
    later = [(epoch, step) for epoch in (2, 3) for step in range(STEPS)]
    assert seen == [(1, STEPS - 1), *later]


def test_the_epoch_may_be_an_integer_of_any_type(node: FakeNode) -> None:
    for epoch in (np.int64(3), torch.tensor(3)):
        with make_loader(node) as loader:
            loader.set_epoch(epoch)  # type: ignore[arg-type]
            assert position_of(next(iter(loader))) == (3, 0)
            assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3
    with make_loader(node) as loader:
        with pytest.raises(ConfigError, match=r"epoch must be a whole number, got 2\.0"):
            loader.set_epoch(2.0)  # type: ignore[arg-type]
        assert next(iter(loader)).epoch == 0


def test_after_a_break_the_state_is_the_next_batch(node: FakeNode) -> None:
    with make_loader(node) as loader:
        for batch in loader:
            if batch.index == 2:
                break
        del batch
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 3)
        assert next(iter(loader)).epoch == 1
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 1)


def test_after_an_error_the_state_is_the_missing_batch(node: FakeNode) -> None:
    node.script = lambda key, messages: [] if key == (0, 3) else messages
    with make_loader(node, timeout_s=3.0) as loader:
        with pytest.raises(PeerError):
            list(loader)
        loader.close()
        state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (0, 3)


def test_loading_after_the_start_is_refused_without_effect(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
        batches = iter(loader)
        next(batches)
        with pytest.raises(ConfigError, match="has started, it is at step 1 of epoch 0"):
            loader.load_state_dict(state)
        assert next(batches).index == 1
    with pytest.raises(ConfigError, match="is closed"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("ranks", [{}, {"rank": 0, "world_size": 1}])
def test_frameworks_may_make_iterators_and_choose_epochs_before_loading(
    node: FakeNode, ranks: dict[str, int]
) -> None:
    with make_loader(node, **ranks) as loader:
        state = loader.state_dict() | {"epoch": 2, "step": 7}
        batches = iter(loader)
        loader.set_epoch(3)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert position_of(next(batches)) == (2, 7)


def test_skipping_batches_places_one_epoch_only(node: FakeNode) -> None:
    with make_loader(node) as loader:
        loader.set_epoch(2)
        assert [*map(position_of, loader.skip_first_batches(9))] == [(2, 9), (2, 10), (2, 11)]
        assert len(list(loader)) == STEPS
        with pytest.raises(ConfigError, match="step 12 of epoch 4, but epochs have 12 steps"):
            loader.skip_first_batches(12)
    assert (2, 8) not in wanted_keys(node)


def test_the_number_of_batches_to_skip_is_a_whole_number(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        for count in (1.5, "1", None):
            with pytest.raises(ConfigError, match=r"to skip must be a whole number, got "):
                loader.skip_first_batches(count)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="to skip must be 0 or more, got -1"):
            loader.skip_first_batches(-1)
        with pytest.raises(ConfigError, match="skip fewer batches"):
            loader.skip_first_batches(12)
        assert loader.state_dict()["step"] == 0
        assert position_of(next(iter(loader.skip_first_batches(np.int64(3))))) == (0, 3)


def test_skipping_the_batches_that_a_state_has_skipped_is_an_error(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state | {"step": 4})
        with pytest.raises(ConfigError, match="at step 4 of epoch 0, where the loader begins by"):
            loader.skip_first_batches(4)
        assert position_of(next(iter(loader))) == (0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "of seed 0, this loader has 1: pass seed=0"),
        ({"image_size": 16, "recipe": {"resize_size": 16}}, "recipe with fingerprint"),
        ({"split": "val"}, "recipe with fingerprint"),
        ({"batch_size": 4}, "global batch of 8 rows .*pass batch_size=8"),
        ({"rank": 0, "world_size": 3}, "use a number of ranks that divides 8"),
    ],
)
def test_a_state_of_another_job_is_refused(
    node: FakeNode, options: dict[str, Any], message: str
) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    ranks = {"rank": 0, "world_size": 1}
    with make_loader(node, **(ranks | options)) as other:
        with pytest.raises(ConfigError, match=message):
            other.load_state_dict(state)
        assert next(iter(other)).epoch == 0, "a refusal changed the loader"


def test_another_global_batch_is_refused_once_the_ranks_are_known(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    with make_loader(node, batch_size=4) as other:
        other.load_state_dict(state)  # there may be two ranks yet
        with pytest.raises(ConfigError, match=r"this loader has 4 .*: pass batch_size=8"):
            iter(other)


def test_a_state_of_another_dataset_is_refused(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    with (
        FakeNode(content="e" * 32) as elsewhere,
        make_loader(elsewhere) as other,
        pytest.raises(ConfigError, match=r"'birds' with fingerprint ffff.* with eeee.*: serve"),
    ):
        other.load_state_dict(state)


def test_a_job_resumes_on_the_repacked_dataset() -> None:
    with FakeNode(content="c" * 32, former="e" * 32) as node, make_loader(node) as loader:
        state = loader.state_dict()
        assert (state["version"], state["fingerprint"]) == (3, "c" * 32)
        # as FeederLoader.state_dict() returned it before version 3
        loader.load_state_dict(state | {"version": 2, "fingerprint": "e" * 32, "step": 4})
        assert loader.state_dict() == state | {"step": 4}
        assert position_of(next(iter(loader))) == (0, 4)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 8), (8, 1)])
def test_another_number_of_ranks_resumes_with_the_same_global_order(
    node: FakeNode, before: int, after: int, split: str
) -> None:
    """The order is that of the batch size that the job began with, also in later epochs."""

    def loaders(world_size: int) -> Iterator[FeederLoader]:
        for rank in range(world_size):
            yield make_loader(
                node,
                split=split,
                batch_size=BATCH // world_size,
                rank=rank,
                world_size=world_size,
                window=2,
            )

    def steps_of_all(batches: list[list[TensorBatch]]) -> list[list[int]]:
        return [rows(list(step)) for step in zip(*batches, strict=True)]

    states, seen = [], []
    for loader in loaders(before):
        with loader:
            seen.append(take(loader, 5))
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states), "ranks have different states"
    resumed = []
    for loader in loaders(after):
        with loader:
            loader.load_state_dict(states[-1])
            assert loader.recipe.order_batch_size == BATCH // before
            assert loader.recipe.batch_size == BATCH // after
            state = loader.state_dict()
            assert state == states[0] | {"world_size": after, "batch_size": BATCH // after}
            resumed.append(take(loader, len(loader) + 3))
    order = make_order(node, before, split, steps_taken=5 + len(resumed[0]))
    assert steps_of_all(seen) + steps_of_all(resumed) == order


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_number_of_ranks_may_change_again_and_again(node: FakeNode, split: str) -> None:
    """Up and down, in mid-epoch, at an epoch's end and without a step between two changes."""
    state: dict[str, Any] | None = None
    seen: list[list[int]] = []
    counts = {1: 3, 2: 7, 8: 0, 4: STEPS + (split == "val") - 10}
    for world_size, count in [*counts.items(), (2, 2), (1, STEPS + 2)]:
        taken = []
        for rank in range(world_size):
            share = {"rank": rank, "world_size": world_size, "batch_size": BATCH // world_size}
            with make_loader(node, split=split, window=2, **share) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                taken.append(take(loader, count))
                after = loader.state_dict()
        state = json.loads(json.dumps(after))
        seen += [rows(list(step)) for step in zip(*taken, strict=True)]
    assert seen == make_order(node, 1, split, steps_taken=len(seen))
    assert len(seen) > 2 * STEPS


def make_order(node: FakeNode, world_size: int, split: str, *, steps_taken: int) -> list[list[int]]:
    """Each step's sample ids over all ranks, from the plan of the first run."""
    steps = STEPS + (split == "val")
    recipe = next(message for message in node.received if isinstance(message, Hello)).recipe
    order = []
    for number in range(steps_taken):
        epoch, step = divmod(number, steps)
        batches = recipe.plan_epoch(node.layout, seed=0, epoch=epoch)
        ids: list[int] = []
        for index in range(step * world_size, (step + 1) * world_size):
            ids += batches.samples(index).tolist() if index < batches.batches else []
        order.append(ids)
    return order


@pytest.mark.parametrize("lanes", [0, 5])
def test_a_resumed_loader_takes_the_lanes_of_the_state(node: FakeNode, lanes: int) -> None:
    with make_loader(node, recipe={"resize_size": 8, "lanes": 3}) as loader:
        seen = rows(take(loader, 5))
        state = json.loads(json.dumps(loader.state_dict()))
        order = [
            row
            for epoch in (0, 1)
            for index in range(STEPS)
            for row in loader.recipe.plan_epoch(node.layout, seed=0, epoch=epoch).samples(index)
        ]
    assert state["lanes"] == 3
    resumed = []
    for rank in range(2):
        share = {"rank": rank, "world_size": 2, "batch_size": BATCH // 2}
        recipe = {"resize_size": 8, "lanes": lanes}
        with make_loader(node, window=2, recipe=recipe, **share) as half:
            half.load_state_dict(state)
            assert (half.recipe.order_batch_size, half.recipe.lanes) == (BATCH, 3)
            assert half.state_dict() == state | {"world_size": 2, "batch_size": BATCH // 2}
            resumed.append(take(half, 2 * STEPS - 5))
    seen += [row for step in zip(*resumed, strict=True) for row in rows(list(step))]
    assert seen == order


def test_a_state_with_more_lanes_than_batches_is_refused_without_effect(node: FakeNode) -> None:
    with make_loader(node) as loader:
        with pytest.raises(ConfigError, match="lanes 13 is more than the 12 whole batches of 8"):
            loader.load_state_dict(loader.state_dict() | {"lanes": 13})
        assert position_of(next(iter(loader))) == (0, 0)
    assert node.count(Hello) == 1


def test_the_same_batch_size_keeps_the_session(node: FakeNode) -> None:
    with make_loader(node) as loader:
        loader.load_state_dict(loader.state_dict() | {"step": 4})
        assert next(iter(loader)).index == 4
    assert node.count(Hello) == 1


def test_the_states_order_batch_size_in_the_recipe_keeps_the_session(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict() | {"step": 4}
    hellos = node.count(Hello)
    for rank in range(2):
        recipe = {"resize_size": 8, "order_batch_size": state["order_batch_size"]}
        options = {"batch_size": BATCH // 2, "rank": rank, "world_size": 2, "recipe": recipe}
        with make_loader(node, **options) as half:
            half.load_state_dict(state)
            ids = plan(node, 0).samples(4).tolist()
            half_size = BATCH // 2
            expected = ids[rank * half_size : (rank + 1) * half_size]
            assert next(iter(half)).sample_ids.tolist() == expected
    assert node.count(Hello) == hellos + 2


def test_another_order_replaces_the_session_and_leaks_no_thread(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    threads = set(threading.enumerate())
    with make_loader(node, batch_size=4, rank=1, world_size=2) as half:
        half.load_state_dict(state)
        node.wait_until(lambda: node.count(Bye) == 2, "the first session is not ended")
        wait_until(lambda: len(set(threading.enumerate()) - threads) == 1, "one thread remains")
        node.wait_until(lambda: node.count(Request), "loading does not start fetching")
        requests = [message for message in node.received if isinstance(message, Request)]
        assert all(message.session == 3 for message in requests)
    wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")


def test_a_dataset_that_changes_while_a_state_is_loaded_is_an_error(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    half = make_loader(node, batch_size=4, rank=0, world_size=2)
    node.content = "0" * 32
    with pytest.raises(DatasetError, match=r"'birds' changed while the state was loaded: .*00.*ff"):
        half.load_state_dict(state)
    with pytest.raises(ConfigError, match="is closed"):
        iter(half)


def test_the_state_is_small_and_sends_no_request(node: FakeNode) -> None:
    with make_loader(node) as loader:
        take(loader, 3)
        node.wait_until(lambda: (0, 7) in released_keys(node), "all buffers are full")
        state = loader.state_dict()
        assert len(json.dumps(state)) < 1000
        sent = len(node.received)
        for _ in range(1000):
            assert loader.state_dict() == state
        assert not any(isinstance(message, Hello | Request) for message in node.received[sent:])


def released_keys(node: FakeNode) -> list[tuple[int, int]]:
    return [
        key for message in node.received if isinstance(message, Request) for key in message.release
    ]
