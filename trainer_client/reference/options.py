"""The options of a job, the recipe apart: its data, what it keeps, how a step is divided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import TrainingRecipe

SMOKE: Final = "smoke"
"""The recipe that brings its own data and feeder, where no endpoint is given."""
DEFAULT_BATCH_SIZE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What to train on and what to keep; ``recipe`` holds the training recipe."""

    endpoint: str | None = None  # None: the smoke recipe, with a feeder of its own
    dataset: str = ""
    val_dataset: str | None = None
    recipe: TrainingRecipe = field(default_factory=TrainingRecipe)
    recipe_name: str = "defaults"
    recipe_origins: Mapping[str, str] = field(default_factory=dict)  # of keys that were set
    batch_size: int = 0  # images of a rank in a micro-batch; 0: from the recipe's global batch
    window: int = 4
    timeout_s: float = 60.0
    device: str | None = None
    server_key: str | None = None  # where the feeder has keys: its public key, a file or its text
    client_key: str | None = None  # and the file of this job's secret key
    job: str = ""  # its name, by which feeders share their workers between jobs
    init: str | None = None  # file of weights to begin with
    output: str | None = None  # folder of the run: checkpoints, results, pictures
    checkpoint: str | None = None  # or one file, without the rest
    checkpoint_steps: int = 1000  # between checkpoints, beside the one at each epoch's end
    keep: int = 3  # checkpoints of a run's folder, beside the best
    resume: str | None = None  # "auto": the latest checkpoint, if there is one; or a file
    tensorboard: bool = False
    wandb: str | None = None  # project
    mllog: bool = False
    has_own_feeder: bool = False  # set by a job of the smoke recipe, with the endpoint

    def check(self) -> None:
        """Raise ConfigError for options that do not fit together, or that nothing else checks."""
        for name, least in (("checkpoint_steps", 1), ("keep", 1), ("window", 1), ("batch_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if self.endpoint is None and self.recipe_name != SMOKE:
            raise ConfigError(
                "there is no endpoint: pass one, as tcp://127.0.0.1:5555 (only --recipe smoke "
                "starts a feeder of its own)"
            )
        if self.endpoint is not None and not self.dataset:
            raise ConfigError("there is no dataset: pass --dataset NAME, as the feeder serves it")
        if self.is_smoke and self.output is None:
            raise ConfigError("--recipe smoke needs --output DIR, for its data and its results")
        if self.output is not None and self.checkpoint is not None:
            raise ConfigError(
                "--output DIR keeps checkpoints in DIR/checkpoints: leave out --checkpoint"
            )
        if self.resume == "auto" and self.output is None and self.checkpoint is None:
            raise ConfigError(
                "--resume needs --checkpoint FILE or --output DIR, where the checkpoints are"
            )
        if self.resume not in (None, "auto") and not Path(self.resume).is_file():
            raise ConfigError(
                f"there is no checkpoint {self.resume}: name a file, or pass --resume auto for the "
                "latest one"
            )
        if self.recipe.target_accuracy and not (self.val_dataset or self.is_smoke):
            raise ConfigError(
                f"target accuracy {self.recipe.target_accuracy:g} needs a validation set: pass "
                "--val-dataset NAME, or --target-accuracy 0"
            )

    @property
    def is_smoke(self) -> bool:
        """Whether the job makes its data and starts a feeder."""
        return self.endpoint is None and self.recipe_name == SMOKE

    @property
    def folder(self) -> Path | None:
        """The folder of the run."""
        return None if self.output is None else Path(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a step's images are divided: ranks, micro-batches, and what a loader is asked for.

    A step takes ``global_batch`` images: ``ranks`` × ``accumulation`` micro-batches of
    ``batch_size``, which go through the model at once. Micro-batch m of rank r in step t is batch
    (t · accumulation + m) · ranks + r of the epoch. So step t has the same samples for every number
    of ranks and micro-batches, as long as the order is the same (``order_batch_size`` of the data's
    recipe, which a resumed job keeps).
    """

    global_batch: int
    batch_size: int
    accumulation: int
    ranks: int

    @classmethod
    def make(cls, recipe: TrainingRecipe, batch_size: int, ranks: int) -> Self:
        """Divide the recipe's global batch; ``batch_size`` 0 lets it follow from the others.

        Raises ConfigError where the numbers do not divide each other.
        """
        total, parts = recipe.global_batch, recipe.accumulation
        on_ranks = f"on {ranks} rank" + "s" * (ranks != 1)
        if not total:
            total = (batch_size or DEFAULT_BATCH_SIZE) * ranks * (parts or 1)
        if not parts and batch_size:
            parts, remainder = divmod(total, ranks * batch_size)
            if remainder or not parts:
                raise ConfigError(
                    f"batch_size {batch_size} {on_ranks} does not divide the global batch of "
                    f"{total}: use a --batch-size that divides {total / ranks:g}, or leave it out"
                )
        parts = parts or 1
        share, remainder = divmod(total, ranks * parts)
        if remainder or not share:
            raise ConfigError(
                f"accumulation {parts} {on_ranks} does not divide the global batch of {total}: "
                f"make --global-batch a multiple of {ranks * parts}, or change --accumulation"
            )
        if batch_size and batch_size != share:
            raise ConfigError(
                f"a global batch of {total} {on_ranks} with accumulation {parts} has micro-batches "
                f"of {share}, not of batch_size {batch_size}: leave out --accumulation or "
                "--batch-size"
            )
        return cls(global_batch=total, batch_size=share, accumulation=parts, ranks=ranks)

    def __str__(self) -> str:
        parts = f"{self.accumulation} x " if self.accumulation > 1 else ""
        return f"{self.ranks} x {parts}{self.batch_size} images a step"
