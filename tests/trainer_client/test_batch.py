"""A batch is a tuple to whatever takes it for one, and keeps its origin where it can."""

import copy
import pickle
from typing import Any

import pytest
import torch

from trainer_client import Batch
from trainer_client._batch import Origin


def make_batch() -> Batch[torch.Tensor]:
    ids = torch.tensor([5, 6, -1])
    return Batch.of(torch.ones(3, 4, 2, 2), torch.tensor([1, 2, -100]), Origin(ids, 2, 3, 4))


def test_a_batch_is_the_pair_of_its_tensors() -> None:
    batch = make_batch()
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
    batch = rebuild(make_batch())
    assert type(batch) is Batch
    assert batch.labels.tolist() == [2, 4, -200]
    for name in ("sample_ids", "valid", "epoch", "index"):
        assert not hasattr(batch, name)
        with pytest.raises(AttributeError, match=f"put together from its parts, so its {name} is"):
            getattr(batch, name)


def test_moving_a_batch_keeps_its_origin() -> None:
    batch = make_batch().to("meta", non_blocking=True)
    assert {tensor.device.type for tensor in batch} == {"meta"}
    assert (batch.valid, batch.epoch, batch.index) == (2, 3, 4)
    assert batch.sample_ids.device.type == "cpu"
    assert make_batch().to(torch.device("cpu")).labels.tolist() == [1, 2, -100]


def test_copies_keep_everything() -> None:
    batch = make_batch()
    pickled = pickle.loads(pickle.dumps(batch))  # noqa: S301
    for duplicate in (copy.copy(batch), copy.deepcopy(batch), pickled):
        assert type(duplicate) is Batch
        assert duplicate.labels.tolist() == [1, 2, -100]
        assert (duplicate.valid, duplicate.epoch, duplicate.index) == (2, 3, 4)
