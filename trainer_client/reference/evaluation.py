"""The accuracy of a model over a validation set: exact, over all ranks."""

import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from trainer_client._accuracy import Accuracy, AccuracyResult
from trainer_client._loader import FeederLoader
from trainer_client.reference.results import EpochResult


def evaluate(model: nn.Module, loader: FeederLoader, autocast: torch.autocast) -> AccuracyResult:
    """Return the counts of ``model`` over one epoch of ``loader``; every rank must call this.

    ``model`` is a plain module with equal weights and buffers in all ranks.
    """
    was_training = model.training
    model.eval()
    accuracy = Accuracy(loader.samples, loader.device)
    with torch.inference_mode(), autocast:
        for batch in loader:
            accuracy.add(model(batch.images), batch)
    model.train(was_training)
    return accuracy.result()


def evaluate_epoch(
    trained: EpochResult,
    model: nn.Module,
    average: nn.Module | None,
    loader: FeederLoader,
    autocast: torch.autocast,
) -> EpochResult:
    """Return ``trained`` with the counts of the model and of its averaged weights."""
    start_s = time.monotonic()
    share_buffers(model)
    result = evaluate(model, loader, autocast)
    evaluated = replace(
        trained,
        val_images=result.images,
        val_correct=result.correct,
        val_correct_top5=result.correct_top5,
    )
    if average is not None:
        share_buffers(average)
        averaged = evaluate(average, loader, autocast)
        evaluated = replace(
            evaluated,
            ema_correct=averaged.correct,
            ema_correct_top5=averaged.correct_top5,
        )
    return replace(evaluated, val_s=time.monotonic() - start_s)


def share_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, those of its checkpoints.

    Each rank's running statistics include its own latest batch.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
