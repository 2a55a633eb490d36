"""Loaders that resume where others stopped, against a correct fake node."""

import json
import threading

import numpy as np
import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.wire.messages import Bye, Hello, Request
from tests.support.daemon import wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import (
    BATCH,
    STEPS,
    TensorBatch,
    make_loader,
    position_of,
    take,
    wanted_keys,
)


def rows(batches: list[TensorBatch]) -> list[int]:
    """The sample ids, without padding, which depends on the number of ranks."""
    return [row for batch in batches for row in batch.sample_ids[: batch.valid].tolist()]


def share_of(rank: int, world_size: int) -> dict[str, int]:
    """The options of a rank that keep the global batch."""
    return {"rank": rank, "world_size": world_size, "batch_size": BATCH // world_size}


def make_order(node: FakeNode, split: str, *, steps_taken: int, ranks: int = 1) -> list[list[int]]:
    """Each step's sample ids over all ranks, of which the first run had ``ranks``."""
    recipe = next(message for message in node.received if isinstance(message, Hello)).recipe
    order = []
    for number in range(steps_taken):
        epoch, step = divmod(number, STEPS + (split == "val"))
        batches = recipe.plan_epoch(node.layout, seed=0, epoch=epoch)
        ids: list[int] = []
        for index in range(step * ranks, (step + 1) * ranks):
            ids += batches.samples(index).tolist() if index < batches.batches else []
        order.append(ids)
    return order


# --- The position ---------------------------------------------------------------------------------


def test_no_batch_before_the_position_is_requested(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        loader.load_state_dict(loader.state_dict() | {"epoch": 2, "step": 7})
        node.wait_until(lambda: (2, 10) in wanted_keys(node), "loading does not start fetching")
        loader.set_epoch(2)
        assert [position_of(batch) for batch in loader] == [(2, step) for step in range(7, STEPS)]
    assert min(wanted_keys(node)) == (2, 7)
    assert len(wanted_keys(node)) == len(set(wanted_keys(node)))


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


def test_the_number_of_batches_to_skip_is_a_whole_number_of_a_loader_that_is_not_placed(
    node: FakeNode,
) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        whole = "to skip must be a whole number, 0 or more, got "
        for count, message in ((1.5, whole), (None, whole), (-1, whole), (12, "skip fewer")):
            with pytest.raises(ConfigError, match=message):
                loader.skip_first_batches(count)  # type: ignore[arg-type]
        assert loader.state_dict()["step"] == 0
        assert position_of(next(iter(loader.skip_first_batches(np.int64(3))))) == (0, 3)
    with make_loader(node) as loader, pytest.raises(ConfigError, match="step 12 of epoch 0, but"):
        iter(loader.skip_first_batches(12))  # when the ranks are known
    with make_loader(node) as loader:
        loader.load_state_dict(loader.state_dict() | {"step": 4})
        with pytest.raises(ConfigError, match="at step 4 of epoch 0 already"):
            loader.skip_first_batches(4)
        assert position_of(next(iter(loader))) == (0, 4)


def test_the_state_is_small_and_sends_no_request(node: FakeNode) -> None:
    def released() -> list[tuple[int, int]]:
        requests = [each for each in node.received if isinstance(each, Request)]
        return [key for message in requests for key in message.release]

    with make_loader(node) as loader:
        take(loader, 3)
        node.wait_until(lambda: (0, 7) in released(), "all buffers are full")
        state = loader.state_dict()
        assert len(json.dumps(state)) < 1000
        sent = len(node.received)
        for _ in range(1000):
            assert loader.state_dict() == state
        assert not any(isinstance(message, Hello | Request) for message in node.received[sent:])


# --- States of another job ------------------------------------------------------------------------


def test_a_state_of_another_dataset_is_refused_and_one_of_before_repacking_is_not(
    node: FakeNode,
) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    with FakeNode(content="e" * 32) as elsewhere:
        for where, ranks, message in (
            (elsewhere, share_of(0, 1), r"'birds' with fingerprint ffff.* with eeee.*: serve"),
            (node, {"rank": 0, "world_size": 1, "batch_size": 4}, "global batch of 8 rows"),
        ):
            with make_loader(where, **ranks) as other:
                with pytest.raises(ConfigError, match=message):
                    other.load_state_dict(state)
                assert next(iter(other)).epoch == 0, "a refusal changed the loader"
                with pytest.raises(ConfigError, match="has started, it is at step 1 of epoch 0"):
                    other.load_state_dict(other.state_dict())
    with make_loader(node, batch_size=4) as other:
        other.load_state_dict(state)
        with pytest.raises(ConfigError, match="global batch of 8 rows"):
            iter(other)  # when the ranks are known
    with FakeNode(content="c" * 32, former="e" * 32) as repacked, make_loader(repacked) as loader:
        state = loader.state_dict()
        assert (state["version"], state["fingerprint"]) == (3, "c" * 32)
        # as FeederLoader.state_dict() returned it before version 3
        loader.load_state_dict(state | {"version": 2, "fingerprint": "e" * 32, "step": 4})
        assert loader.state_dict() == state | {"step": 4}
        assert position_of(next(iter(loader))) == (0, 4)


# --- Another number of ranks, another order -------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (8, 1)])
def test_another_number_of_ranks_resumes_with_the_same_global_order(
    node: FakeNode, before: int, after: int, split: str
) -> None:
    """The order is that of the batch size that the job began with, also in later epochs."""
    states, seen, resumed = [], [], []
    for rank in range(before):
        with make_loader(node, split=split, window=2, **share_of(rank, before)) as loader:
            seen.append(take(loader, 5))
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states), "ranks have different states"
    for rank in range(after):
        with make_loader(node, split=split, window=2, **share_of(rank, after)) as loader:
            loader.load_state_dict(states[-1])
            assert loader.recipe.order_batch_size == BATCH // before
            assert loader.recipe.batch_size == BATCH // after
            state = loader.state_dict()
            assert state == states[0] | {"world_size": after, "batch_size": BATCH // after}
            resumed.append(take(loader, len(loader) + 3))
    steps = [rows([*step]) for part in (seen, resumed) for step in zip(*part, strict=True)]
    assert steps == make_order(node, split, steps_taken=len(steps), ranks=before)


@pytest.mark.parametrize("lanes", [0, 5])
def test_a_resumed_loader_takes_the_lanes_of_the_state(node: FakeNode, lanes: int) -> None:
    with make_loader(node, recipe={"resize_size": 8, "lanes": 3}) as loader:
        seen = [rows([batch]) for batch in take(loader, 5)]
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["lanes"] == 3
    resumed = []
    for rank in range(2):
        recipe = {"resize_size": 8, "lanes": lanes}
        with make_loader(node, window=2, recipe=recipe, **share_of(rank, 2)) as half:
            half.load_state_dict(state)
            assert (half.recipe.order_batch_size, half.recipe.lanes) == (BATCH, 3)
            assert half.state_dict() == state | {"world_size": 2, "batch_size": BATCH // 2}
            resumed.append(take(half, 2 * STEPS - 5))
    seen += [rows(list(step)) for step in zip(*resumed, strict=True)]
    assert seen == make_order(node, "train", steps_taken=2 * STEPS)


def test_another_order_replaces_the_session_and_leaks_no_thread(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict()
    threads = set(threading.enumerate())
    with make_loader(node, **share_of(1, 2)) as half:
        half.load_state_dict(state)
        node.wait_until(lambda: node.count(Bye) == 2, "the first session is not ended")
        wait_until(lambda: len(set(threading.enumerate()) - threads) == 1, "one thread remains")
        node.wait_until(lambda: node.count(Request), "loading does not start fetching")
        requests = [message for message in node.received if isinstance(message, Request)]
        assert all(message.session == 3 for message in requests)
    wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")
    half = make_loader(node, **share_of(0, 2))
    node.content = "0" * 32
    with pytest.raises(DatasetError, match=r"'birds' changed while the state was loaded: .*00.*ff"):
        half.load_state_dict(state)
    with pytest.raises(ConfigError, match="is closed"):
        iter(half)
