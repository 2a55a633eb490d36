"""Saves a job, and resumes it: what is in a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client._loader import FeederLoader
from trainer_client.reference.checkpoints.progress import Progress
from trainer_client.reference.checkpoints.store import Store
from trainer_client.reference.job import Place
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.random_state import gather_random_states, restore_random_state
from trainer_client.reference.trainer import Trainer


class Saver:
    """What a checkpoint holds of a job; ``store`` is where it is written."""

    def __init__(
        self,
        trainer: Trainer,
        loader: FeederLoader,
        progress: Progress,
        place: Place,
        group: "dist.ProcessGroup | None",
    ) -> None:
        """Prepare to save; ``group`` is of CPUs, so that nothing waits for the device."""
        self._trainer = trainer
        self._loader = loader
        self._progress = progress
        self._place = place
        self._group = group

    def save(self, store: Store, options: TrainingOptions) -> None:
        """Save the job's present state; every rank must call this, rank 0 writes."""
        random = gather_random_states(self._place, self._group)
        if self._place.rank:
            return
        content = {
            **self._trainer.state_dict(),
            "progress": self._progress.state_dict(),
            "loader": self._loader.state_dict() | self._position(),
            "random": random,
            "classes": list(self._loader.classes),
            "batch_size": self._trainer.plan.batch_size,
            "endpoint": None if options.has_own_feeder else options.endpoint,
            "val_dataset": options.val_dataset,
        }
        store.save(content, self._progress)

    def resume(self, path: Path, load: Callable[[Path], dict[str, Any]]) -> int:
        """Resume from a checkpoint; ConfigError when it does not fit the job.

        Returns the epochs that the job had then.
        """
        content = load(path)
        try:
            self._trainer.check_recipe(content)
            self._check_classes(content["classes"])
            self._trainer.load_state_dict(content)
            self._progress.load_state_dict(content["progress"])
            self._loader.load_state_dict(content["loader"] | self._position())
            restore_random_state(
                content["random"],
                self._place,
                seed=self._trainer.recipe.seed,
                steps_done=self._trainer.steps_done,
            )
            return int(content["recipe"]["epochs"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(part.strip() for part in str(error).split("\n")[:2])
            raise ConfigError(f"the checkpoint does not fit this job: {reason}") from error

    def _position(self) -> dict[str, int]:
        """Return where the loader is at this step, for this job's ranks and micro-batches.

        The loader itself counts micro-batches, and an epoch's last ones may not fill a step.
        """
        plan = self._trainer.plan
        return {
            "epoch": self._progress.epoch,
            "step": self._progress.step * plan.accumulation,
            "world_size": plan.ranks,
            "batch_size": plan.batch_size,
        }

    def _check_classes(self, classes: list[str]) -> None:
        here = list(self._loader.classes)
        if classes != here:
            raise ConfigError(
                f"the checkpoint is of {len(classes)} classes ({classes[0]} …), dataset "
                f"{self._loader.dataset.name!r} has {len(here)} ({here[0]} …): train on the "
                "dataset that the job began with"
            )

    def check_agreement(self, path: Path | None) -> None:
        """Raise ConfigError, in all ranks, unless all of them read the same checkpoint, or none.

        Every rank must call this, with what it has read.
        """
        if self._group is None:
            return
        here = -1 if path is None else self._trainer.steps_done
        ends = torch.tensor([here, -here])
        dist.all_reduce(ends, dist.ReduceOp.MAX, self._group)
        if ends[0] != -ends[1]:
            where = "no checkpoint" if path is None else f"one at {self._progress}"
            raise ConfigError(
                f"rank {self._place.rank} has {where} to resume from, another rank has another: "
                "all ranks must read the same checkpoint, from a shared disk"
            )
