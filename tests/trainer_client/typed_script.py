# pyright: strict
"""A user's script, as type checkers see it: mypy --strict here, pyright in the framework checks."""

from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainer_client import (
    Accuracy,
    Batch,
    DatasetInfo,
    EpochTimes,
    FeederLoader,
    LoaderStatistics,
    NumpyLoader,
)


def train(endpoint: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train and evaluate for one epoch."""
    with FeederLoader(endpoint, dataset="train", batch_size=64, channels=3) as loader:
        assert_type(loader.dataset, DatasetInfo)
        assert_type(loader.dtype, torch.dtype)
        for images, labels in loader:
            assert_type(images, torch.Tensor)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimizer.step()
        state: dict[str, int | str] = loader.state_dict()
        loader.load_state_dict(state)
        assert_type(loader.statistics(), LoaderStatistics)
        assert_type(loader.statistics().epoch, EpochTimes)
        validation = FeederLoader(
            endpoint, dataset="val", split="val", batch_size=64, classes_of=loader
        )
        accuracy = Accuracy(validation.samples, validation.device)
        for batch in validation.progress():
            assert_type(batch, Batch[torch.Tensor])
            accuracy.add(model(batch.images), batch)
            moved = batch.to("cpu")
            assert_type(moved.valid, int)
            assert_type(moved.sample_ids, torch.Tensor)
            assert_type(loader.names(moved.sample_ids), list[str])
        print(accuracy.result().top1)  # noqa: T201


def count(endpoint: str) -> NDArray[np.int64]:
    """Return how often each label occurs."""
    loader = NumpyLoader(
        endpoint, dataset="train", batch_size=64, dtype="float32", rank=0, world_size=1
    )
    counts = np.zeros(len(loader.classes), np.int64)
    for step, (images, labels) in enumerate(loader.skip_first_batches(2), 2):
        assert images.shape[0] == len(labels), step
        counts += np.bincount(labels, minlength=len(counts))
    return counts
