"""The job of ``trainer_client.train``, set up: device, ranks, loaders, trackers; then its run."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from feeder.errors import ConfigError
from trainer_client.reference.checkpoints import (
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
from trainer_client.reference.place import in_rank_0, join
from trainer_client.reference.run import OnBatch, Report, Run, TrainingResult
from trainer_client.reference.saver import RunFolder
from trainer_client.reference.tracking.tracker import Tracker, make_trackers

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
    chosen = make_trackers(
        options.folder,
        report=report,
        tensorboard=options.tensorboard,
        wandb=options.wandb,
        mllog=options.mllog,
    )
    with contextlib.ExitStack() as stack:
        place = join(options.device, stack)
        plan = BatchPlan.make(recipe, options.batch_size, place.ranks)
        check_batch_norm_ranks(recipe.batch_norm_ranks, place.ranks)
        log = report if place.rank == 0 else lambda line: None
        store: Store | None = None
        if options.folder is not None:
            store = CheckpointFolder(options.folder / CHECKPOINTS, keep=options.keep)
        elif options.checkpoint is not None:
            store = CheckpointFile(Path(options.checkpoint))
        in_rank_0(place, lambda: _hold(store, options, log, stack))
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
            run.trackers = [*trackers, *chosen]
            if options.folder is not None:  # first, as the last file to appear is the summary
                run.trackers.insert(0, RunFolder(options.folder, options, run.trainer, loader))
        for tracker in run.trackers:
            stack.callback(tracker.close)
        with run.vote.on_sigterm() if store is not None else contextlib.nullcontext():
            run.run()
        return run.result


def _hold(
    store: Store | None, options: TrainingOptions, report: Report, stack: contextlib.ExitStack
) -> None:
    """Let no other job save to ``store`` until ``stack`` closes."""
    if store is None:
        return
    stack.enter_context(store.hold(report))
    if options.folder is not None and options.resume is None and store.newest() is not None:
        raise ConfigError(
            f"{options.output} has checkpoints of a run: continue it with --resume auto, or "
            "name another --output"
        )
