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


def _option(
    group: str, default: Any, about: str, metavar: str | None = None, **argument: Any
) -> Any:
    """Return the dataclass field of an option, with what the command line's parser needs of it."""
    if isinstance(default, bool):
        argument["action"] = "store_true"
    else:
        argument |= {"default": default, "metavar": metavar}
        if isinstance(default, int | float):
            argument["type"] = type(default)
    return field(default=default, metadata={"group": group, "argument": argument | {"help": about}})


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

    dataset: str = _option("data", "", "the training set's name", "NAME")
    val_dataset: str | None = _option("data", None, "the validation set's name", "NAME")
    batch_size: int = _option(
        "feeder",
        0,
        "images of a rank that go through the model at once; default: from the recipe, or 256",
    )
    window: int = _option("feeder", 4, "batches to request ahead; default: %(default)s")
    timeout_s: float = _option("feeder", 60.0, "of each wait for a feeder; default: %(default)s")
    device: str | None = _option("feeder", None, "default: cuda if available, else cpu")
    server_key: str | None = _option("feeder", None, "the feeder's public key, or its file", "KEY")
    client_key: str | None = _option("feeder", None, "this job's secret key", "FILE")
    job: str = _option(
        "feeder",
        "",
        "this job's name: feeders share their workers evenly between jobs, or by weight",
        "NAME",
    )

    output: str | None = _option("kept", None, "folder of the run, with all that it leaves", "DIR")
    keep: int = _option("kept", 3, "checkpoints; default: %(default)s")  # beside the best
    checkpoint: str | None = _option(
        "kept", None, "without --output: save the job there and on SIGTERM", "FILE"
    )
    checkpoint_steps: int = _option(
        "kept", 1000, "steps between checkpoints, beside one after each epoch; default: %(default)s"
    )
    resume: str | None = _option(
        "kept",
        None,
        "from the latest checkpoint if there is one (auto, also without a value), or FILE",
        "auto|FILE",
        nargs="?",
        const="auto",
    )
    init: str | None = _option("kept", None, "weights to begin with: a state dict", "FILE")
    tensorboard: bool = _option("kept", False, "in DIR/tensorboard")
    wandb: str | None = _option("kept", None, "Weights & Biases", "PROJECT")
    mllog: bool = _option("kept", False, "MLPerf's log, in DIR/mllog.txt")

    def check(self) -> None:
        """Raise ConfigError for options that do not fit together, or that nothing else checks."""
        for name, least in (("checkpoint_steps", 1), ("keep", 1), ("window", 1), ("batch_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if problem := self._find_problem():
            raise ConfigError(problem)

    def _find_problem(self) -> str | None:
        is_smoke, target = self.is_smoke, self.recipe.target_accuracy
        if self.endpoint is None and not is_smoke:
            return (
                "there is no endpoint: pass one, as tcp://127.0.0.1:5555 (only --recipe smoke "
                "starts a feeder of its own)"
            )
        if not self.dataset and not is_smoke:
            return "there is no dataset: pass --dataset NAME, as the feeder serves it"
        if is_smoke and self.output is None:
            return "--recipe smoke needs --output DIR, for its data and its results"
        if self.output is not None and self.checkpoint is not None:
            return "--output DIR keeps checkpoints in DIR/checkpoints: leave out --checkpoint"
        if self.resume == "auto" and self.output is None and self.checkpoint is None:
            return "--resume needs --checkpoint FILE or --output DIR, where the checkpoints are"
        if self.resume not in (None, "auto") and not Path(self.resume).is_file():
            return (
                f"there is no checkpoint {self.resume}: name a file, or pass --resume auto for the "
                "latest one"
            )
        if target and not (self.val_dataset or is_smoke):
            return (
                f"target accuracy {target:g} needs a validation set: pass --val-dataset NAME, or "
                "--target-accuracy 0"
            )
        return None

    @property
    def is_smoke(self) -> bool:
        """Whether the job makes its data and starts a feeder."""
        return self.endpoint is None and self.recipe_name == SMOKE

    @property
    def folder(self) -> Path | None:
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
        total, parts, size = recipe.global_batch, recipe.accumulation, batch_size
        if not total:
            size = size or DEFAULT_BATCH_SIZE
            total = size * ranks * (parts or 1)
        parts = parts or (max(1, total // (ranks * size)) if size else 1)
        size = size or total // (ranks * parts)
        if not size or ranks * parts * size != total:
            raise ConfigError(
                f"a global batch of {total} is not {ranks} rank{'s' * (ranks != 1)} x accumulation "
                f"{parts} x batch_size {size}: set two of --global-batch, --accumulation and "
                "--batch-size so that they divide it, and the third follows"
            )
        return cls(global_batch=total, batch_size=size, accumulation=parts, ranks=ranks)

    def __str__(self) -> str:
        parts = f"{self.accumulation} x " if self.accumulation > 1 else ""
        return f"{self.ranks} x {parts}{self.batch_size} images a step"
