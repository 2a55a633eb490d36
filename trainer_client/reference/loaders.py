"""The loaders of a job: for training, and for evaluation of exactly its classes."""

import torch

from feeder.errors import ConfigError
from trainer_client._like_dataloader import describe_samples
from trainer_client._loader import FeederLoader
from trainer_client.reference.options import BatchPlan, TrainingOptions
from trainer_client.reference.place import Place
from trainer_client.reference.trainer import half_type


def make_loader(options: TrainingOptions, plan: BatchPlan, place: Place) -> FeederLoader:
    """Return the loader for training; ConfigError unless a sample has one class."""
    loader = _open(options, plan, place, is_val=False, classes_of=None)
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
    return _open(options, plan, place, is_val=True, classes_of=classes_of)


def _open(
    options: TrainingOptions,
    plan: BatchPlan,
    place: Place,
    *,
    is_val: bool,
    classes_of: FeederLoader | list[str] | None,
) -> FeederLoader:
    recipe = options.recipe
    size, fields = recipe.image_size, dict(recipe.data)
    if is_val:
        size, fields = recipe.val_image_size or recipe.image_size, dict(recipe.val_data)
        fields.setdefault("resize_size", round(size * 256 / 224))  # the usual ratio
    assert options.endpoint is not None, "the smoke recipe's feeder has been started"
    return FeederLoader(
        options.endpoint,
        dataset=options.val_dataset or options.dataset if is_val else options.dataset,
        split="val" if is_val else "train",
        batch_size=plan.batch_size,
        seed=recipe.seed,
        image_size=size,
        rank=place.rank,
        world_size=place.ranks,
        classes_of=classes_of,
        device=place.device,
        dtype=half_type(recipe, place.device) if place.device.type == "cuda" else torch.float32,
        memory_format=torch.channels_last,  # as the models are
        window=options.window,
        timeout_s=options.timeout_s,
        recipe=fields,
        server_key=options.server_key,
        client_key=options.client_key,
        job=options.job,
    )
