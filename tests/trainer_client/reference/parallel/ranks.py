"""Runs one function in several ranks, each in a process with torchrun's environment.

The processes are forked from one that has imported torch and DDP, which takes three seconds of CPU
time: about a hundred for all the ranks that the tests start.
"""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import torch.distributed as dist

from bench.daemon import free_port
from tests.support.daemon import DEADLINE_S

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["torch._dynamo", "trainer_client.train"])

Results = dict[str, torch.Tensor]


@contextmanager
def running_ranks(
    function: Callable[..., object],
    arguments: Sequence[tuple[object, ...]],
    folder: Path,
    *,
    ranks_per_host: int | None = None,
) -> Iterator[list[ForkServerProcess]]:
    """Call ``function`` in a process for each rank, with its arguments; at the end they are killed.

    What rank 1 writes to its standard output and standard error is in ``folder`` / "output-1". One
    rank alone gets no environment.
    """
    ranks = len(arguments)
    local = ranks if ranks_per_host is None else ranks_per_host
    shared = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(local)}
    processes = []
    try:
        for rank, own_arguments in enumerate(arguments):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank % local)}
            environment = shared | own if ranks > 1 else {}
            output = folder / f"output-{rank}"
            process = _FORK_SERVER.Process(
                target=_call, args=(function, own_arguments, environment, output)
            )
            process.start()
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def join_ranks(processes: Sequence[ForkServerProcess], folder: Path) -> list[str]:
    """Wait until all ranks have ended with status 0, and return what they wrote."""
    for process in processes:
        process.join(2 * DEADLINE_S)
    outputs = [(folder / f"output-{rank}").read_text() for rank in range(len(processes))]
    assert [process.exitcode for process in processes] == [0] * len(processes), "\n".join(outputs)
    return outputs


def run_ranks(
    function: Callable[[], Results], ranks: int, folder: Path, *, ranks_per_host: int | None = None
) -> list[Results]:
    """Return what each rank's call of ``function`` has returned.

    It is called in a gloo process group. LOCAL_WORLD_SIZE is ``ranks_per_host``.
    """
    files = [folder / f"results-{rank}.pt" for rank in range(ranks)]
    arguments = [(function, file) for file in files]
    with running_ranks(_save_results, arguments, folder, ranks_per_host=ranks_per_host) as started:
        join_ranks(started, folder)
    return [torch.load(file, weights_only=True) for file in files]


def _call(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    environment: dict[str, str],
    output: Path,
) -> None:
    os.environ.update(environment)
    with output.open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    torch.set_num_threads(1)
    function(*arguments)


def _save_results(function: Callable[[], Results], file: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    warnings.simplefilter("error")
    torch.save(function(), file)
    dist.destroy_process_group()
