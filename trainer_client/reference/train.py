"""The job of ``trainer_client.train``: options, ranks, loaders, epochs, the result."""

import argparse
import contextlib
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from feeder.errors import ConfigError, ResourceError
from feeder.plan.recipe import parse_field
from feeder.process.program import run_guarded
from trainer_client._batch import Batch
from trainer_client._dataset import describe_samples
from trainer_client._loader import FeederLoader
from trainer_client._ranks import check_alone, has_rendezvous
from trainer_client._statistics import LoaderStatistics
from trainer_client.reference.resnet import MODELS
from trainer_client.reference.saver import Saver
from trainer_client.reference.trainer import EpochResult, Trainer, TrainingOptions

__all__ = ["EpochResult", "TrainingOptions", "TrainingResult", "main", "train"]


@dataclass(slots=True, kw_only=True)
class TrainingResult:
    """The result of a job; ``losses`` are this rank's, one for each step."""

    options: TrainingOptions
    device: str
    rank: int
    world_size: int
    classes: int
    samples: int
    connect_s: float  # from the loader's start to the feeder's welcome
    epochs: list[EpochResult] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    was_stopped: bool = False  # by SIGTERM, before all epochs were done
    loader: LoaderStatistics | None = None


def train(
    options: TrainingOptions,
    *,
    report: Callable[[str], None],
    on_batch: Callable[[Batch[torch.Tensor], FeederLoader], None] | None = None,
) -> TrainingResult:
    """Run the job to its end; ``report`` gets a line at a time.

    ``on_batch`` is called with each batch before the step that trains on it.
    """
    _check_options(options)
    with contextlib.ExitStack() as stack:
        device = _choose_device(options.device)
        rank, world_size = _join_ranks(device, stack)
        start_s = time.monotonic()
        ranks = (rank, world_size)
        loader = stack.enter_context(_make_loader(options, device, ranks))
        _check_labels(loader)
        result = TrainingResult(
            options=options,
            device=str(device),
            rank=rank,
            world_size=world_size,
            classes=len(loader.classes),
            samples=loader.samples,
            connect_s=time.monotonic() - start_s,
        )
        val_loader = None
        if options.val_dataset is not None:
            val_loader = stack.enter_context(_make_loader(options, device, ranks, loader))
        trainer = Trainer(options, loader, device)
        log = report if rank == 0 else _discard
        log(
            f"{options.model} on {device}, {world_size} x {options.batch_size} images a step, "
            f"{len(loader)} steps an epoch, {loader.samples:,} images of {len(loader.classes)} "
            "classes"
        )

        def show_batch(batch: Batch[torch.Tensor]) -> None:
            if on_batch is not None:
                on_batch(batch, loader)

        saver = None
        if options.checkpoint is not None:
            path, every_steps = Path(options.checkpoint), options.checkpoint_steps
            saver = stack.enter_context(Saver(trainer, path, every_steps=every_steps, rank=rank))
            if options.resume:
                log(saver.resume())
        for epoch in range(int(loader.state_dict()["epoch"]), options.epochs):
            trained = trainer.train_epoch(epoch, result.losses, log, show_batch, saver)
            result.loader = loader.statistics()
            is_complete = loader.state_dict()["step"] == 0
            if is_complete and val_loader is not None:
                trained = trainer.evaluate(val_loader, trained)
            result.epochs.append(trained)
            log(str(trained))
            if saver is not None and is_complete:
                saver.end_epoch()
            if saver is not None and saver.is_stopping:
                result.was_stopped = True
                log(saver.format_stop())
                break
        return result


def _check_options(options: TrainingOptions) -> None:
    """Raise ConfigError for invalid options that neither the loader nor the saver checks."""
    if options.resume and options.checkpoint is None:
        raise ConfigError("--resume needs --checkpoint FILE, the checkpoint to resume from")
    if options.model not in MODELS:
        raise ConfigError(f"model must be one of {', '.join(MODELS)}, got {options.model!r}")
    for name in ("epochs", "lr", "momentum", "weight_decay", "warmup_epochs"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < math.inf:  # refuses nan, too
            raise ConfigError(f"{name} must be a finite number, 0 or more, got {value}")
    if not 0 <= options.label_smoothing <= 1:
        raise ConfigError(f"label_smoothing must be a number 0 .. 1, got {options.label_smoothing}")


def _check_labels(loader: FeederLoader) -> None:
    """Raise ConfigError unless a sample has one class, which the loss and the accuracy need."""
    if loader.dataset.label_kind != "index":
        raise ConfigError(
            f"this job trains on one class a sample, dataset {loader.dataset.name!r} has "
            f"{describe_samples(loader.dataset)}: pack it with one class a sample, or write a "
            "training loop with a loss for its labels (docs/training.md)"
        )


def _choose_device(name: str | None) -> torch.device:
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


def _join_ranks(device: torch.device, stack: contextlib.ExitStack) -> tuple[int, int]:
    """Join the other ranks if there are any; return rank and world size.

    Raises ConfigError if there are others, and no way to find them.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not has_rendezvous():
        check_alone(
            "start the job with torchrun, which says, or unset the variable for a single process"
        )
        return 0, 1
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    stack.callback(dist.destroy_process_group)
    return dist.get_rank(), dist.get_world_size()


def _make_loader(
    options: TrainingOptions,
    device: torch.device,
    ranks: tuple[int, int],
    classes_of: FeederLoader | None = None,
) -> FeederLoader:
    """Return the loader for training or, for the classes of that one, for evaluation."""
    dtype = torch.float32
    if device.type == "cuda":
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    is_val = classes_of is not None
    recipe = dict(options.val_recipe if is_val else options.recipe)
    if is_val:  # the usual ratio of 256 to 224
        recipe.setdefault("resize_size", round(options.image_size * 256 / 224))
    return FeederLoader(
        options.endpoint,
        dataset=options.val_dataset or options.dataset if is_val else options.dataset,
        split="val" if is_val else "train",
        batch_size=options.batch_size,
        seed=options.seed,
        image_size=options.image_size,
        rank=ranks[0],
        world_size=ranks[1],
        classes_of=classes_of,
        device=device,
        dtype=dtype,
        window=options.window,
        timeout_s=options.timeout_s,
        recipe=recipe,
        server_key=options.server_key,
        client_key=options.client_key,
    )


def _discard(line: str) -> None:
    pass


def _parse_options(arguments: Sequence[str] | None) -> tuple[TrainingOptions, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.train", description="Train a ResNet from a feeder."
    )
    parser.add_argument(
        "endpoint", help="tcp://HOST:PORT, ipc:///PATH, dns://NAME:PORT or file:///PATH"
    )
    parser.add_argument("--dataset", required=True, help="name of the dataset to train on")
    parser.add_argument("--val-dataset", help="name of the dataset to evaluate on after each epoch")
    parser.add_argument(
        "--model", choices=sorted(MODELS), default="resnet50", help="default: %(default)s"
    )
    parser.add_argument("--epochs", type=int, default=90, help="default: %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=256, help="of each rank; default: %(default)s"
    )
    parser.add_argument("--lr", type=float, help="default: 0.1 for each 256 images of a step")
    parser.add_argument("--momentum", type=float, default=0.9, help="default: %(default)s")
    parser.add_argument("--weight-decay", type=float, default=5e-5, help="default: %(default)s")
    parser.add_argument("--label-smoothing", type=float, default=0.1, help="default: %(default)s")
    parser.add_argument("--warmup-epochs", type=float, default=5.0, help="default: %(default)s")
    parser.add_argument("--image-size", type=int, default=224, help="pixels; default: %(default)s")
    parser.add_argument(
        "--seed", type=int, default=0, help="of order, crops and weights; default: %(default)s"
    )
    parser.add_argument(
        "--window", type=int, default=4, help="batches to request ahead; default: %(default)s"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=60.0,
        help="of each wait for a feeder; default: %(default)s",
    )
    parser.add_argument("--device", help="default: cuda if available, else cpu")
    parser.add_argument("--server-key", metavar="KEY", help="the feeder's public key, or its file")
    parser.add_argument("--client-key", metavar="FILE", help="this job's secret key")
    for option, use in (("--recipe", "training"), ("--val-recipe", "evaluation")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"another field of the recipe for {use}; may be repeated",
        )
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="save the job there after each epoch and on SIGTERM"
    )
    parser.add_argument(
        "--checkpoint-steps",
        type=int,
        default=1000,
        help="steps between further checkpoints; default: %(default)s",
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume from the checkpoint if it exists"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    values = vars(parser.parse_args(arguments))
    json_path: Path | None = values.pop("json")
    for name in ("recipe", "val_recipe"):
        values[name] = dict(parse_field(text) for text in values[name])
    return TrainingOptions(**values), json_path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job from the command line and return its exit status."""
    return run_guarded("train", lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options, json_path = _parse_options(arguments)
    result = train(options, report=_print_line)
    if json_path is not None and result.rank == 0:
        _write_json(result, json_path)
    return 0


def run_process() -> int:
    """Run the job as a process that ``feeder.process.program`` has started."""
    # During training Ctrl-C raises KeyboardInterrupt, so that the sessions are closed.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    return _run(None)


def _write_json(result: TrainingResult, path: Path) -> None:
    try:
        path.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"cannot write the result to {path} ({error.strerror}): name another --json file"
        ) from error


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
