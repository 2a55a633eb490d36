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

BLUE, PALE_BLUE, ORANGE = (59, 111, 182), (180, 200, 228), (224, 138, 44)


def draw(
    folder: Path, history: Sequence[EpochResult], steps: Sequence[tuple[int, float]] = ()
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the pixels of the picture."""
    path = folder / "curves.png"
    title = "resnet50, sgd, 32 images a step on 2 x cpu"
    assert draw_curves(history, steps, path, title, steps_per_epoch=history[0].steps) is None
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def count(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], colour: tuple[int, int, int]
) -> int:
    """Return how many pixels have about this colour."""
    return int((np.abs(pixels.astype(np.int16) - colour).max(axis=-1) < 6).sum())


def test_a_single_epoch_is_drawn_as_dots(tmp_path: Path) -> None:
    pixels = draw(tmp_path, [make_result()])
    assert pixels.shape[1] > 1300
    assert count(pixels, BLUE) > 5 * 50  # a dot in each of five panels
    assert count(pixels, ORANGE) == 0
    assert count(pixels, PALE_BLUE) < 50  # at the edges of the dots


def test_steps_are_a_fine_line_and_averaged_weights_an_orange_one(tmp_path: Path) -> None:
    history = [make_result(epoch, ema_correct=150 * (epoch + 1)) for epoch in range(3)]
    steps = [(step, 2.5 - step / 20) for step in range(1, 3 * STEPS + 1)]
    pixels = draw(tmp_path, history, steps)
    assert count(pixels, PALE_BLUE) > 300
    assert count(pixels, ORANGE) > 1000


def test_many_epochs_and_steps_take_no_larger_picture(tmp_path: Path) -> None:
    history = [make_result(epoch, val_correct=3 * epoch) for epoch in range(300)]
    steps = [(step // 20, 2.0 + step % 7 / 10) for step in range(20, 20 * 300 * STEPS)]
    few = draw(tmp_path, history[:3])
    many = draw(tmp_path, history, steps)
    assert abs(many.shape[0] - few.shape[0]) < 100
    assert many.shape[1] - few.shape[1] < 50


def test_a_run_without_evaluations_has_a_panel_less(tmp_path: Path) -> None:
    blind = [make_result(epoch, val_images=None, val_correct=None) for epoch in range(3)]
    without = draw(tmp_path, blind).shape[0]
    assert 150 < draw(tmp_path, [make_result(epoch) for epoch in range(3)]).shape[0] - without < 500


def test_losses_that_are_no_numbers_leave_the_others_in_the_picture(tmp_path: Path) -> None:
    history = [make_result(0), make_result(1, loss=float("nan")), make_result(2, loss=float("inf"))]
    steps = [(step // 1000, 2.0) for step in range(1000, 3 * STEPS * 1000)]
    blank = [(step, loss if each % 5 else float("nan")) for each, (step, loss) in enumerate(steps)]
    pixels = draw(tmp_path, history, blank)
    assert count(pixels, BLUE) > 1000
    assert count(pixels, PALE_BLUE) > 300


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
    title = "resnet50, sgd, 32 images a step on 2 x cpu"
    same = tmp_path / "same.png"
    both = [make_result(0), make_result(1)]
    per_epoch = make_run().steps_per_epoch
    assert draw_curves(both, [(8, 2.008)], same, title, steps_per_epoch=per_epoch) is None
    assert drawn == same.read_bytes()


def test_a_run_stopped_in_its_first_epoch_reports_that_there_are_no_curves(tmp_path: Path) -> None:
    lines: list[str] = []
    curves = Curves(tmp_path, lines.append)
    curves.begin(make_run())
    curves.end(make_outcome(ending="stopped", epochs=0))
    assert lines == ["no epoch is complete yet, so there is no curves.png"]


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_its_packages_the_run_ends_well_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    path = tmp_path / "curves.png"
    line = draw_curves([make_result()], [], path, "title", steps_per_epoch=8)
    assert line == (
        f"curves.png was not drawn, because {missing} is not installed: {install_command('train')}"
    )
    assert [*tmp_path.iterdir()] == []
