"""Batches as tuples with their origin, and exact accuracy, which counts each sample once."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout, rank_indices
from trainer_client import Accuracy, AccuracyResult, Batch
from trainer_client._accuracy import count_correct
from trainer_client._batch import Origin

# --- Batches --------------------------------------------------------------------------------------


def make_plain_batch() -> Batch[torch.Tensor]:
    ids = torch.tensor([5, 6, -1])
    return Batch.of(torch.ones(3, 4, 2, 2), torch.tensor([1, 2, -100]), Origin(ids, 2, 3, 4))


def test_a_batch_is_the_pair_of_its_tensors() -> None:
    batch = make_plain_batch()
    images, labels = batch
    assert isinstance(batch, tuple)
    assert len(batch) == 2
    assert images is batch.images is batch[0]
    assert labels is batch.labels is batch[1]
    assert (batch.valid, batch.epoch, batch.index) == (2, 3, 4)
    assert batch.sample_ids.tolist() == [5, 6, -1]


@pytest.mark.parametrize(
    "rebuild",
    [
        # lightning's apply_to_collection and accelerate's honor_type, then the Hugging Face Trainer
        lambda batch: type(batch)(*(part * 2 for part in batch)),
        lambda batch: type(batch)(part * 2 for part in batch),
        lambda batch: type(batch)(**{name: part * 2 for name, part in batch._asdict().items()}),
    ],
)
def test_a_batch_put_together_from_parts_says_that_its_origin_is_unknown(rebuild: Any) -> None:
    batch = rebuild(make_plain_batch())
    assert type(batch) is Batch
    assert batch.labels.tolist() == [2, 4, -200]
    for name in ("sample_ids", "valid", "epoch", "index"):
        assert not hasattr(batch, name)
        with pytest.raises(AttributeError, match=f"put together from its parts, so its {name} is"):
            getattr(batch, name)


def test_moving_a_batch_keeps_its_origin() -> None:
    batch = make_plain_batch().to("meta", non_blocking=True)
    assert {tensor.device.type for tensor in batch} == {"meta"}
    assert (batch.valid, batch.epoch, batch.index) == (2, 3, 4)
    assert batch.sample_ids.device.type == "cpu"
    assert make_plain_batch().to(torch.device("cpu")).labels.tolist() == [1, 2, -100]


def test_copies_keep_everything() -> None:
    batch = make_plain_batch()
    pickled = pickle.loads(pickle.dumps(batch))  # noqa: S301
    for duplicate in (copy.copy(batch), copy.deepcopy(batch), pickled):
        assert type(duplicate) is Batch
        assert duplicate.labels.tolist() == [1, 2, -100]
        assert (duplicate.valid, duplicate.epoch, duplicate.index) == (2, 3, 4)


# --- Accuracy -------------------------------------------------------------------------------------

CPU = torch.device("cpu")
CLASSES = 11


def label_of(sample_ids: torch.Tensor) -> torch.Tensor:
    return sample_ids * 7 % CLASSES


def guess(sample_ids: torch.Tensor) -> torch.Tensor:
    """Logits that are a function of the sample, for padding too."""
    classes = torch.arange(CLASSES)
    return ((sample_ids[:, None] * 31 + classes * 17) % 101).float()


def expected(samples: int) -> AccuracyResult:
    """The accuracy, computed over the whole dataset at once."""
    ids = torch.arange(samples)
    order = guess(ids).argsort(dim=1, descending=True)
    hits = order == label_of(ids)[:, None]
    return AccuracyResult(
        images=samples,
        correct=int(hits[:, 0].sum()),
        correct_top5=int(hits[:, :5].sum()),
    )


def make_batch(plan: EpochPlan, index: int) -> Batch[torch.Tensor]:
    """A batch like the loader's, without images."""
    real = plan.samples(index) if index < plan.batches else []
    ids = torch.full((plan.batch_size,), -1, dtype=torch.int64)
    ids[: len(real)] = torch.as_tensor(real, dtype=torch.int64)
    labels = torch.where(ids < 0, -100, label_of(ids))
    return Batch.of(torch.empty(0), labels, Origin(ids, len(real), plan.epoch, index))


def shares(plan: EpochPlan, world_size: int) -> Iterator[list[Batch[torch.Tensor]]]:
    """The batches of each rank."""
    for rank in range(world_size):
        indices = rank_indices(plan.batches, rank, world_size, plan.last_batch)
        yield [make_batch(plan, index) for index in indices]


def make_plan(layout: ShardLayout, *, last_batch: LastBatch, **sizes: int) -> EpochPlan:
    return EpochPlan(layout, seed=1, epoch=2, shuffle=True, last_batch=last_batch, **sizes)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    samples=st.integers(1, 200),
    shards=st.integers(1, 9),
    lanes=st.integers(1, 9),
    batch_size=st.integers(1, 40),
    order_batch_size=st.integers(1, 40),
    world_size=st.integers(1, 7),
)
@example(53, 5, 3, 16, 16, 7)
@example(97, 5, 3, 16, 16, 3)
@example(1009, 5, 3, 16, 16, 4)
def test_padded_epochs_count_exactly_and_dropped_samples_are_an_error(
    samples: int,
    shards: int,
    lanes: int,
    batch_size: int,
    order_batch_size: int,
    world_size: int,
) -> None:
    layout = ShardLayout(samples=samples, shards=shards)
    sizes = {"batch_size": batch_size, "order_batch_size": order_batch_size}
    sizes["lanes"] = min(lanes, max(1, samples // order_batch_size))
    for last_batch in LastBatch:
        accuracy = Accuracy(samples, CPU)
        of_ranks = [*shares(make_plan(layout, last_batch=last_batch, **sizes), world_size)]
        assert len({len(batches) for batches in of_ranks}) == 1, "every rank takes as many steps"
        for batches in of_ranks:
            for batch in batches:
                accuracy.add(guess(batch.sample_ids), batch)
        left_out = samples % (batch_size * world_size) if last_batch is LastBatch.DROP else 0
        if left_out:
            with pytest.raises(ConfigError, match=f"not exact: {left_out} of {samples} samples"):
                accuracy.result()
        else:
            assert accuracy.result() == expected(samples)


def test_samples_counted_twice_are_an_error() -> None:
    plan = make_plan(
        ShardLayout(samples=53, shards=5), batch_size=16, last_batch=LastBatch.PAD, lanes=3
    )
    accuracy = Accuracy(53, CPU)
    for index in [*range(plan.batches), *range(plan.batches)]:
        batch = make_batch(plan, index)
        accuracy.add(guess(batch.sample_ids), batch)
    with pytest.raises(
        ConfigError, match=r"0 of 53 samples were not counted and 53 more than once \(sample 0: 2"
    ):
        accuracy.result()


def test_counts_leave_padding_out_and_are_shares_of_the_images() -> None:
    logits = torch.eye(7)[[0, 1, 2, 3, 0, 0]] - torch.arange(7) / 100  # without ties
    labels = torch.tensor([0, 1, 6, 3, -100, -100])
    assert count_correct(logits, labels).tolist() == [3, 3]
    assert count_correct(torch.eye(3), torch.tensor([0, 2, 2])).tolist() == [2, 3]  # of 3 classes
    result = AccuracyResult(images=8, correct=2, correct_top5=6)
    assert (result.top1, result.top5) == (0.25, 0.75)
