"""When the reference job is saved, and how SIGTERM stops it: in all ranks after the same step."""

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
    """Saves a job every so many steps, after each epoch and when it is stopped.

    A hook around each step, and a context manager that listens for SIGTERM.
    """

    def __init__(self, trainer: Trainer, path: Path, *, every_steps: int, rank: int) -> None:
        """Prepare to save to ``path``, which rank 0 writes and every rank reads."""
        if every_steps < 1:
            raise ConfigError(f"checkpoint_steps must be 1 or more, got {every_steps}")
        # Now, not when the first one is due.
        if rank == 0 and not _can_be_file(path):
            raise ConfigError(f"checkpoint must name a file in a folder that is there, got {path}")
        self.path = path
        self.is_stopping = False
        self._trainer = trainer
        self._every_steps = every_steps
        self._rank = rank
        world_size = trainer.loader.world_size
        # Of CPUs, whatever the gradients use: a vote must not wait for the device.
        self._group = dist.new_group(backend="gloo") if world_size > 1 else None
        self._vote = StopVote(self._group)

    def __enter__(self) -> Self:
        """Begin to listen for SIGTERM."""
        self._vote.listen()
        return self

    def __exit__(self, *_: object) -> None:
        """Let SIGTERM do what it did before."""
        self._vote.close()

    def resume(self) -> str:
        """Go on from the checkpoint where there is one; return a line that says so.

        Raises ConfigError when it does not fit the job, or not all ranks read the same one.
        """
        line = f"no checkpoint {self.path} yet: beginning anew"
        if self.path.exists():
            self._trainer.load_state_dict(load_checkpoint(self.path))
            line = f"resumed from {self.path}, {self._say_position()}"
        if self._group is not None:
            state = self._trainer.loader.state_dict()
            here = int(state["epoch"]) * len(self._trainer.loader) + int(state["step"])
            ends = torch.tensor([here, -here])
            dist.all_reduce(ends, dist.ReduceOp.MAX, self._group)
            if ends[0] != -ends[1]:
                raise ConfigError(
                    f"rank {self._rank} would go on at {self._say_position()}, another not: all "
                    f"ranks must read the same {self.path}, from a disk that they share"
                )
        return line

    def save(self) -> None:
        """Save the job as it is."""
        state = self._trainer.state_dict()
        if self._rank == 0:
            save_checkpoint(self.path, state)

    def end_epoch(self) -> None:
        """Save the job after an epoch with its evaluation, and vote again: that took its time."""
        self._vote.begin()
        self.is_stopping = self._vote.end()
        self.save()

    def begin(self) -> None:
        """Vote about stopping, while the step is computed."""
        self._vote.begin()

    def end(self, step: int) -> bool:
        """Save if it is time, and return whether to leave the epoch after its ``step``.

        The last step is left alone: the epoch's evaluation belongs to it, and is saved with it.
        """
        self.is_stopping = self._vote.end()
        loader = self._trainer.loader
        if step + 1 == len(loader):
            return False
        steps = int(loader.state_dict()["epoch"]) * len(loader) + step + 1
        if self.is_stopping or steps % self._every_steps == 0:
            self.save()
        return self.is_stopping

    def say_stop(self) -> str:
        """Return the line that says where the job was stopped."""
        return f"stopped by SIGTERM, {self._say_position()} comes next; saved to {self.path}"

    def _say_position(self) -> str:
        state = self._trainer.loader.state_dict()
        return f"step {state['step']} of epoch {state['epoch']}"


def _can_be_file(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # closed to this user, or its name is too long
        return False


class StopVote:
    """SIGTERM asks for a stop, and all ranks stop after the same step.

    Ranks wait for each other's gradients, so one that stops a step before the others leaves them
    hanging. They vote while they compute: what any rank knew when a step began counts after it.
    """

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        """Vote within ``group``; alone without one."""
        self._group = group
        self._asked = False
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._vote: Any = None  # a dist.Work, while one is under way
        self._before: Any = None

    def listen(self) -> None:
        """Begin to take SIGTERM for a wish to stop; in the main thread only."""
        self._before = signal.signal(signal.SIGTERM, self._ask)

    def close(self) -> None:
        """Let SIGTERM do what it did before."""
        signal.signal(signal.SIGTERM, self._before)

    def begin(self) -> None:
        """Vote; every rank does so in every step."""
        self._votes.fill_(int(self._asked))
        if self._group is not None:
            self._vote = dist.all_reduce(self._votes, dist.ReduceOp.MAX, self._group, async_op=True)

    def end(self) -> bool:
        """Return whether to stop: the same in every rank."""
        if self._vote is not None:
            self._vote.wait()
            self._vote = None
        return bool(self._votes.item())

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
