"""The picture of a run's curves, looked at by its colours."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder.installation import install_command
from tests.trainer_client.reference.tracking.reports import (
    STEPS,
    make_outcome,
    make_result,
    make_run,
    make_step,
)
from trainer_client.reference.results import EpochResult, StepReport
from trainer_client.reference.tracking import curves as module
from trainer_client.reference.tracking.curves import Curves
from trainer_client.reference.tracking.files import RunFiles

BLUE, PALE_BLUE, ORANGE = (59, 111, 182), (180, 200, 228), (224, 138, 44)


def report(
    folder: Path, results: Sequence[EpochResult], steps: Sequence[StepReport] = (), **plan: Any
) -> list[str]:
    """Report a run with its end to the two trackers; return what the picture's one reports."""
    lines: list[str] = []
    files, curves = RunFiles(folder), Curves(folder, lines.append)
    for tracker in (files, curves):
        tracker.begin(make_run(**plan))
        for step in steps:
            tracker.log_step(step)
        for result in results:
            tracker.end_epoch(result)
    assert not (folder / "curves.png").exists()
    for tracker in (files, curves):
        tracker.end(make_outcome())
        tracker.close()
    return lines


def count(path: Path, colour: tuple[int, int, int]) -> int:
    """Return how many pixels of a picture have about this colour."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(np.int16)
    return int((np.abs(pixels - colour).max(axis=-1) < 6).sum())


def test_steps_are_a_fine_line_averaged_weights_an_orange_one_and_blanks_are_left_out(
    tmp_path: Path,
) -> None:
    nan, inf = float("nan"), float("inf")
    history = [make_result(e, loss=(2.0, nan, inf)[e], ema_correct=150 * (e + 1)) for e in range(3)]
    numbers = range(1, 3 * STEPS + 1)
    steps = [make_step(step, loss=2.5 - step / 20 if step % 5 else nan) for step in numbers]
    assert report(tmp_path, history, steps) == []
    picture = tmp_path / "curves.png"
    assert count(picture, BLUE) > 1000
    assert count(picture, PALE_BLUE) > 300
    assert count(picture, ORANGE) > 1000


def test_all_epochs_of_a_resumed_run_are_drawn(tmp_path: Path) -> None:
    results = [make_result(0, val_images=None), make_result(1, val_images=None)]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert report(whole, results) == []
    assert report(resumed, results[1:], first_step=STEPS, history=results[:1]) == []
    assert (whole / "curves.png").read_bytes() == (resumed / "curves.png").read_bytes()
    assert count(whole / "curves.png", ORANGE) == 0


def test_steps_are_drawn_at_the_epochs_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(module, "_draw", lambda *drawing: drawn.append(drawing) or b"")
    assert report(tmp_path, [make_result()], [make_step(1), make_step(STEPS)]) == []
    ((epochs, steps, title),) = drawn
    assert (epochs[0]["loss"], steps) == (2.0, [(1 / STEPS, 2.001), (1.0, 2.007)])
    assert title == "resnet50, sgd, 32 images a step on 2 x cpu"


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_its_packages_the_run_ends_well_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert report(tmp_path, [make_result()]) == [
        f"curves.png was not drawn, because {missing} is not installed: {install_command('train')}"
    ]
    assert report(tmp_path, []) == ["no epoch is complete yet, so there is no curves.png"]
    assert not (tmp_path / "curves.png").exists()
