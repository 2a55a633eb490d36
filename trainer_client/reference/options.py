"""The options of a job, the recipe apart: its data, what it keeps, how a step is divided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import TrainingRecipe

SMOKE: Final = "smoke"
"""The recipe that brings its own data and feeder, where no endpoint is given."""
DEFAULT_BATCH_SIZE: Final = 256
DATA_OPTIONS: Final = ("dataset", "val_dataset")
FEEDER_OPTIONS: Final = (
    "batch_size",
    "window",
    "timeout_s",
    "device",
    "server_key",
    "client_key",
    "job",
)
KEPT_OPTIONS: Final = (
    "output",
    "keep",
    "checkpoint",
    "checkpoint_steps",
    "resume",
    "init",
    "tensorboard",
    "wandb",
    "mllog",
)


def _option(default: Any, about: str, metavar: str | None = None, **argument: Any) -> Any:
    """Return the dataclass field of an option, with what the command line's parser needs of it."""
    if isinstance(default, bool):
        argument["action"] = "store_true"
    else:
        argument |= {"default": default, "metavar": metavar}
        if isinstance(default, int | float):
            argument["type"] = type(default)
    return field(default=default, metadata={**argument, "help": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What to train on and what to keep; ``recipe`` holds the training recipe.

    A field made by ``_option`` is an option of the command line: ``batch_size`` is --batch-size.
    """

    endpoint: str | None = None  # None: the smoke recipe, with a feeder of its own
    recipe: TrainingRecipe = field(default_factory=TrainingRecipe)
    recipe_name: str = "defaults"
    recipe_origins: Mapping[str, str] = field(default_factory=dict)  # of keys that were set
    has_own_feeder: bool = False  # set by a job of the smoke recipe, with the endpoint

    dataset: str = _option("", "the training set's name", "NAME")
    val_dataset: str | None = _option(None, "the validation set's name", "NAME")
    batch_size: int = _option(
        0,
        "images of a rank that go through the model at once; default: from the recipe, or 256",
    )
    window: int = _option(4, "batches to request ahead; default: %(default)s")
    timeout_s: float = _option(60.0, "of each wait for a feeder; default: %(default)s")
    device: str | None = _option(None, "default: cuda if available, else cpu")
    server_key: str | None = _option(None, "the feeder's public key, or its file", "KEY")
    client_key: str | None = _option(None, "this job's secret key", "FILE")
    job: str = _option(
        "", "this job's name: feeders share their workers evenly between jobs, or by weight", "NAME"
    )

    output: str | None = _option(None, "folder of the run, with all that it leaves", "DIR")
    keep: int = _option(3, "checkpoints; default: %(default)s")  # beside the best
    checkpoint: str | None = _option(
        None, "without --output: save the job there and on SIGTERM", "FILE"
    )
    checkpoint_steps: int = _option(
        1000, "steps between checkpoints, beside one after each epoch; default: %(default)s"
    )
    resume: str | None = _option(
        None,
        "from the latest checkpoint if there is one (auto, also without a value), or FILE",
        "auto|FILE",
        nargs="?",
        const="auto",
    )
    init: str | None = _option(None, "weights to begin with: a state dict", "FILE")
    tensorboard: bool = _option(False, "in DIR/tensorboard")
    wandb: str | None = _option(None, "Weights & Biases", "PROJECT")
    mllog: bool = _option(False, "MLPerf's log, in DIR/mllog.txt")

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
