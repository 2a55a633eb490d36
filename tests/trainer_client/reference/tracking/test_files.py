"""The files of a run's folder: complete after kills and resumes, or one line says why not."""

import json
from pathlib import Path

import pytest

from tests.trainer_client.reference.jobs import rows_of
from tests.trainer_client.reference.tracking.reports import (
    EPOCHS,
    STEPS,
    make_outcome,
    make_result,
    make_run,
    make_step,
)
from trainer_client.reference.tracking.files import (
    EPOCH_COLUMNS,
    RunFiles,
    read_losses,
)


def report(folder: Path, *, first_step: int = 0, last_step: int = EPOCHS * STEPS) -> RunFiles:
    """Report the steps after ``first_step`` up to ``last_step``, as a process that is killed."""
    files = RunFiles(folder)
    history = [make_result(epoch) for epoch in range(first_step // STEPS)]
    files.begin(make_run(first_step=first_step, history=history))
    for step in range(first_step + 1, last_step + 1):
        files.log_step(make_step(step))
        if step % STEPS == 0:
            files.end_epoch(make_result(step // STEPS - 1))
    return files


def test_epochs_csv_has_a_row_for_each_epoch_with_shares_of_the_validation_set(
    tmp_path: Path,
) -> None:
    files = report(tmp_path)
    files.end_epoch(make_result(1, ema_correct=1009, ema_correct_top5=1009))
    files.end_epoch(make_result(2, val_images=None, val_correct=None, val_s=None))
    files.close()
    text = (tmp_path / "epochs.csv").read_text()
    assert text.splitlines()[:2] == [
        ",".join(EPOCH_COLUMNS),
        "0,7,224,0.186,1204.3,0.02,2,0.1,1009,0.099108,0.297324,,,0.5",
    ]
    rows = rows_of(tmp_path / "epochs.csv")
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [row["ema_top1"] for row in rows] == ["", "1", ""]
    assert [row["val_top1"] for row in rows] == ["0.099108", "0.198216", ""]


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


@pytest.mark.parametrize(
    "damage", ["3,0,3,2.0", "3,0,3,2.0,0.1,99,0.0", "\0\0\0\n", "3,a,b,c,d,e,f\n"]
)
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


def test_the_summary_has_the_outcome(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.begin(make_run())
    files.end(make_outcome(target_s=12.5, images_per_s=float("nan")))
    files.close()
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
