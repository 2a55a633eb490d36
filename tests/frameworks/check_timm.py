"""timm's model, loss, optimizer, scheduler and meters: swap, kill and resume, exact evaluation."""

import re
from pathlib import Path

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
    SIDE,
    Run,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)
from tests.support.sources import REPOSITORY

PYTHON = environment("timm")
RUNNER = REPOSITORY / "tests" / "frameworks" / "scripts" / "with_torchvision.py"
SCRIPT = REPOSITORY / "docs" / "examples" / "timm_train.py"


def run(
    served: Served, folder: Path, *arguments: object, kill: tuple[int, int] | None = None
) -> Run:
    options = [*example_options(served), "--epochs", 2, *arguments]
    return run_example(PYTHON, str(RUNNER), SCRIPT, *options, folder=folder, kill=kill)


def test_timm_trains_and_evaluates_exactly(served: Served, tmp_path: Path) -> None:
    done = run(served, tmp_path)
    check_trained(served, done, epochs=2)
    check_evaluated(served, done, times=2)
    counted = re.findall(r"^epoch (\d): .* % of (\d+)$", done.output, re.MULTILINE)
    assert counted == [("0", str(SAMPLES["val"])), ("1", str(SAMPLES["val"]))]
    assert done.shapes("train") == {(BATCH, 4, SIDE, SIDE)}


def test_killed_it_resumes_in_mid_epoch(served: Served, tmp_path: Path) -> None:
    killed = run(served, tmp_path, "--checkpoint-steps", 4, kill=(1, 6))
    resumed = run(served, tmp_path, "--checkpoint-steps", 4)
    assert resumed.order()[0] == (1, 4)
    check_resumed(served, killed, resumed, epochs=2)
    check_evaluated(served, resumed, times=1)
