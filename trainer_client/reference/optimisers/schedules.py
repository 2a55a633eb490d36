"""Learning rates by step: a linear warm-up, then a cosine, a polynomial or steps down.

Cosine decay is of Loshchilov and Hutter (2016, "SGDR", without restarts), the polynomial of power 2
of MLPerf's ResNet-50 reference, decay at given epochs and linear scaling with the batch of Goyal et
al. (2017), decay every few epochs of EfficientNet (Tan and Le 2019: 0.97 every 2.4 epochs).

Invariant: a learning rate is a pure function of the step, so a resumed job needs no state of it.
"""

import bisect
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from feeder.errors import ConfigError
from trainer_client.reference.optimisers.float32_optimiser import check_bounds

ScheduleKind = Literal["cosine", "polynomial", "steps"]
SCHEDULE_KINDS: Final[tuple[str, ...]] = get_args(ScheduleKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The share of the peak learning rate at each step; all lengths are in steps.

    Cosine and polynomial fall from 1 at the end of the warm-up to ``end_factor`` at
    ``total_steps``. Steps multiply by ``step_factor`` at each of ``step_at``, or every
    ``step_every``; both count from the first step of the job, the warm-up included, as in the
    sources, so boundaries within the warm-up take effect at its end.
    """

    kind: ScheduleKind
    total_steps: int
    warmup_steps: float = 0.0
    warmup_factor: float = 0.0  # from which the warm-up rises; its first step is above it
    power: float = 2.0  # of the polynomial
    end_factor: float = 0.0  # of cosine and polynomial
    step_at: tuple[float, ...] = ()
    step_every: float = 0.0  # 0: at step_at
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        """Raise ConfigError when a field has no valid meaning."""
        if self.kind not in SCHEDULE_KINDS:
            raise ConfigError(
                f"schedule must be one of {', '.join(SCHEDULE_KINDS)}, got {self.kind!r}"
            )
        check_bounds(0, total_steps=self.total_steps, warmup_steps=self.warmup_steps)
        check_bounds(0, power=self.power, step_every=self.step_every)
        check_bounds(0, 1, warmup_factor=self.warmup_factor, end_factor=self.end_factor)
        check_bounds(0, 1, step_factor=self.step_factor)
        for boundary in self.step_at:
            check_bounds(0, step_at=boundary)
        if any(
            later <= former for former, later in zip(self.step_at, self.step_at[1:], strict=False)
        ):
            raise ConfigError(f"step_at must ascend, got {list(self.step_at)}")
        if self.kind == "steps" and bool(self.step_at) == (self.step_every > 0):
            raise ConfigError(
                "schedule 'steps' needs either step_at or step_every, "
                f"got {'both' if self.step_at else 'neither'}"
            )

    def factor(self, step: int) -> float:
        """Return the share of the peak learning rate at ``step`` (from 0), in 0 .. 1."""
        if step < self.warmup_steps:
            share = (step + 1) / (self.warmup_steps + 1)
            return self.warmup_factor + (1 - self.warmup_factor) * share
        if self.kind == "steps":
            return self.step_factor ** self._boundaries_until(step)
        length = max(1.0, self.total_steps - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / length)
        if self.kind == "cosine":
            share = 0.5 * (1 + math.cos(math.pi * progress))
        else:
            share = (1 - progress) ** self.power
        return self.end_factor + (1 - self.end_factor) * share

    def _boundaries_until(self, step: int) -> int:
        if self.step_every:
            return math.floor(step / self.step_every)
        return bisect.bisect_right(self.step_at, step)


def scaled_lr(base_lr: float, base_batch: int, global_batch: int) -> float:
    """Return the learning rate for ``global_batch``, proportional to it (Goyal et al. 2017).

    Raises ConfigError when a batch has no samples or ``base_lr`` is below 0.
    """
    check_bounds(0, lr=base_lr)
    check_bounds(1, base_batch=base_batch, global_batch=global_batch)
    return base_lr * global_batch / base_batch
