"""Where a job runs and what it reads: device, ranks, loaders."""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client._dataset import describe_samples
from trainer_client._loader import FeederLoader
from trainer_client._ranks import check_alone, has_rendezvous
from trainer_client.reference.batch_plan import BatchPlan
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.precision import half_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device of a rank, and its place among the ranks."""

    device: torch.device
    rank: int = 0
    ranks: int = 1


def join(device_name: str | None, stack: contextlib.ExitStack) -> Place:
    """Choose the device and join the other ranks, until ``stack`` is closed.

    Raises ConfigError for a device that cannot be used, and if there are other ranks and no way to
    find them.
    """
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not has_rendezvous():
        check_alone(
            "start the job with torchrun, which says, or unset the variable for a single process"
        )
        return Place(device=device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    stack.callback(dist.destroy_process_group)
    return Place(device=device, rank=dist.get_rank(), ranks=dist.get_world_size())


def choose_device(name: str | None) -> torch.device:
    """Return a usable device; "cuda" is this rank's. ConfigError when it is not usable."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device == torch.device("cuda"):  # names no index
            device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter when torch lacks CUDA
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}): pass --device cpu, or leave it out"
        ) from None
    return device


def make_loader(options: TrainingOptions, plan: BatchPlan, place: Place) -> FeederLoader:
    """Return the loader for training; ConfigError unless a sample has one class."""
    loader = _open(options, plan, place, is_val=False, classes_of=None)
    try:
        check_labels(loader)
    except BaseException:
        loader.close()
        raise
    return loader


def make_val_loader(
    options: TrainingOptions, plan: BatchPlan, place: Place, classes_of: FeederLoader | list[str]
) -> FeederLoader:
    """Return the loader for evaluation, of a dataset with exactly the given classes."""
    return _open(options, plan, place, is_val=True, classes_of=classes_of)


def check_labels(loader: FeederLoader) -> None:
    """Raise ConfigError unless a sample has one class, which the loss and the accuracy need."""
    if loader.dataset.label_kind != "index":
        raise ConfigError(
            f"this job trains on one class a sample, dataset {loader.dataset.name!r} has "
            f"{describe_samples(loader.dataset)}: pack it with one class a sample, or write a "
            "training loop with a loss for its labels (docs/training.md)"
        )


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
        window=options.window,
        timeout_s=options.timeout_s,
        recipe=fields,
        server_key=options.server_key,
        client_key=options.client_key,
    )
