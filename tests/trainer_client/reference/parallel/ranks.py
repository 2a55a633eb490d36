"""Runs one function in several ranks: processes that are started as torchrun starts them.

python -m tests.trainer_client.reference.parallel.ranks MODULE FUNCTION FILE
"""

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.daemon import free_port
from tests.support.daemon import DEADLINE_S

ROOT = Path(__file__).resolve().parents[4]

Results = dict[str, torch.Tensor]


def run_ranks(
    function: Callable[[], Results], ranks: int, folder: Path, *, ranks_per_host: int | None = None
) -> list[Results]:
    """Return what each rank's call of ``function``, of a test module, has returned.

    It is called in a gloo process group. LOCAL_WORLD_SIZE is ``ranks_per_host``.
    """
    local = ranks if ranks_per_host is None else ranks_per_host
    shared = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(local)}
    files = [folder / f"{function.__name__}-{rank}.pt" for rank in range(ranks)]
    processes = []
    try:
        for rank, file in enumerate(files):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank % local)}
            command = [sys.executable, "-m", __name__, function.__module__, function.__name__, file]
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **shared, **own},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=2 * DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(outputs)
    return [torch.load(file, weights_only=True) for file in files]


def main(module: str, function: str, file: str) -> None:
    """Run the function as one rank, and save what it returns."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    work = getattr(importlib.import_module(module), function)
    warnings.simplefilter("error")
    torch.save(work(), file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
