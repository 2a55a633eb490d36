"""The reference job: trains a ResNet on batches from a feeder and says where the time goes.

    python -m trainer_client.train tcp://127.0.0.1:5555 --dataset imagenet --val-dataset val
    torchrun --nproc-per-node 8 -m trainer_client.train …      (--batch-size is that of each rank)

What it does in a step is in ``reference.trainer``. Accuracy is exact: the padding of the last
batch does not count. Ctrl-C ends it with a line and status 130.

With ``--checkpoint FILE`` rank 0 saves model, optimiser and position at every epoch's end and every
``--checkpoint-steps``; with ``--resume``, too, the job goes on from there if the file exists (every
rank reads it), so a job that may be killed is started with the same command each time. It may come
back with another number of ranks and a ``--batch-size`` that leaves the global batch as it was: the
order of the samples goes on all the same. SIGTERM then saves and ends the job with status 0, after
the step or the evaluation that is under way, in all ranks after the same step.

On CPUs that also run the daemon start it with
OMP_WAIT_POLICY=passive: torch's threads otherwise spin on the cores that the workers need.
"""

import sys

from feeder.process.program import run_program


def _run() -> int:
    from feeder.process.shortage import TORCH_BYTES, check_import_memory

    check_import_memory(TORCH_BYTES)
    from trainer_client.reference.train import run_process

    return run_process()


if __name__ == "__main__":
    sys.exit(run_program("train", _run))  # before torch, which takes seconds to import
else:
    from trainer_client.reference.train import (
        EpochResult,
        TrainingOptions,
        TrainingResult,
        main,
        train,
    )

    __all__ = ["EpochResult", "TrainingOptions", "TrainingResult", "main", "train"]
