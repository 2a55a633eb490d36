"""What a run reports: steps, epochs and the end of the run, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known of a run before its first step."""

    model: str
    optimiser: str
    device: str
    epochs: int
    steps_per_epoch: int
    global_batch: int
    ranks: int
    classes: int
    train_samples: int
    val_samples: int | None
    seed: int
    recipe: Mapping[str, Any]  # every key in effect, as TOML and JSON can hold it
    first_step: int = 0
    """Steps of the job that were taken before, by the process that this one resumes."""
    history: Sequence["EpochResult"] = ()  # the epochs that were completed before


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The latest step, at the times when reading the loss does not slow the job down."""

    epoch: int
    step: int  # steps done in this epoch, including this one
    steps_per_epoch: int
    global_step: int  # steps done in the whole job, including this one
    loss: float
    lr: float
    images_per_s: float  # of all ranks, over this epoch so far
    wait_share: float  # share of the time spent waiting for the feeder, over this epoch so far
    remaining_s: float  # of the whole job at this rate, evaluations left out


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """One epoch as measured by this rank; images are those of all ranks.

    If the job was resumed or stopped in this epoch, rates and times are those of this process.
    """

    epoch: int
    steps: int
    images: int
    seconds: float
    images_per_s: float
    wait_share: float  # share of the time spent waiting for the feeder
    loss: float  # mean over the epoch, of all ranks
    lr: float
    val_images: int | None = None
    val_correct: int | None = None
    val_correct_top5: int | None = None
    ema_correct: int | None = None  # correct with the averaged weights, where the recipe has them
    ema_correct_top5: int | None = None
    val_s: float | None = None

    @property
    def top1(self) -> float | None:
        """Share of the validation set that the model gets right; None without an evaluation."""
        return self._share(self.val_correct)

    @property
    def top5(self) -> float | None:
        """Share of the validation set with the label among the top five guesses."""
        return self._share(self.val_correct_top5)

    @property
    def ema_top1(self) -> float | None:
        return self._share(self.ema_correct)

    @property
    def ema_top5(self) -> float | None:
        return self._share(self.ema_correct_top5)

    @property
    def best_top1(self) -> float | None:
        """The better of ``top1`` and ``ema_top1``."""
        return max((each for each in (self.top1, self.ema_top1) if each is not None), default=None)

    def _share(self, count: int | None) -> float | None:
        return count / self.val_images if count is not None and self.val_images else None

    def __str__(self) -> str:
        line = (
            f"epoch {self.epoch}: loss {self.loss:.3f}, {self.images_per_s:,.0f} images/s, "
            f"waits {self.wait_share:.0%}"
        )
        if self.top1 is not None:
            line += f", {self.top1:.1%} correct"
        if self.ema_top1 is not None:
            line += f", averaged {self.ema_top1:.1%}"
        return line


Ending = Literal["finished", "target", "time-budget", "stopped"]
"""All epochs were trained; the target accuracy or the time budget was reached; SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    ending: Ending
    epochs: int  # epochs completed, over all processes of the job
    seconds: float  # training and evaluation, over all processes of the job
    images_per_s: float
    wait_share: float
    val_top1: float | None
    best_top1: float | None
    best_epoch: int | None
    target_s: float | None = None  # seconds until the target accuracy was reached

    def __str__(self) -> str:
        changed = {"target": "reached the target", "time-budget": "out of time"}
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        line = f"{changed.get(self.ending, self.ending)} after {epochs} and {self.seconds:,.0f} s"
        if self.val_top1 is not None:
            line += f": {self.val_top1:.1%} correct"
        if self.best_top1 is not None and self.best_top1 != self.val_top1:
            line += f", best {self.best_top1:.1%}"
        return line
