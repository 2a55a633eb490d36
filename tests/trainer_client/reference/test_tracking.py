"""Where a run reports to: its files, its picture, and the live line in an emulated terminal.

The runs are made up: 3 epochs of 7 steps, with a validation set of 1,009 images.
"""

import fcntl
import io
import itertools
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyte
import pytest
from PIL import Image

from feeder.errors import ConfigError
from feeder.installation import install_command
from tests.trainer_client.reference.jobs import rows_of
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking import curves as curves_module
from trainer_client.reference.tracking.curves import Curves
from trainer_client.reference.tracking.files import EPOCH_COLUMNS, RunFiles, read_losses
from trainer_client.reference.tracking.live_line import LiveLine
from trainer_client.reference.tracking.tracker import make_trackers

EPOCHS, STEPS, IMAGES, VAL_IMAGES = 3, 7, 32, 1009  # the images of a step
RUN = RunInfo(
    model="resnet50",
    optimiser="sgd",
    device="cpu",
    epochs=EPOCHS,
    steps_per_epoch=STEPS,
    global_batch=IMAGES,
    ranks=2,
    classes=10,
    train_samples=227,
    val_samples=VAL_IMAGES,
    seed=5,
    recipe={"lr": 0.1, "schedule": "cosine"},
)
OUTCOME = Outcome(
    ending="finished",
    epochs=EPOCHS,
    seconds=2.058,
    images_per_s=1204.0,
    wait_share=0.02,
    val_top1=300 / VAL_IMAGES,
    best_top1=300 / VAL_IMAGES,
    best_epoch=2,
)


def make_step(global_step: int = 1, **changes: Any) -> StepReport:
    report = StepReport(
        epoch=(global_step - 1) // STEPS,
        step=(global_step - 1) % STEPS + 1,
        steps_per_epoch=STEPS,
        global_step=global_step,
        loss=2.0 + global_step / 1000,
        lr=0.1,
        images_per_s=1204.3,
        wait_share=0.02,
        remaining_s=75.0,
    )
    return replace(report, **changes)


def make_result(epoch: int = 0, **changes: Any) -> EpochResult:
    result = EpochResult(
        epoch=epoch,
        steps=STEPS,
        images=STEPS * IMAGES,
        seconds=0.186,
        images_per_s=1204.30107,
        wait_share=0.02,
        loss=2.0 - epoch / 10,
        lr=0.1,
        val_images=VAL_IMAGES,
        val_correct=100 * (epoch + 1),
        val_correct_top5=300 * (epoch + 1),
        val_s=0.5,
    )
    return replace(result, **changes)


# --- The files of a run's folder ------------------------------------------------------------------


def report(folder: Path, *, first_step: int = 0, last_step: int = EPOCHS * STEPS) -> RunFiles:
    """Report the steps after ``first_step`` up to ``last_step``, as a process that is killed."""
    files = RunFiles(folder)
    history = [make_result(epoch) for epoch in range(first_step // STEPS)]
    files.begin(replace(RUN, first_step=first_step, history=history))
    for step in range(first_step + 1, last_step + 1):
        files.log_step(make_step(step))
        if step % STEPS == 0:
            files.end_epoch(make_result(step // STEPS - 1))
    return files


def test_a_row_for_each_epoch_has_shares_of_the_validation_set_and_the_summary_the_outcome(
    tmp_path: Path,
) -> None:
    files = report(tmp_path)
    files.end_epoch(make_result(1, ema_correct=1009, ema_correct_top5=1009))
    files.end_epoch(make_result(2, val_images=None, val_correct=None, val_s=None))
    files.end(replace(OUTCOME, target_s=12.5, images_per_s=float("nan")))
    files.close()
    assert (tmp_path / "epochs.csv").read_text().splitlines()[:2] == [
        ",".join(EPOCH_COLUMNS),
        "0,7,224,0.186,1204.3,0.02,2,0.1,1009,0.099108,0.297324,,,0.5",
    ]
    rows = rows_of(tmp_path / "epochs.csv")
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [row["ema_top1"] for row in rows] == ["", "1", ""]
    assert [row["val_top1"] for row in rows] == ["0.099108", "0.198216", ""]
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "ending": "finished",
        "epochs": 3,
        "seconds": 2.058,
        "images_per_s": None,
        "wait_share": 0.02,
        "val_top1": 300 / 1009,
        "best_top1": 300 / 1009,
        "best_epoch": 2,
        "target_s": 12.5,
    }


@pytest.mark.parametrize("killed_after", [6, 7, 8, 20])
def test_after_a_kill_and_a_resume_every_epoch_and_step_is_there_once(
    tmp_path: Path, killed_after: int
) -> None:
    report(tmp_path / "whole").close()
    checkpoint = killed_after - killed_after % 4
    killed = report(tmp_path / "resumed", last_step=killed_after)
    report(tmp_path / "resumed", first_step=checkpoint).close()
    killed.close()
    for name in ("epochs.csv", "steps.csv", "run.json"):
        resumed = (tmp_path / "resumed" / name).read_bytes()
        assert resumed == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("damage", ["3,0,3,2.0", "3,0,3,2.0,0.1,99,0.0", "3,a,b,c,d,e,f\n"])
def test_a_row_that_was_cut_short_or_damaged_is_removed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "steps.csv"
    files = report(tmp_path, last_step=2)
    assert read_losses(tmp_path) == [(1, 2.001), (2, 2.002)], "as soon as they are logged"
    files.close()
    with path.open("a") as file:
        file.write(damage)
    assert [step for step, _ in read_losses(tmp_path)] == [1, 2]
    report(tmp_path, first_step=5, last_step=5).close()
    assert len(path.read_text().splitlines()) == 3
    assert read_losses(tmp_path / "none") == []


# --- The picture ----------------------------------------------------------------------------------

BLUE, PALE_BLUE, ORANGE = (59, 111, 182), (180, 200, 228), (224, 138, 44)


def draw(
    folder: Path, results: Sequence[EpochResult], steps: Sequence[StepReport] = (), **plan: Any
) -> list[str]:
    """Report a run with its end to files and picture; return what the picture's tracker reports."""
    lines: list[str] = []
    files, curves = RunFiles(folder), Curves(folder, lines.append)
    for tracker in (files, curves):
        tracker.begin(replace(RUN, **plan))
        for step in steps:
            tracker.log_step(step)
        for result in results:
            tracker.end_epoch(result)
    assert not (folder / "curves.png").exists()
    for tracker in (files, curves):
        tracker.end(OUTCOME)
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
    assert draw(tmp_path, history, steps) == []
    picture = tmp_path / "curves.png"
    assert count(picture, BLUE) > 1000
    assert count(picture, PALE_BLUE) > 300
    assert count(picture, ORANGE) > 1000


def test_all_epochs_of_a_resumed_run_are_drawn(tmp_path: Path) -> None:
    results = [make_result(0, val_images=None), make_result(1, val_images=None)]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert draw(whole, results) == []
    assert draw(resumed, results[1:], first_step=STEPS, history=results[:1]) == []
    assert (whole / "curves.png").read_bytes() == (resumed / "curves.png").read_bytes()
    assert count(whole / "curves.png", ORANGE) == 0


def test_steps_are_drawn_at_the_epochs_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves_module, "_draw", lambda *drawing: drawn.append(drawing) or b"")
    assert draw(tmp_path, [make_result()], [make_step(1), make_step(STEPS)]) == []
    ((epochs, steps, title),) = drawn
    assert (epochs[0]["loss"], steps) == (2.0, [(1 / STEPS, 2.001), (1.0, 2.007)])
    assert title == "resnet50, sgd, 32 images a step on 2 x cpu"


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_its_packages_the_run_ends_well_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert draw(tmp_path, [make_result()]) == [
        f"curves.png was not drawn, because {missing} is not installed: {install_command('train')}"
    ]
    assert draw(tmp_path, []) == ["no epoch is complete yet, so there is no curves.png"]
    assert not (tmp_path / "curves.png").exists()


@pytest.mark.parametrize(
    ("options", "package"),
    [
        ({"tensorboard": True}, "tensorboardX"),
        ({"wandb": "project"}, "wandb"),
        ({"mllog": True}, "mlperf-logging"),
    ],
)
def test_an_option_that_cannot_be_met_is_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    (option,) = options
    for folder, line in (
        (tmp_path, f"--{option} needs {package}: {install_command('train')}"),
        (None, f"--{option} needs --output DIR, the folder for its files"),
    ):
        with pytest.raises(ConfigError) as error:
            make_trackers(folder, report=print, **options)
        assert str(error.value) == line
    with pytest.raises(ConfigError, match="--wandb names a project"):
        make_trackers(tmp_path, report=print, wandb=" ")
    assert [*tmp_path.iterdir()] == []


# --- The live line --------------------------------------------------------------------------------

LINE = "epoch 3/90 120/391 · loss 2.318 · 1,204 images/s · waits 2 % · 3 h 12 min left"


class Terminal:
    """A pseudo-terminal: ``stream`` writes to it, ``lines`` is what it shows."""

    def __init__(self, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.screen: Any = pyte.Screen(columns, 6)
        self._emulator: Any = pyte.ByteStream(self.screen)
        self.written = b""
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 6, columns, 0, 0))

    def lines(self) -> list[str]:
        """Return the lines that are not empty, once all that was written is shown."""
        os.write(self.stream.fileno(), b"\0")  # shows nothing
        while not self.written.endswith(b"\0"):
            self.written += (data := os.read(self._ours, 65_536))
            self._emulator.feed(data)
        self.written = self.written.replace(b"\0", b"")
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def begin(stream: Any) -> LiveLine:
    line = LiveLine(stream, clock=itertools.count().__next__)  # a second for each reading
    line.begin(replace(RUN, epochs=90, steps_per_epoch=391))
    return line


def step(number: int = 120, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        **{"epoch": 3, "step": number, "steps_per_epoch": 391, "loss": 2.318},
        **{"remaining_s": 11_520.0, **changes},
    }
    return make_step(3 * 391 + number, **fields)


def test_the_line_is_rewritten_in_place_with_other_lines_above_it(terminal: Terminal) -> None:
    line = begin(terminal.stream)
    for number in (100, 110, 120):
        line.log_step(step(number))
    assert terminal.lines() == [LINE]
    line.print_line("epoch 2: a line")
    line.print_line("x" * 100)
    assert terminal.lines() == ["epoch 2: a line", "x" * 80, "x" * 20, LINE]
    line.log_step(step(1, remaining_s=5.0))
    short = "epoch 3/90 1/391 · loss 2.318 · 1,204 images/s · waits 2 % · 5.0 s left"
    assert terminal.lines()[-1] == short, "something of the longer one is left"


@pytest.mark.parametrize("columns", [1, 62, 78, 79, 80])
def test_the_line_is_never_wider_than_the_terminal(columns: int) -> None:
    terminal = Terminal(columns)
    line = begin(terminal.stream)
    for number in (1, 120, 391):
        line.log_step(step(number))
    shown = terminal.lines()
    assert len(shown) <= 1
    assert terminal.screen.cursor.x <= columns - 1
    assert (shown == [LINE.replace("120/", "391/")]) == (columns > len(LINE))
    line.close()
    assert terminal.lines() == []
    terminal.close()


@pytest.mark.parametrize("ending", ["epoch", "close"])
def test_what_follows_it_is_on_a_line_of_its_own(terminal: Terminal, ending: str) -> None:
    line = begin(terminal.stream)
    line.log_step(step())
    line.begin_evaluation(3)
    assert terminal.lines() == ["evaluating after epoch 3/90"]
    if ending == "epoch":
        line.end_epoch(make_result(3))
    else:
        line.close()
    assert terminal.lines() == []
    line.close()
    terminal.stream.write("train: error: no feeder")
    terminal.stream.flush()
    assert terminal.lines() == ["train: error: no feeder"]


def test_a_log_file_gets_a_line_each_half_minute() -> None:
    stream = io.StringIO()
    line = begin(stream)
    for number in range(1, 92):
        line.log_step(step(number))
    line.begin_evaluation(3)
    line.end_epoch(make_result(3))
    line.print_line("epoch 3: the result")
    line.close()
    *progress, last = stream.getvalue().splitlines()
    assert [text.split()[2] for text in progress] == ["1/391", "31/391", "61/391", "91/391"]
    assert progress[0].strip() == LINE.replace("120/", "1/").replace("·", "-")
    assert last == "epoch 3: the result"
    assert "\r" not in stream.getvalue()
