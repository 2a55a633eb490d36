"""CPU time of the training client for a batch: all its threads, without normalising.

    handover/loader-cpu    taking a batch that is lent in its slot, with requests ahead: the
                           consumer's calls, the I/O thread, ZeroMQ's own thread

A ``FeederLoader`` in a separate process takes batches over ipc and does nothing with the pixels.
"""

import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from feeder.errors import PeerError
from feeder.process.child import child_environment, python_command
from trainer_client._feed import Delivery, Stage

from ..daemon import DATASET_NAME
from ..report import Result, single

if TYPE_CHECKING:  # torch takes a second to import, in that process only
    import torch

    from trainer_client import Batch

BATCHES: Final = 48
_WARM_UP: Final = 12
_TIMEOUT_S: Final = 120.0


class _IdleStage(Stage["Batch[torch.Tensor]"]):
    """Replaces the device: a batch's buffer is given back when the next batch is taken."""

    def __init__(self) -> None:
        import torch

        from trainer_client import Batch

        super().__init__()
        nothing = torch.empty(0)
        self._batch = Batch(nothing, nothing)

    def load(self, delivery: Delivery, buffer: int) -> "Batch[torch.Tensor]":
        self._free.append(buffer)
        return self._batch


def measure_loader_cost(endpoint: str, batch_size: int, suffix: str) -> Result:
    """Return the row; PeerError when the client fails."""
    command = python_command(f"{__package__}.loader_cost", endpoint, batch_size)
    done = subprocess.run(
        command,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"the client failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return single(f"handover/loader-cpu{suffix}", "µs", float(done.stdout))


def _take(endpoint: str, batch_size: int) -> float:
    """Return the CPU time of a batch in µs."""
    import torch

    from trainer_client import FeederLoader

    torch.set_num_threads(1)
    with FeederLoader(
        endpoint, dataset=DATASET_NAME, batch_size=batch_size, device="cpu", timeout_s=_TIMEOUT_S
    ) as loader:
        loader._feed.stage = _IdleStage()
        batches = (batch for _ in iter(int, 1) for batch in loader)
        for _ in range(_WARM_UP):
            next(batches)
        before_s = _cpu_s()
        for _ in range(BATCHES):
            next(batches)
        return 1e6 * (_cpu_s() - before_s) / BATCHES


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(_take(sys.argv[1], int(sys.argv[2])))
