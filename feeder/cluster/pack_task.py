"""A task of a packing, as a worker of Ray performs it."""

import os
from typing import Any

from feeder.pack.task_pool import perform_here
from feeder.process.child import SINGLE_THREADS


def perform_task(module: str, setup: dict[str, Any], task: dict[str, Any]) -> list[dict[str, Any]]:
    """Perform a task in a worker of Ray; return its messages."""
    os.environ.update(SINGLE_THREADS)  # as the pool's processes: Ray starts several on a host
    return perform_here(module, setup, task)
