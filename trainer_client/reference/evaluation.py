"""The accuracy of models over a validation set: exact, over all ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from trainer_client._accuracy import Accuracy, AccuracyResult
from trainer_client._loader import FeederLoader


def evaluate(
    models: Sequence[nn.Module], loader: FeederLoader, autocast: torch.autocast, *, epoch: int
) -> list[AccuracyResult]:
    """Return the counts of each model, in one pass over ``loader``; every rank must call this.

    The models are plain modules with equal weights in all ranks. Their buffers become those of
    rank 0, as in its checkpoints: each rank's running statistics include its own latest batch.
    ``epoch`` is the one they were trained in: a recipe with random crops then gives the same images
    in the loop, after a resume and offline, and the next epoch's first batches are fetched ahead.
    """
    were_training = [model.training for model in models]
    accuracies = [Accuracy(loader.samples, loader.device) for _ in models]
    for model in models:
        model.eval()
        if loader.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
    loader.set_epoch(epoch)
    with torch.inference_mode(), autocast:
        for batch in loader:
            for model, accuracy in zip(models, accuracies, strict=True):
                accuracy.add(model(batch.images), batch)
    for model, was_training in zip(models, were_training, strict=True):
        model.train(was_training)
    return [accuracy.result() for accuracy in accuracies]
