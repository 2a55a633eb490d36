"""What a job keeps of itself: its checkpoints, and in a run's folder its recipe, plan and weights.

DIR/recipe.toml    every key in effect, and where it came from; itself a recipe
DIR/plan.json      versions, seed, dataset and order: what decides the samples of each step
DIR/weights.pt     at the end: an ordinary state dict of three channels, of four if --init gave
                   the fourth weights; weights-averaged.pt, too
"""

import io
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

import feeder
from feeder.errors import ConfigError
from trainer_client._loader import FeederLoader
from trainer_client.reference.checkpoints import Store, load_for_resume
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.place import Place, gather_random_states, restore_random_state
from trainer_client.reference.recipes.recipe import show_recipe
from trainer_client.reference.results import EpochResult, Outcome, RunInfo
from trainer_client.reference.stem import three_channel_state
from trainer_client.reference.tracking.files import make_folder, replace_file, to_json
from trainer_client.reference.tracking.tracker import Tracker
from trainer_client.reference.trainer import Trainer


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a job is, as in its checkpoints: the next step is ``step`` of ``epoch``."""

    epoch: int = 0
    step: int = 0  # of the optimiser
    losses: list[float] = field(default_factory=list)
    """Of the steps of this epoch so far, averaged over the ranks."""
    history: list[EpochResult] = field(default_factory=list)  # every epoch that is complete
    target_s: float | None = None
    """When the target accuracy was reached, in the time that the job has spent."""
    elapsed_s: float = 0.0
    """Time that the job spent training and evaluating, in all of its processes, until ``at_s``."""
    at_s: float = field(default_factory=time.monotonic)

    def read_clock(self) -> float:
        """Bring ``elapsed_s`` up to now, and return it."""
        now_s = time.monotonic()
        self.elapsed_s, self.at_s = self.elapsed_s + now_s - self.at_s, now_s
        return self.elapsed_s

    @property
    def is_best(self) -> bool:
        """Whether the latest step is the end of the most accurate epoch."""
        scores = [each.best_top1 for each in self.history]
        *before, latest = [-1.0, *(-1.0 if score is None else score for score in scores)]
        return not self.step and latest > max(before, default=-1.0)

    def finish_epoch(self, result: EpochResult) -> None:
        self.history.append(result)
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []

    def __str__(self) -> str:
        return f"step {self.step} of epoch {self.epoch}"


@dataclass(slots=True)
class Saver:
    """Saves a job to ``store`` (None: nowhere), and resumes it from any checkpoint."""

    options: TrainingOptions
    trainer: Trainer
    loader: FeederLoader
    store: Store | None
    place: Place
    progress: Progress = field(default_factory=Progress)

    def save(self) -> None:
        """Save the job's present state; every rank must call this, rank 0 writes."""
        if self.store is None:
            return
        random = gather_random_states(self.place)
        if self.place.rank:
            return
        progress, options = self.progress, self.options
        progress.read_clock()
        kept = asdict(progress)
        del kept["at_s"]  # of this process
        content = {
            **self.trainer.state_dict(),
            "progress": kept,
            "loader": self.loader.state_dict() | self._position(),
            "random": random,
            "classes": list(self.loader.classes),
            "batch_size": self.trainer.plan.batch_size,
            "endpoint": None if options.has_own_feeder else options.endpoint,
            "val_dataset": options.val_dataset,
        }
        self.store.save(content, progress.epoch, progress.step, is_best=progress.is_best)

    def resume(self, path: Path | None) -> int:
        """Resume from a checkpoint, None if there is none; every rank must call this.

        Returns the epochs that the job had then. ConfigError when the checkpoint does not fit the
        job, and in all ranks unless all of them read the same.
        """
        epochs = self.options.recipe.epochs if path is None else self._load(path)
        if self.place.group is not None:
            steps = -1 if path is None else self.trainer.steps_done
            ends = torch.tensor([steps, -steps])
            dist.all_reduce(ends, dist.ReduceOp.MAX, self.place.group)
            if ends[0] != -ends[1]:
                where = "no checkpoint" if path is None else f"one at {self.progress}"
                raise ConfigError(
                    f"rank {self.place.rank} has {where} to resume from, another rank has another: "
                    "all ranks must read the same checkpoint, from a shared disk"
                )
        return epochs

    def _load(self, path: Path) -> int:
        content = load_for_resume(path)
        trainer = self.trainer
        try:
            trainer.check_recipe(content)
            self._check_classes(content["classes"])
            trainer.load_state_dict(content)
            progress = self.progress = msgspec.convert(content["progress"], Progress)
            self.loader.load_state_dict(content["loader"] | self._position())
            seed, steps_done = trainer.recipe.seed, trainer.steps_done
            restore_random_state(content["random"], self.place, seed=seed, steps_done=steps_done)
            epochs = int(content["recipe"]["epochs"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(part.strip() for part in str(error).split("\n")[:2])
            raise ConfigError(f"the checkpoint does not fit this job: {reason}") from error
        if self.store is not None and not self.place.rank and progress.is_best:
            self.store.keep_best(path)
        return epochs

    def _position(self) -> dict[str, int]:
        """Return where the loader is at this step, for this job's ranks and micro-batches.

        The loader itself counts micro-batches, and an epoch's last ones may not fill a step.
        """
        plan = self.trainer.plan
        return {
            "epoch": self.progress.epoch,
            "step": self.progress.step * plan.accumulation,
            "world_size": plan.ranks,
            "batch_size": plan.batch_size,
        }

    def _check_classes(self, classes: list[str]) -> None:
        here = list(self.loader.classes)
        if classes != here:
            raise ConfigError(
                f"the checkpoint is of {len(classes)} classes ({classes[0]} …), dataset "
                f"{self.loader.dataset.name!r} has {len(here)} ({here[0]} …): train on the "
                "dataset that the job began with"
            )


@dataclass(slots=True)
class RunFolder(Tracker):
    """Writes recipe and plan, and at the end the weights as ordinary state dicts."""

    folder: Path
    options: TrainingOptions
    trainer: Trainer
    loader: FeederLoader

    def begin(self, run: RunInfo) -> None:
        options, loader = self.options, self.loader
        recipe = show_recipe(options.recipe, options.recipe_name, options.recipe_origins)
        plan = {
            "versions": {
                "feeder": feeder.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "seed": run.seed,
            "dataset": loader.dataset.name,
            "fingerprint": loader.dataset.fingerprint,
            "data_recipe": msgspec.to_builtins(loader.recipe),
            "data_recipe_fingerprint": loader.recipe.fingerprint(),
            "ranks": run.ranks,
            "global_batch": run.global_batch,
            "batch_size": loader.batch_size,
            "steps_per_epoch": run.steps_per_epoch,
            "epochs": run.epochs,
            "device": run.device,
            "threads": torch.get_num_threads(),
            "val_dataset": options.val_dataset,
            "val_samples": run.val_samples,
        }
        make_folder(self.folder)
        replace_file(self.folder / "recipe.toml", recipe.encode())
        replace_file(self.folder / "plan.json", to_json(plan))

    def end(self, outcome: Outcome) -> None:
        models: dict[str, Any] = {"weights.pt": self.trainer.plain_model}
        if self.trainer.average is not None:
            models["weights-averaged.pt"] = self.trainer.average.model
        for name, model in models.items():
            content = io.BytesIO()
            torch.save(three_channel_state(model), content)
            replace_file(self.folder / name, content.getvalue())
