"""Where a job runs and what it reads: device, ranks, loaders."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from feeder.errors import ConfigError, FeederError, PeerError
from trainer_client._like_dataloader import describe_samples
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


@contextlib.contextmanager
def explain_lost_ranks(place: Place) -> Iterator[None]:
    """Raise torch's error about a rank that has ended as a PeerError of one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        is_lost = isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text
        if place.ranks == 1 or not is_lost:
            raise
        raise PeerError(
            f"rank {place.rank} has lost another rank, which has ended: see that rank's own line "
            f"({text.partition(chr(10))[0][:200]})"
        ) from error


def broadcast_text(text: str, place: Place) -> str:
    """Return rank 0's ``text`` in all ranks, each of which must call this."""
    if place.ranks == 1:
        return text
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=place.device)
    size = torch.tensor([len(data)], device=place.device)
    dist.broadcast(size, 0)
    if place.rank:
        data = torch.zeros(int(size.item()), dtype=torch.uint8, device=place.device)
    if len(data):
        dist.broadcast(data, 0)
    return bytes(data.tolist()).decode()


def in_rank_0(place: Place, work: Callable[[], None]) -> None:
    """Do ``work`` in rank 0; every rank must call this.

    If it fails, rank 0 raises its error and the others a PeerError with the same text.
    """
    problem: FeederError | None = None
    if place.rank == 0:
        try:
            work()
        except FeederError as error:
            problem = error
    text = broadcast_text("" if problem is None else str(problem), place)
    if problem is not None:
        raise problem
    if text:
        raise PeerError(f"rank 0 cannot go on: {text}")


def choose_device(name: str | None) -> torch.device:
    """Return a usable device; "cuda" is this rank's. ConfigError when it is not usable."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device == torch.device("cuda"):  # names no index
            device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"this job runs on cpu and cuda, not on {device.type}")
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
        memory_format=torch.channels_last,  # as the models are
        window=options.window,
        timeout_s=options.timeout_s,
        recipe=fields,
        server_key=options.server_key,
        client_key=options.client_key,
        job=options.job,
    )
