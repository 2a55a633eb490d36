"""Accelerate: prepare() passes the loaders through; state by registration or by counted steps."""

import re
from pathlib import Path

import pytest

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

PYTHON = environment("torch")
SCRIPT = "accelerate_loop.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_accelerate_loop_trains_and_evaluates_exactly(
    served: Served, tmp_path: Path, ranks: int
) -> None:
    options = [*example_options(served), "--epochs", 2]
    environ = {"ACCELERATE_USE_CPU": "true"}
    run = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=ranks, environ=environ)
    check_trained(served, run, epochs=2, ranks=ranks)
    check_evaluated(served, run, times=2)
    counted = re.findall(r"^epoch (\d): accuracy \d+/(\d+)$", run.output, re.MULTILINE)
    assert counted == [("0", str(SAMPLES["val"])), ("1", str(SAMPLES["val"]))]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("resumes_by", ["registered", "count"])
def test_a_killed_accelerate_loop_resumes_in_mid_epoch(
    served: Served, tmp_path: Path, ranks: int, resumes_by: str
) -> None:
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 5]
    options += ["--count-steps"] if resumes_by == "count" else []
    environ = {"ACCELERATE_USE_CPU": "true"}
    steps = 12 // ranks
    kill = divmod(steps + 5, steps)
    killed = run_example(
        PYTHON, SCRIPT, *options, folder=tmp_path, ranks=ranks, kill=kill, environ=environ
    )
    resumed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=ranks, environ=environ)
    assert resumed.order()[0] == divmod((steps + 5) // 5 * 5, steps)
    check_resumed(served, killed, resumed, epochs=2, ranks=ranks)
    check_evaluated(served, resumed, times=1)
