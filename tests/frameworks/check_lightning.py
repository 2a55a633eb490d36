"""Lightning: order of epochs, shares of two devices, exact validation, resuming in mid-epoch."""

import re
from pathlib import Path

import pytest

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
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

PYTHON = environment("torch", "lightning")
SCRIPT = "lightning_module.py"
VALIDATION = REPOSITORY / "tests" / "frameworks" / "scripts" / "lightning_validation.py"
SANITY_STEPS = 2  # Lightning's default


def check_counted(run: Run) -> None:
    """The printed accuracy is a number of samples out of all; with padding counted, it is not."""
    (printed,) = re.findall(r"^accuracy (\S+)$", run.output, re.MULTILINE)
    correct = float(printed) * SAMPLES["val"]
    assert correct == pytest.approx(round(correct), abs=1e-3)
    assert 0 < round(correct) < SAMPLES["val"], "proves nothing"


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("loaders", ["module", "plain"])
def test_lightning_trains_from_epoch_0_and_validates_exactly(
    served: Served, tmp_path: Path, devices: int, loaders: str
) -> None:
    options = [*example_options(served), "--epochs", 2, "--devices", devices]
    options += ["--plain-loaders"] if loaders == "plain" else []
    run = run_example(PYTHON, SCRIPT, *options, folder=tmp_path)
    check_trained(served, run, epochs=2, ranks=devices)
    check_evaluated(served, run, times=2, sanity_steps=SANITY_STEPS)
    check_counted(run)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_validation_loss_leaves_out_padding(
    served: Served, tmp_path: Path, devices: int
) -> None:
    options = [*example_options(served), "--devices", devices]
    run = run_example(PYTHON, str(VALIDATION), *options, folder=tmp_path)
    rows = {batch["valid"] for batch in run.batches if batch["world_size"] == 2}
    assert rows == ({0, 3, BATCH} if devices == 2 else set()), "proves nothing"
    ((printed, expected),) = re.findall(r"^losses (\S+) (\S+)$", run.output, re.MULTILINE)
    assert float(printed) == pytest.approx(float(expected), rel=1e-6)  # which refuses NaN


def test_lightning_under_torchrun(served: Served, tmp_path: Path) -> None:
    options = [*example_options(served), "--epochs", 2, "--devices", 2]
    run = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=2)
    check_trained(served, run, epochs=2, ranks=2)
    check_evaluated(served, run, times=2, sanity_steps=SANITY_STEPS)


@pytest.mark.parametrize(
    ("devices", "loaders"),
    [pytest.param(1, "module", id="quick"), (1, "plain"), (2, "module"), (2, "plain")],
)
def test_killed_lightning_resumes_in_mid_epoch(
    served: Served, tmp_path: Path, devices: int, loaders: str
) -> None:
    options = [*example_options(served), "--epochs", 3, "--checkpoint-steps", 5]
    options += ["--devices", devices, *(["--plain-loaders"] if loaders == "plain" else [])]
    steps = 12 // devices
    kill = divmod(steps + 5, steps)  # in epoch 1
    killed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, kill=kill)
    resumed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path)
    assert resumed.order()[0] == divmod((steps + 5) // 5 * 5, steps)
    check_resumed(served, killed, resumed, epochs=3, ranks=devices)
    check_evaluated(served, resumed, times=2)
    check_counted(resumed)
