"""Saves the reference job, and stops it on SIGTERM: in all ranks after the same step."""

import signal
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client.reference.checkpoint import load_checkpoint, save_checkpoint
from trainer_client.reference.trainer import Trainer


class Saver:
    """Saves a job every ``every_steps``, after each epoch and when it is stopped.

    A ``StepHook``, and a context manager that handles SIGTERM.
    """

    def __init__(self, trainer: Trainer, path: Path, *, every_steps: int, rank: int) -> None:
        """Prepare to save to ``path``, which rank 0 writes and every rank reads."""
        if every_steps < 1:
            raise ConfigError(f"checkpoint_steps must be 1 or more, got {every_steps}")
        # Checked now, not when the first checkpoint is due.
        if rank == 0 and not _can_be_file(path):
            raise ConfigError(f"checkpoint must name a file in an existing folder, got {path}")
        self.path = path
        self.is_stopping = False
        self._trainer = trainer
        self._every_steps = every_steps
        self._rank = rank
        world_size = trainer.loader.world_size
        # On CPUs, whatever the gradients use: a vote must not wait for the device.
        self._group = dist.new_group(backend="gloo") if world_size > 1 else None
        self._vote = StopVote(self._group)

    def __enter__(self) -> Self:
        """Begin to handle SIGTERM."""
        self._vote.install_handler()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handler of SIGTERM."""
        self._vote.close()

    def resume(self) -> str:
        """Resume from the checkpoint if there is one; return a line that reports it.

        Raises ConfigError when it does not fit the job, or not all ranks read the same one.
        """
        line = f"no checkpoint {self.path} yet: starting from scratch"
        if self.path.exists():
            self._trainer.load_state_dict(load_checkpoint(self.path))
            line = f"resumed from {self.path}, {self._format_position()}"
        if self._group is not None:
            state = self._trainer.loader.state_dict()
            here = int(state["epoch"]) * len(self._trainer.loader) + int(state["step"])
            ends = torch.tensor([here, -here])
            dist.all_reduce(ends, dist.ReduceOp.MAX, self._group)
            if ends[0] != -ends[1]:
                raise ConfigError(
                    f"rank {self._rank} would resume at {self._format_position()}, another rank "
                    f"elsewhere: all ranks must read the same {self.path}, from a shared disk"
                )
        return line

    def save(self) -> None:
        """Save the job's present state."""
        state = self._trainer.state_dict()
        if self._rank == 0:
            save_checkpoint(self.path, state)

    def end_epoch(self) -> None:
        """Save the job after an epoch and its evaluation; vote again, as SIGTERM may have come."""
        self._vote.begin()
        self.is_stopping = self._vote.end()
        self.save()

    def begin(self) -> None:
        """Vote on stopping, while the step is computed."""
        self._vote.begin()

    def end(self, step: int) -> bool:
        """Save if it is time, and return whether to leave the epoch after its ``step``.

        The last step does neither: ``end_epoch`` saves it together with the epoch's evaluation.
        """
        self.is_stopping = self._vote.end()
        loader = self._trainer.loader
        if step + 1 == len(loader):
            return False
        steps = int(loader.state_dict()["epoch"]) * len(loader) + step + 1
        if self.is_stopping or steps % self._every_steps == 0:
            self.save()
        return self.is_stopping

    def format_stop(self) -> str:
        """Return the line that reports where the job was stopped."""
        return f"stopped by SIGTERM, {self._format_position()} comes next; saved to {self.path}"

    def _format_position(self) -> str:
        state = self._trainer.loader.state_dict()
        return f"step {state['step']} of epoch {state['epoch']}"


def _can_be_file(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # no permission, or the name is too long
        return False


class StopVote:
    """On SIGTERM in any rank, stops all ranks after the same step.

    Ranks wait for each other's gradients, so one that stops a step early leaves the others hanging.
    They vote while they compute: a SIGTERM before a step's vote takes effect after that step.
    """

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        """Vote within ``group``; None for a single rank."""
        self._group = group
        self._requested = False
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._vote: Any = None  # a dist.Work, while one is in flight
        self._previous_handler: Any = None

    def install_handler(self) -> None:
        """Make SIGTERM request a stop; in the main thread only."""
        self._previous_handler = signal.signal(signal.SIGTERM, self._request)

    def close(self) -> None:
        """Restore the previous handler of SIGTERM."""
        signal.signal(signal.SIGTERM, self._previous_handler)

    def begin(self) -> None:
        """Vote; every rank must do so in every step."""
        self._votes.fill_(int(self._requested))
        if self._group is not None:
            self._vote = dist.all_reduce(self._votes, dist.ReduceOp.MAX, self._group, async_op=True)

    def end(self) -> bool:
        """Return whether to stop, the same in every rank."""
        if self._vote is not None:
            self._vote.wait()
            self._vote = None
        return bool(self._votes.item())

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
