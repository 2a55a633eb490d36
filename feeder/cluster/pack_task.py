"""A task of a packing, as a worker of Ray performs it."""

from typing import Any

from feeder.pack.task_pool import perform_here
from feeder.process.child import use_single_threads


def perform_task(module: str, setup: dict[str, Any], task: dict[str, Any]) -> list[dict[str, Any]]:
    """Perform a task in a worker of Ray; return its messages."""
    use_single_threads()  # as the pool's processes: Ray starts several on a host
    return perform_here(module, setup, task)
