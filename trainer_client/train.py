"""The reference job: trains a ResNet on batches from a feeder and reports where the time goes.

    python -m trainer_client.train tcp://127.0.0.1:5555 --dataset imagenet --val-dataset val
    torchrun --nproc-per-node 8 -m trainer_client.train …      (--batch-size is that of each rank)

``reference.trainer`` has the training step. Accuracy is exact: the padding of the last batch does
not count. Ctrl-C ends the job with one line and status 130.

With ``--checkpoint FILE`` rank 0 saves model, optimiser and position after every epoch and every
``--checkpoint-steps``. With ``--resume``, too, the job resumes from FILE if it exists (every rank
reads it), so the same command restarts a killed job. The number of ranks and ``--batch-size`` may
change as long as the global batch stays the same: the order of the samples continues. SIGTERM then
saves and ends the job with status 0, after the current step or evaluation, in all ranks after the
same step.

On CPUs that also run the daemon, set OMP_WAIT_POLICY=passive: otherwise torch's threads spin on the
cores that the workers need.
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
