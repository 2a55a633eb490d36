"""How far a job is: its position, the epochs behind it, the time it took. Part of a checkpoint."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from feeder.errors import ConfigError
from trainer_client.reference.results import EpochResult


@dataclass(slots=True, kw_only=True)
class Progress:
    """The next step is ``step`` of ``epoch``, in steps of the optimiser."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    """Of the steps of this epoch so far, averaged over the ranks."""
    history: list[EpochResult] = field(default_factory=list)
    """Every epoch that is complete."""
    target_s: float | None = None
    """When the target accuracy was reached, in the time that the job has spent."""
    earlier_s: float = 0.0
    """Time that earlier processes of this job spent training and evaluating."""
    start_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Time that the job has spent, over all of its processes."""
        return self.earlier_s + time.monotonic() - self.start_s

    def finish_epoch(self, result: EpochResult) -> None:
        """Move to the next epoch."""
        self.history.append(result)
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "losses": list(self.losses),
            "history": [asdict(each) for each in self.history],
            "elapsed_s": self.elapsed_s,
            "target_s": self.target_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; ConfigError when it has other entries."""
        try:
            self.epoch, self.step = int(state["epoch"]), int(state["step"])
            self.losses = [float(loss) for loss in state["losses"]]
            self.history = [EpochResult(**each) for each in state["history"]]
            self.earlier_s = float(state["elapsed_s"])
            self.target_s = state["target_s"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the checkpoint does not fit this job: its progress lacks {error}"
            ) from error
        self.start_s = time.monotonic()

    def __str__(self) -> str:
        """Return the position for messages."""
        return f"step {self.step} of epoch {self.epoch}"
