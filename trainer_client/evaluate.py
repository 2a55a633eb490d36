"""Evaluates checkpoints of the reference job: of a finished run, or as they appear.

    python -m trainer_client.evaluate DIR                      (all checkpoints of a run's folder)
    python -m trainer_client.evaluate DIR --follow             (beside the training, until it ends)
    torchrun --nproc-per-node 8 -m trainer_client.evaluate CHECKPOINT… --endpoint tcp://HOST:5555

It gives the figures of the evaluation in the loop and writes them by epoch to DIR/evaluations.csv.
"""

import sys

from feeder.process.program import run_program


def _run() -> int:
    import os

    from feeder.process.shortage import TORCH_BYTES, check_import_memory

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in train
    check_import_memory(TORCH_BYTES)
    from trainer_client.reference.evaluate import run_process

    return run_process()


if __name__ == "__main__":
    sys.exit(run_program("evaluate", _run))  # before torch, which takes seconds to import
else:
    from trainer_client.reference.evaluate import Evaluation, main, run_evaluation

    __all__ = ["Evaluation", "main", "run_evaluation"]
