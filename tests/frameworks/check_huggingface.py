"""The Hugging Face Trainer: swap, two ranks, kill and resume in mid-epoch, exact evaluation."""

import re
from pathlib import Path

import pytest

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
    SIDE,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)

PYTHON = environment("torch")
SCRIPT = "huggingface_trainer.py"


def counted(output: str) -> list[int]:
    """Return the number of images of each evaluation, as the Trainer printed it."""
    return [int(number) for number in re.findall(r"'eval_images': '?(\d+)", output)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_trains_and_evaluates_exactly(
    served: Served, tmp_path: Path, ranks: int
) -> None:
    options = [*example_options(served), "--epochs", 2]
    run = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=0 if ranks == 1 else ranks)
    check_trained(served, run, epochs=2, ranks=ranks)
    check_evaluated(served, run, times=2)
    assert counted(run.output) == [SAMPLES["val"]] * 2
    assert run.shapes("train") == {(BATCH, 3, SIDE, SIDE)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_trainer_resumes_in_mid_epoch(served: Served, tmp_path: Path, ranks: int) -> None:
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 4]
    launched = 0 if ranks == 1 else ranks
    last = (1, 10 if ranks == 1 else 4)
    killed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=launched, kill=last)
    resumed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=launched)
    assert resumed.order()[0] in {(1, 2), (1, 4), (1, 8)}, "not from the last checkpoint"
    check_resumed(served, killed, resumed, epochs=2, ranks=ranks)
    check_evaluated(served, resumed, times=1)
    assert counted(resumed.output) == [SAMPLES["val"]]
