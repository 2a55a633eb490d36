"""The reference job: trains an image model on batches from a feeder and reports where time goes.

    python -m trainer_client.train --recipe smoke --output DIR     (needs neither data nor a feeder)
    python -m trainer_client.train tcp://HOST:5555 --recipe imagenet-90 --dataset imagenet \\
        --val-dataset imagenet-val --output DIR --resume auto
    torchrun --nproc-per-node 8 -m trainer_client.train …

``reference.trainer`` has the training step, ``reference.run`` the loop, docs/reference-job.md the
recipes, the files of a run, and how it is resumed. Ctrl-C ends the job with one line and status
130; SIGTERM saves and ends it with status 0, in all ranks after the same step.
"""

import sys

from feeder.process.program import run_program


def _run() -> int:
    import os

    from feeder.process.shortage import TORCH_BYTES, check_import_memory

    # Read when torch is loaded. Where the daemon runs on the same cores, torch's threads would spin
    # on them while they wait, which makes the workers several times as slow.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    check_import_memory(TORCH_BYTES)
    from trainer_client.reference.command import run_process

    return run_process()


if __name__ == "__main__":
    sys.exit(run_program("train", _run))  # before torch, which takes seconds to import
else:
    from trainer_client.reference.command import main
    from trainer_client.reference.options import TrainingOptions
    from trainer_client.reference.recipes.recipe import TrainingRecipe
    from trainer_client.reference.results import EpochResult
    from trainer_client.reference.train import TrainingResult, train

    __all__ = [
        "EpochResult",
        "TrainingOptions",
        "TrainingRecipe",
        "TrainingResult",
        "main",
        "train",
    ]
