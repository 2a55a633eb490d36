"""The picture of a run's curves, looked at by its colours."""

import sys
from collections.abc import Sequence
from pathlib import Path

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
from trainer_client.reference.results import EpochResult
from trainer_client.reference.tracking.curves import Curves, draw_curves
from trainer_client.reference.tracking.files import RunFiles

TITLE = "resnet50, sgd, 32 images a step on 2 x cpu"
BLUE, PALE_BLUE, ORANGE = (59, 111, 182), (180, 200, 228), (224, 138, 44)


def draw(
    folder: Path, history: Sequence[EpochResult], steps: Sequence[tuple[int, float]] = ()
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the pixels of the picture."""
    path = folder / "curves.png"
    by_epoch = [(step / history[0].steps, loss) for step, loss in steps]
    assert draw_curves(history, by_epoch, path, TITLE) is None
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def count(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], colour: tuple[int, int, int]
) -> int:
    """Return how many pixels have about this colour."""
    return int((np.abs(pixels.astype(np.int16) - colour).max(axis=-1) < 6).sum())


def test_steps_are_a_fine_line_averaged_weights_an_orange_one_and_blanks_are_left_out(
    tmp_path: Path,
) -> None:
    nan, inf = float("nan"), float("inf")
    history = [make_result(e, loss=(2.0, nan, inf)[e], ema_correct=150 * (e + 1)) for e in range(3)]
    steps = [(step, 2.5 - step / 20 if step % 5 else nan) for step in range(1, 3 * STEPS + 1)]
    pixels = draw(tmp_path, history, steps)
    assert count(pixels, BLUE) > 1000
    assert count(pixels, PALE_BLUE) > 300
    assert count(pixels, ORANGE) > 1000


def test_the_tracker_draws_all_epochs_of_a_resumed_run_when_it_ends(tmp_path: Path) -> None:
    lines: list[str] = []
    files, curves = RunFiles(tmp_path), Curves(tmp_path, lines.append)
    run = make_run(first_step=STEPS, history=[make_result(0)])
    for tracker in (files, curves):
        tracker.begin(run)
        tracker.log_step(make_step(STEPS + 1))
        tracker.end_epoch(make_result(1))
    assert not (tmp_path / "curves.png").exists()
    files.end(make_outcome())
    curves.end(make_outcome())
    files.close()
    assert lines == []
    drawn = (tmp_path / "curves.png").read_bytes()
    same = tmp_path / "same.png"
    assert draw_curves([make_result(0), make_result(1)], [(8 / STEPS, 2.008)], same, TITLE) is None
    assert drawn == same.read_bytes()


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_its_packages_the_run_ends_well_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    path = tmp_path / "curves.png"
    line = draw_curves([make_result()], [], path, TITLE)
    assert line == (
        f"curves.png was not drawn, because {missing} is not installed: {install_command('train')}"
    )
    assert [*tmp_path.iterdir()] == []
