"""The job of ``trainer_client.train``, set up: device, ranks, loaders, trackers; then its run."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feeder.errors import ConfigError
from trainer_client.reference.checkpoints.store import (
    CHECKPOINTS,
    CheckpointFile,
    CheckpointFolder,
    Store,
)
from trainer_client.reference.loaders import make_loader, make_val_loader
from trainer_client.reference.models import check_model
from trainer_client.reference.options import BatchPlan, TrainingOptions
from trainer_client.reference.own_feeder import serve_in_rank_0
from trainer_client.reference.parallel.batch_norm import check_batch_norm_ranks
from trainer_client.reference.place import Place, in_rank_0, join
from trainer_client.reference.run import OnBatch, Report, Run, TrainingResult
from trainer_client.reference.tracking.tracker import Tracker, check_trackers, make_trackers

__all__ = ["TrainingResult", "train"]


def train(
    options: TrainingOptions,
    *,
    report: Report,
    on_batch: OnBatch | None = None,
    trackers: Sequence[Tracker] = (),
) -> TrainingResult:
    """Run the job to its end; ``report`` gets a line at a time, in rank 0.

    ``on_batch`` is called with each batch before the step that trains on it. ``trackers`` follow
    the run in rank 0, beside those of the options.
    """
    options.check()
    recipe = options.recipe
    check_model(recipe)
    chosen: dict[str, Any] = {
        "tensorboard": options.tensorboard,
        "wandb": options.wandb,
        "mllog": options.mllog,
    }
    check_trackers(options.folder, **chosen)
    with contextlib.ExitStack() as stack:
        place = join(options.device, stack)
        plan = BatchPlan.make(recipe, options.batch_size, place.ranks)
        check_batch_norm_ranks(recipe.batch_norm_ranks, place.ranks)
        log = report if place.rank == 0 else lambda line: None
        store = _make_store(options, place, log, stack)
        if options.is_smoke:
            options = serve_in_rank_0(options, place, log, stack)
        start_s = time.monotonic()
        loader = stack.enter_context(make_loader(options, plan, place))
        connect_s = time.monotonic() - start_s
        val_loader = None
        if options.val_dataset is not None:
            val_loader = stack.enter_context(make_val_loader(options, plan, place, loader))
        run = Run(options, plan, place, loader, val_loader, store, log, on_batch)
        run.result.connect_s = connect_s
        log(
            f"{recipe.model} on {place.device}, {plan}, {run.steps_per_epoch} steps an "
            f"epoch, {loader.samples:,} images, {len(loader.classes)} classes"
        )
        run.resume()
        if place.rank == 0:
            run.trackers = [*trackers, *make_trackers(options.folder, report=log, **chosen)]
        for tracker in run.trackers:
            stack.callback(tracker.close)
        with run.vote.on_sigterm() if store is not None else contextlib.nullcontext():
            run.run()
        return run.result


def _make_store(
    options: TrainingOptions, place: Place, report: Report, stack: contextlib.ExitStack
) -> Store | None:
    """Return where checkpoints are, held by rank 0 until ``stack`` closes; None: none are kept."""
    store: Store
    if options.folder is not None:
        store = CheckpointFolder(options.folder / CHECKPOINTS, keep=options.keep)
    elif options.checkpoint is not None:
        store = CheckpointFile(Path(options.checkpoint))
    else:
        return None

    def hold() -> None:
        stack.enter_context(store.hold(report))
        if options.folder is not None and options.resume is None and store.newest() is not None:
            raise ConfigError(
                f"{options.output} has checkpoints of a run: continue it with --resume auto, or "
                "name another --output"
            )

    in_rank_0(place, hold)
    return store
