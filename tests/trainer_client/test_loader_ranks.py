"""Ranks and positions: known late, never wrong without an error, resumed by other ranks."""

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from feeder.errors import ConfigError, DatasetError
from feeder.wire.messages import Bye, Hello, Request
from tests.support.daemon import wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import (
    BATCH,
    SIDE,
    STEPS,
    TensorBatch,
    check_epoch,
    make_loader,
    position_of,
    take,
    wanted_keys,
)
from trainer_client import FeederLoader

# --- Ranks ----------------------------------------------------------------------------------------

LAUNCHERS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def pretend_group(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)


def test_a_process_group_made_after_the_loader_counts(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_loader(node) as loader:
        assert len(loader) == 12
        pretend_group(monkeypatch, 1, 2)
        assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 6)
        assert [batch.index for batch in loader] == [1, 3, 5, 7, 9, 11]


def test_a_process_group_that_comes_too_late_is_an_error(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        next(batches)
        pretend_group(monkeypatch, 1, 2)
        with pytest.raises(ConfigError, match="has been rank 0 of 1, in the process group it"):
            iter(loader)
        assert next(batches).index == 1, "the epoch under way goes on"


def test_given_ranks_win_over_the_process_group(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_group(monkeypatch, 1, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with make_loader(node, rank=0, world_size=1) as loader:
        check_epoch(node, loader, 0)


@pytest.mark.parametrize("variable", LAUNCHERS)
def test_a_launched_process_without_a_rank_is_an_error_with_remedies(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "8")
    with make_loader(node) as loader:
        assert len(loader.classes) == 3, "what needs no rank is known"
        loader.set_epoch(2)
        for use in (lambda: iter(loader), lambda: len(loader), loader.state_dict):
            with pytest.raises(ConfigError) as caught:
                use()
            assert f"has started 8 processes ({variable}=8)" in str(caught.value)
            assert "init_process_group() before the first iter(loader)" in str(caught.value)
            assert "rank=0, world_size=1" in str(caught.value)
            assert "\n" not in str(caught.value)
        pretend_group(monkeypatch, 7, 8)
        assert [(batch.epoch, batch.index) for batch in loader] == [(2, 7)]


def test_ranks_that_leave_a_rank_without_a_batch_are_an_error(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="12 whole batches of 8, fewer than the 13 ranks"):
        make_loader(node, rank=0, world_size=13)
    pretend_group(monkeypatch, 0, 13)
    with make_loader(node) as loader:
        for use in (lambda: iter(loader), lambda: len(loader)):
            with pytest.raises(ConfigError, match="fewer than the 13 ranks: use smaller batches"):
                use()


class Wrapped(IterableDataset[torch.Tensor]):
    """What people write who think that a loader belongs into a DataLoader."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __iter__(self) -> Iterator[torch.Tensor]:
        with FeederLoader(self._endpoint, dataset="birds", batch_size=8, image_size=8) as loader:
            for images, _ in loader:
                yield images


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_in_a_worker_of_a_dataloader_is_an_error(node: FakeNode) -> None:
    batches = iter(DataLoader(Wrapped(node.endpoint), batch_size=None, num_workers=2))
    with pytest.raises(ConfigError, match="in a worker process of a DataLoader, where each"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataloader_around_the_loader_is_an_error(node: FakeNode, num_workers: int) -> None:
    with make_loader(node) as loader:
        wrapped: DataLoader[object] = DataLoader(
            loader,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )
        with pytest.raises(TypeError, match="has no item 0: iterate over the loader itself"):
            next(iter(wrapped))
        with pytest.raises(TypeError, match="dataset 'birds' is a feeder's and has no item 3"):
            loader.dataset[3]


# --- Resuming -------------------------------------------------------------------------------------


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


def test_no_batch_before_the_position_is_requested(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        loader.load_state_dict(loader.state_dict() | {"epoch": 2, "step": 7})
        node.wait_until(lambda: (2, 10) in wanted_keys(node), "loading does not start fetching")
        loader.set_epoch(2)
        assert [position_of(batch) for batch in loader] == [(2, step) for step in range(7, STEPS)]
    assert min(wanted_keys(node)) == (2, 7)


def test_frameworks_may_make_iterators_and_choose_epochs_before_loading(node: FakeNode) -> None:
    with make_loader(node) as loader:
        state = loader.state_dict() | {"epoch": 2, "step": 7}
        batches = iter(loader)
        loader.set_epoch(3)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert position_of(next(batches)) == (2, 7)


def test_batches_of_one_epoch_are_skipped_by_a_whole_number(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        loader.set_epoch(2)
        skipped = loader.skip_first_batches(np.int64(9))  # type: ignore[arg-type]
        assert [*map(position_of, skipped)] == [(2, 9), (2, 10), (2, 11)]
        assert len(list(loader)) == STEPS
        whole = "to skip must be a whole number, 0 or more, got "
        for count, message in ((1.5, whole), (None, whole), (-1, whole), (12, "skip fewer")):
            with pytest.raises(ConfigError, match=message):
                loader.skip_first_batches(count)  # type: ignore[arg-type]
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (4, 0)
    assert (2, 8) not in wanted_keys(node)
    with make_loader(node) as loader, pytest.raises(ConfigError, match="step 12 of epoch 0, but"):
        iter(loader.skip_first_batches(12))  # when the ranks are known


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


# --- Another number of ranks, another order -------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("before", "after", "lanes"),  # those of the resumed loader, of a job with 3
    [(1, 2, None), (2, 1, None), (2, 4, None), (8, 1, None), (1, 2, 0), (1, 2, 5)],
)
def test_another_number_of_ranks_resumes_with_the_same_global_order(
    node: FakeNode, before: int, after: int, lanes: int | None, split: str
) -> None:
    """The order is that of the first run's batch size and lanes, also in later epochs."""
    states, seen, resumed = [], [], []
    first, then = {"resize_size": SIDE}, {"resize_size": SIDE}
    if lanes is not None:
        first, then = first | {"lanes": 3}, then | {"lanes": lanes}
    options = {"split": split, "window": 2}
    for rank in range(before):
        with make_loader(node, recipe=first, **options, **share_of(rank, before)) as loader:
            seen.append(take(loader, 5))
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert all(state == states[0] for state in states), "ranks have different states"
    assert lanes is None or states[0]["lanes"] == 3
    for rank in range(after):
        with make_loader(node, recipe=then, **options, **share_of(rank, after)) as loader:
            loader.load_state_dict(states[-1])
            assert loader.recipe.order_batch_size == BATCH // before
            assert loader.recipe.batch_size == BATCH // after
            state = loader.state_dict()
            assert state == states[0] | {"world_size": after, "batch_size": BATCH // after}
            resumed.append(take(loader, len(loader) + 3))
    steps = [rows([*step]) for part in (seen, resumed) for step in zip(*part, strict=True)]
    assert steps == make_order(node, split, steps_taken=len(steps), ranks=before)


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
