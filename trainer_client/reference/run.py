"""The run: epoch after epoch, each with its evaluation, its checkpoint and its reports.

steps of an epoch ─► evaluation ─► trackers ─► checkpoint        until the last epoch, the target
                                                                 accuracy, the time budget, SIGTERM
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client._batch import Batch
from trainer_client._loader import FeederLoader
from trainer_client._statistics import LoaderStatistics
from trainer_client.reference.checkpoints import Store
from trainer_client.reference.loaders import evaluate
from trainer_client.reference.options import BatchPlan, TrainingOptions
from trainer_client.reference.place import Place, Stop, StopVote, in_rank_0
from trainer_client.reference.recipes.recipe import parse_duration
from trainer_client.reference.results import Ending, EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.saver import Saver
from trainer_client.reference.tracking.tracker import Tracker
from trainer_client.reference.trainer import Trainer

LOG_EVERY_STEPS: Final = 50
LOG_EVERY_S: Final = 5.0  # where steps take longer

OnBatch = Callable[[Batch[torch.Tensor], FeederLoader], None]
Report = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class TrainingResult:
    """The result of this process; ``losses`` are the ranks' mean, one for each step."""

    options: TrainingOptions
    device: str
    rank: int
    world_size: int
    classes: int
    samples: int
    connect_s: float = 0.0  # from the loader's start to the feeder's welcome
    epochs: list[EpochResult] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    was_stopped: bool = False  # by SIGTERM or by the time budget, before all epochs were done
    loader: LoaderStatistics | None = None
    outcome: Outcome | None = None


@dataclass
class Run:
    """One process of a job, from its first step here to its last."""

    options: TrainingOptions
    plan: BatchPlan
    place: Place
    loader: FeederLoader
    val_loader: FeederLoader | None
    store: Store | None
    log: Report
    on_batch: OnBatch | None

    def __post_init__(self) -> None:
        options, plan, place, loader = self.options, self.plan, self.place, self.loader
        self.result = TrainingResult(
            options=options,
            device=str(place.device),
            rank=place.rank,
            world_size=place.ranks,
            classes=len(loader.classes),
            samples=loader.samples,
        )
        self.steps_per_epoch = len(loader) // plan.accumulation
        if not self.steps_per_epoch:
            raise ConfigError(
                f"an epoch of dataset {loader.dataset.name!r} has {loader.samples:,} samples, "
                f"fewer than a step of {plan.global_batch:,}: use a smaller --global-batch"
            )
        self.trainer = Trainer(
            options.recipe,
            plan,
            place,
            classes=len(loader.classes),
            steps_per_epoch=self.steps_per_epoch,
            init=None if options.init is None else Path(options.init),
        )
        self.saver = Saver(options, self.trainer, loader, self.store, place)
        self.progress = self.saver.progress
        self.vote = StopVote(place.group)
        self.trackers: list[Tracker] = []
        self._pending: list[torch.Tensor] = []  # losses on the device
        budget = options.recipe.time_budget
        self._budget_s = parse_duration(budget) if budget else float("inf")

    def resume(self) -> None:
        """Resume from the checkpoint that the options ask for, if there is one."""
        wanted = self.options.resume
        if wanted is None:
            return
        path: Path | None = Path(wanted)
        if wanted == "auto":
            assert self.store is not None, "checked by the options"
            path = self.store.newest()
        before, epochs = self.saver.resume(path), self.options.recipe.epochs
        self.progress = self.saver.progress
        if path is None:
            where = self.options.checkpoint or self.options.output
            self.log(f"no checkpoint {where} yet: starting from scratch")
            return
        self.log(f"resumed from {path}, {self.progress}")
        if epochs != before:
            self.log(
                f"epochs is {epochs} now, {before} in the checkpoint: the learning rate follows "
                "the new schedule"
            )
        if not self.progress.step:
            self._note_target()  # which may be another one now

    def run(self) -> None:
        info = self._describe()
        in_rank_0(self.place, lambda: self._report(lambda tracker: tracker.begin(info)))
        # Of the checkpoint, so that all ranks agree; later they vote.
        stop = Stop.TIME if self.progress.elapsed_s > self._budget_s else Stop.NO
        while (ending := self._find_ending(stop)) is None:
            stop = self._train_epoch()
        self.result.was_stopped = ending in ("stopped", "time-budget")
        if self.result.was_stopped:
            where = self.options.checkpoint or self.options.output
            saved = f"; saved to {where}" if self.store is not None else ""
            why = "SIGTERM" if ending == "stopped" else "the time budget"
            self.log(f"stopped by {why}, {self.progress} comes next{saved}")
        self.result.outcome = outcome = self._summarise(ending)
        self._report(lambda tracker: tracker.end(outcome))
        where = f"; results are in {self.options.output}" if self.options.output else ""
        self.log(f"{outcome}{where}")

    def _report(self, event: Callable[[Tracker], None]) -> None:
        for tracker in self.trackers:
            event(tracker)

    def _find_ending(self, stop: Stop) -> Ending | None:
        """Return how the job has ended, also one that is resumed after its end."""
        if self.progress.step == 0 and self.progress.target_s is not None:
            return "target"
        if self.progress.epoch >= self.options.recipe.epochs:
            return "finished"
        if stop is Stop.NO:
            return None
        return "stopped" if stop is Stop.SIGTERM else "time-budget"

    def _train_epoch(self) -> Stop:
        """Take the remaining steps of an epoch, evaluate, save; return whether to stop the job."""
        epoch = self.progress.epoch
        self._report(lambda tracker: tracker.begin_epoch(epoch))
        self.trainer.model.train()
        self.loader.set_epoch(epoch)
        before, start_s = self.loader.statistics(), time.monotonic()
        stop = self._take_steps(start_s, before)
        self._collect_losses()
        after = self.result.loader = self.loader.statistics()
        if after.epoch.late == "feeder" and after.verdict:
            self.log(f"  {after.verdict}")
        images, seconds, rate, wait_share = self._rates(start_s, before, after)
        is_complete = self.progress.step == self.steps_per_epoch
        losses = self.progress.losses
        trained = EpochResult(
            epoch=epoch,
            steps=images // self.plan.global_batch,
            images=images,
            seconds=seconds,
            images_per_s=rate,
            wait_share=wait_share,
            loss=sum(losses) / len(losses),
            lr=self.trainer.current_lr(),
        )
        is_last = stop is Stop.TIME or epoch + 1 == self.options.recipe.epochs
        is_due = is_last or (epoch + 1) % self.options.recipe.eval_every_epochs == 0
        if self.val_loader is not None and is_due and (is_complete or stop is not Stop.SIGTERM):
            trained = self._evaluate(trained, self.val_loader)
        self.result.epochs.append(trained)
        self.log(str(trained))
        if is_complete:
            self.progress.finish_epoch(trained)
            self._note_target()
            self._report(lambda tracker: tracker.end_epoch(trained))
            self.vote.begin()  # again, as SIGTERM may have come during the evaluation
            stop = max(stop, self.vote.end())
            self.saver.save()
        return stop

    def _take_steps(self, start_s: float, before: LoaderStatistics) -> Stop:
        batches = iter(self.loader)
        logged_s = start_s
        log_every = max(1, min(LOG_EVERY_STEPS, self.steps_per_epoch // 10))
        for step in range(self.progress.step + 1, self.steps_per_epoch + 1):
            if self.progress.read_clock() > self._budget_s:
                self.vote.request(Stop.TIME)
            self.vote.begin()  # while the step is computed
            parts = itertools.islice(batches, self.plan.accumulation)
            self._pending.append(self.trainer.step(map(self._note, parts)))
            self.progress.step = step
            now_s = time.monotonic()
            if self.trackers and (step % log_every == 0 or now_s - logged_s > LOG_EVERY_S):
                self._report_step(start_s, before)
                logged_s = now_s
            stop = self.vote.end()
            if step == self.steps_per_epoch:
                return stop  # saved together with the epoch's evaluation
            if stop or self.trainer.steps_done % self.options.checkpoint_steps == 0:
                self._collect_losses()
                self.saver.save()
            if stop:
                return stop
        return Stop.NO

    def _note(self, batch: Batch[torch.Tensor]) -> Batch[torch.Tensor]:
        if self.on_batch is not None:
            self.on_batch(batch, self.loader)
        return batch

    def _report_step(self, start_s: float, before: LoaderStatistics) -> None:
        loss = self._pending[-1].item()  # waits for the device
        rate, wait_share = self._rates(start_s, before, self.loader.statistics())[2:]
        steps = self.options.recipe.epochs * self.steps_per_epoch - self.trainer.steps_done
        report = StepReport(
            epoch=self.progress.epoch,
            step=self.progress.step,
            steps_per_epoch=self.steps_per_epoch,
            global_step=self.trainer.steps_done,
            loss=loss,
            lr=self.trainer.current_lr(),
            images_per_s=rate,
            wait_share=wait_share,
            remaining_s=steps * self.plan.global_batch / rate,
        )
        self._report(lambda tracker: tracker.log_step(report))

    def _rates(
        self, start_s: float, before: LoaderStatistics, after: LoaderStatistics
    ) -> tuple[int, float, float, float]:
        """Return images of all ranks, seconds, images/s and the share of waiting since a start."""
        seconds = time.monotonic() - start_s
        images = (after.images - before.images) * self.place.ranks
        return images, seconds, images / seconds, (after.wait_s - before.wait_s) / seconds

    def _collect_losses(self) -> None:
        """Move the losses of the latest steps to the host, averaged over the ranks."""
        if not self._pending:
            return
        # In float64, the sum does not depend on the order in which ranks are added.
        losses = torch.stack(self._pending).double().cpu()
        self._pending = []
        if self.place.group is not None:
            dist.all_reduce(losses, group=self.place.group)
            losses /= self.place.ranks
        is_finite = losses.isfinite()
        # A scaled loss may overflow now and then, and the step is skipped. Else training has
        # diverged: further steps cannot mend the weights.
        is_scaled = self.trainer.scaler.is_enabled()
        if not bool(is_finite.any() if is_scaled else is_finite.all()):
            kept = "" if self.store is None else "; the latest checkpoint is from before"
            raise ConfigError(
                f"the loss is {losses[~is_finite][0].item()} in epoch {self.progress.epoch}: use a "
                f"lower --lr, a longer --warmup-epochs or --clip-norm{kept}"
            )
        self.progress.losses += losses.tolist()
        self.result.losses += losses.tolist()

    def _evaluate(self, trained: EpochResult, loader: FeederLoader) -> EpochResult:
        self._report(lambda tracker: tracker.begin_evaluation(trained.epoch))
        start_s = time.monotonic()
        models, average = [self.trainer.plain_model], self.trainer.average
        if average is not None:
            models.append(average.model)
        raw, *averaged = evaluate(models, loader, self.trainer.autocast, epoch=trained.epoch)
        return replace(
            trained,
            val_images=raw.images,
            val_correct=raw.correct,
            val_correct_top5=raw.correct_top5,
            ema_correct=averaged[0].correct if averaged else None,
            ema_correct_top5=averaged[0].correct_top5 if averaged else None,
            val_s=time.monotonic() - start_s,
        )

    def _note_target(self) -> None:
        """Note when the target accuracy was reached, by the weights as trained or their average."""
        target, history = self.options.recipe.target_accuracy, self.progress.history
        latest = (history[-1].best_top1 if history else None) or 0.0
        if not target or latest < target:
            self.progress.target_s = None
        elif self.progress.target_s is None:
            seconds = self.progress.target_s = self.progress.read_clock()
            self.log(f"reached {latest:.1%} (target {target:.1%}) after {seconds:,.1f} s")

    def _summarise(self, ending: Ending) -> Outcome:
        history = [*self.progress.history]
        partial = self.result.epochs[-1:] if ending == "time-budget" else []
        history += [each for each in partial if each not in history]
        evaluated = [each for each in history if each.best_top1 is not None]
        # The first of the most accurate ones.
        best = max(evaluated, key=lambda each: each.best_top1 or 0.0, default=None)
        seconds = sum(each.seconds for each in history)
        return Outcome(
            ending=ending,
            epochs=self.progress.epoch,
            seconds=self.progress.read_clock(),
            images_per_s=sum(each.images for each in history) / seconds if seconds else 0.0,
            wait_share=sum(each.wait_share * each.seconds for each in history) / (seconds or 1),
            val_top1=evaluated[-1].top1 if evaluated else None,
            best_top1=best.best_top1 if best else None,
            best_epoch=best.epoch if best else None,
            target_s=self.progress.target_s,
        )

    def _describe(self) -> RunInfo:
        recipe = self.options.recipe
        effective = {
            **recipe.to_dict(),
            "lr": self.trainer.lr,
            "global_batch": self.plan.global_batch,
            "accumulation": self.plan.accumulation,
        }
        return RunInfo(
            model=recipe.model,
            optimiser=recipe.optimiser,
            device=str(self.place.device),
            epochs=recipe.epochs,
            steps_per_epoch=self.steps_per_epoch,
            global_batch=self.plan.global_batch,
            ranks=self.place.ranks,
            classes=len(self.loader.classes),
            train_samples=self.loader.samples,
            val_samples=None if self.val_loader is None else self.val_loader.samples,
            seed=recipe.seed,
            recipe=effective,
            first_step=self.trainer.steps_done,
            history=tuple(self.progress.history),
        )
