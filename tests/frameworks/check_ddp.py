"""DDP under torchrun, two ranks on a CPU: shares, exact evaluation, resuming."""

import re
from pathlib import Path

from tests.frameworks.running import (
    SAMPLES,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)

PYTHON = environment("torch", "lightning")


def test_two_ranks_get_their_shares_and_evaluate_exactly(served: Served, tmp_path: Path) -> None:
    options = [*example_options(served), "--epochs", 2]
    run = run_example(PYTHON, "ddp.py", *options, folder=tmp_path, ranks=2)
    check_trained(served, run, epochs=2, ranks=2)
    check_evaluated(served, run, times=2)
    counted = re.findall(r"^epoch (\d): accuracy \d+/(\d+)$", run.output, re.MULTILINE)
    assert counted == [("0", str(SAMPLES["val"])), ("1", str(SAMPLES["val"]))]


def test_two_killed_ranks_resume_in_mid_epoch(served: Served, tmp_path: Path) -> None:
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 2]
    killed = run_example(PYTHON, "ddp.py", *options, folder=tmp_path, ranks=2, kill=(1, 3))
    resumed = run_example(PYTHON, "ddp.py", *options, folder=tmp_path, ranks=2)
    assert resumed.order()[0] == (1, 2)
    check_resumed(served, killed, resumed, epochs=2, ranks=2)
    check_evaluated(served, resumed, times=1)


def test_two_killed_ranks_resume_as_one_with_twice_the_batch(
    served: Served, tmp_path: Path
) -> None:
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 2]
    killed = run_example(PYTHON, "ddp.py", *options, folder=tmp_path, ranks=2, kill=(1, 3))
    options[options.index("--batch-size") + 1] = 10
    resumed = run_example(PYTHON, "ddp.py", *options, folder=tmp_path, ranks=1)
    planned = [served.planned("train", 1, rank, 2) for rank in range(2)]
    # A step's samples are the same, as one batch instead of two.
    assert {key: {*ids} for key, ids in resumed.steps().items()} == {
        (1, step): {*planned[0][1, step], *planned[1][1, step]} for step in range(2, 6)
    }
    assert {(0, step) for step in range(6)} | {(1, step) for step in range(3)} >= {*killed.order()}
    check_evaluated(served, resumed, times=1)
