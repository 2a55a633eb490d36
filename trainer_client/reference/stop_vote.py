"""Ends a job on SIGTERM or when its time is up: in all ranks after the same step.

Ranks wait for each other's gradients, so one that stops a step early leaves the others hanging.
They vote while they compute: a request before a step's vote takes effect after that step.
"""

import enum
import signal
from types import FrameType
from typing import Any, Self

import torch
import torch.distributed as dist


class Stop(enum.IntEnum):
    """Why to stop; of several requests the largest counts."""

    NO = 0
    TIME = 1
    SIGTERM = 2


class StopVote:
    """The vote of all ranks, and a context manager that handles SIGTERM."""

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        """Vote within ``group``, which is of CPUs; None for a single rank."""
        self._group = group
        self._requested = Stop.NO
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._vote: Any = None  # a dist.Work, while one is in flight
        self._previous_handler: Any = None

    def __enter__(self) -> Self:
        """Make SIGTERM request a stop; in the main thread only."""
        self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handler of SIGTERM."""
        signal.signal(signal.SIGTERM, self._previous_handler)

    def request(self, why: Stop) -> None:
        """Ask for a stop after the step of the next vote."""
        self._requested = max(self._requested, why)

    def begin(self) -> None:
        """Vote; every rank must do so in every step."""
        self._votes.fill_(int(self._requested))
        if self._group is not None:
            self._vote = dist.all_reduce(self._votes, dist.ReduceOp.MAX, self._group, async_op=True)

    def end(self) -> Stop:
        """Return whether to stop and why, the same in every rank."""
        if self._vote is not None:
            self._vote.wait()
            self._vote = None
        return Stop(int(self._votes.item()))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(Stop.SIGTERM)
