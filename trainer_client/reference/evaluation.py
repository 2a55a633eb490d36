"""The accuracy of a model over a validation set: exact, over all ranks."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from trainer_client._accuracy import Accuracy, AccuracyResult
from trainer_client._loader import FeederLoader
from trainer_client.reference.results import EpochResult


def evaluate(
    models: Sequence[nn.Module], loader: FeederLoader, autocast: torch.autocast, *, epoch: int
) -> list[AccuracyResult]:
    """Return the counts of each model, in one pass over ``loader``; every rank must call this.

    The models are plain modules with equal weights and buffers in all ranks. ``epoch`` is the one
    they were trained in: a recipe with random crops then gives the same images in the loop, after a
    resume and offline, and the next epoch's first batches are fetched ahead.
    """
    were_training = [model.training for model in models]
    accuracies = [Accuracy(loader.samples, loader.device) for _ in models]
    for model in models:
        model.eval()
    loader.set_epoch(epoch)
    with torch.inference_mode(), autocast:
        for batch in loader:
            for model, accuracy in zip(models, accuracies, strict=True):
                accuracy.add(model(batch.images), batch)
    for model, was_training in zip(models, were_training, strict=True):
        model.train(was_training)
    return [accuracy.result() for accuracy in accuracies]


def evaluate_epoch(
    trained: EpochResult,
    model: nn.Module,
    average: nn.Module | None,
    loader: FeederLoader,
    autocast: torch.autocast,
) -> EpochResult:
    """Return ``trained`` with the counts of the model and of its averaged weights."""
    start_s = time.monotonic()
    models = [model] if average is None else [model, average]
    for each in models:
        share_buffers(each)
    results = evaluate(models, loader, autocast, epoch=trained.epoch)
    averaged = results[-1] if average is not None else None
    return replace(
        trained,
        val_images=results[0].images,
        val_correct=results[0].correct,
        val_correct_top5=results[0].correct_top5,
        ema_correct=None if averaged is None else averaged.correct,
        ema_correct_top5=None if averaged is None else averaged.correct_top5,
        val_s=time.monotonic() - start_s,
    )


def share_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, those of its checkpoints.

    Each rank's running statistics include its own latest batch.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
