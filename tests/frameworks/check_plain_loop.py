"""A plain loop: the swap, exact evaluation by a stock loop, resuming, and torch.compile."""

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

PYTHON = environment("torch", "lightning")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_plain_loop_trains_and_evaluates_exactly(
    served: Served, tmp_path: Path, compiled: bool
) -> None:
    options = [*example_options(served), *(["--compile"] if compiled else [])]
    run = run_example(PYTHON, "plain_loop.py", *options, "--epochs", 2, folder=tmp_path)
    check_trained(served, run, epochs=2)
    check_evaluated(served, run, times=2)
    counted = re.findall(r"^epoch (\d): .* accuracy \d+/(\d+)$", run.output, re.MULTILINE)
    assert counted == [("0", str(SAMPLES["val"])), ("1", str(SAMPLES["val"]))]
    assert run.shapes("train") == {(BATCH, 3, SIDE, SIDE)}
    last = SAMPLES["val"] % BATCH
    assert run.shapes("val") == {(BATCH, 3, SIDE, SIDE), (last, 3, SIDE, SIDE)}


def test_a_killed_plain_loop_resumes_in_mid_epoch(served: Served, tmp_path: Path) -> None:
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 4]
    killed = run_example(PYTHON, "plain_loop.py", *options, folder=tmp_path, kill=(1, 6))
    resumed = run_example(PYTHON, "plain_loop.py", *options, folder=tmp_path)
    assert killed.order()[-1] == (1, 5)
    assert resumed.order()[0] == (1, 4)
    check_resumed(served, killed, resumed, epochs=2)
    check_evaluated(served, resumed, times=1)
