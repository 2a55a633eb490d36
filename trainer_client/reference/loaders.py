"""The loaders of a job, for training and for evaluation of exactly its classes; the evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from feeder.errors import ConfigError
from trainer_client._accuracy import Accuracy, AccuracyResult
from trainer_client._like_dataloader import describe_samples
from trainer_client._loader import FeederLoader
from trainer_client.reference.options import BatchPlan, TrainingOptions
from trainer_client.reference.place import Place
from trainer_client.reference.trainer import half_type


def make_loader(options: TrainingOptions, plan: BatchPlan, place: Place) -> FeederLoader:
    """Return the loader for training; ConfigError unless a sample has one class."""
    recipe = options.recipe
    fields = {"split": "train", "image_size": recipe.image_size, "recipe": dict(recipe.data)}
    loader = _open(options, plan, place, dataset=options.dataset, **fields)
    if loader.dataset.label_kind != "index":  # which the loss and the accuracy need
        loader.close()
        raise ConfigError(
            f"this job trains on one class a sample, dataset {loader.dataset.name!r} has "
            f"{describe_samples(loader.dataset)}: pack it with one class a sample, or write a "
            "training loop with a loss for its labels (docs/training.md)"
        )
    return loader


def make_val_loader(
    options: TrainingOptions, plan: BatchPlan, place: Place, classes_of: FeederLoader | list[str]
) -> FeederLoader:
    """Return the loader for evaluation, of a dataset with exactly the given classes."""
    recipe = options.recipe
    size = recipe.eval_image_size
    fields = {"resize_size": round(size * 256 / 224), **recipe.val_data}  # the usual ratio
    name = options.val_dataset or options.dataset
    more = {"split": "val", "image_size": size, "recipe": fields, "classes_of": classes_of}
    return _open(options, plan, place, dataset=name, **more)


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


def _open(options: TrainingOptions, plan: BatchPlan, place: Place, **more: Any) -> FeederLoader:
    assert options.endpoint is not None, "the smoke recipe's feeder has been started"
    return FeederLoader(
        options.endpoint,
        batch_size=plan.batch_size,
        seed=options.recipe.seed,
        rank=place.rank,
        world_size=place.ranks,
        device=place.device,
        dtype=half_type(options.recipe, place.device) if place.device.type == "cuda" else None,
        memory_format=torch.channels_last,  # as the models are
        window=options.window,
        timeout_s=options.timeout_s,
        server_key=options.server_key,
        client_key=options.client_key,
        job=options.job,
        **more,
    )
