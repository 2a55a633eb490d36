"""Offline evaluation gives the figures of that in the loop: after the run and beside it."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from feeder.errors import ConfigError
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.jobs import (
    SAMPLES,
    Run,
    exit_with,
    join_ranks,
    rows_of,
    run,
    running_ranks,
    start,
)
from trainer_client import Batch, FeederLoader
from trainer_client.evaluate import main
from trainer_client.reference.checkpoints import load_checkpoint, save_checkpoint
from trainer_client.train import TrainingResult


@pytest.fixture
def folder(finished: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def figures(rows: list[dict[str, str]]) -> list[tuple[int, ...]]:
    """The epoch, and images correct by raw and averaged weights."""
    names = ("val_top1", "val_top5", "ema_top1", "ema_top5")
    return [
        (int(row["epoch"]), *(round(float(row[name]) * SAMPLES) for name in names)) for row in rows
    ]


def expected(result: TrainingResult) -> list[tuple[int | None, ...]]:
    return [
        (
            each.epoch,
            *(each.val_correct, each.val_correct_top5, each.ema_correct, each.ema_correct_top5),
        )
        for each in result.epochs
    ]


def test_a_run_evaluated_afterwards_has_the_same_figures_by_epoch(
    folder: Path, finished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "all.json"
    assert main([str(folder), "--device", "cpu", "--json", str(path)]) == 0
    rows = rows_of(folder / "evaluations.csv")
    assert figures(rows) == expected(finished.result)
    assert [row["steps"] for row in rows] == ["6", "12", "18"]
    assert capsys.readouterr().out.startswith("epoch-0001.pt: ")
    assert [each["val_images"] for each in json.loads(path.read_text())] == [SAMPLES] * 3


def test_files_are_evaluated_and_added_to_a_table_by_epoch(folder: Path, finished: Run) -> None:
    """Rows of checkpoints that have been removed since stay."""
    table = folder / "some.csv"
    for epoch in (2, 1, 2):
        path = folder / "checkpoints" / f"epoch-000{epoch}.pt"
        assert main([str(path), "--device", "cpu", "--csv", str(table)]) == 0
    assert figures(rows_of(table)) == expected(finished.result)[:2]


def test_a_damaged_checkpoint_of_a_folder_is_skipped_and_ends_with_an_error(
    folder: Path, finished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = folder / "checkpoints" / "epoch-0002.pt"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert main([str(folder), "--device", "cpu"]) == ConfigError.exit_status
    output, error = capsys.readouterr()
    assert f"skipped: {damaged} is no checkpoint, or damaged (" in output
    assert error == "evaluate: error: 1 of 3 checkpoints cannot be read, see above\n"
    assert figures(rows_of(folder / "evaluations.csv")) == expected(finished.result)[::2]


def test_two_ranks_that_follow_a_run_see_every_checkpoint_and_end_with_its_own_summary(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "summary.json").touch()  # of a run above
    folder = tmp_path / "run"  # which is not there yet
    table = folder / "evaluations.csv"
    arguments = [str(folder), "--follow", "--device", "cpu", "--csv", str(table)]

    def wait(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (2, 0):  # so that the rest comes while they follow
            wait_until(lambda: table.exists() or not processes[0].is_alive(), "the first row")

    with running_ranks(exit_with, [(main, arguments)] * 2, tmp_path) as processes:
        result = run(
            node, on_batch=wait, output=str(folder), epochs=3, ema_decay=0.9, val_dataset="val"
        )
        outputs = join_ranks(processes, tmp_path)
    assert figures(rows_of(table)) == expected(result)
    assert outputs[0].count("\n") == 3
    assert outputs[1] == "", "only rank 0 reports"


def test_ctrl_c_ends_following_in_one_line(folder: Path) -> None:
    (folder / "summary.json").unlink()  # as while it runs
    with start(
        "-m", "trainer_client.evaluate", str(folder), "--follow", "--device", "cpu"
    ) as process:
        try:
            wait_until((folder / "evaluations.csv").exists, "the first row")
            process.send_signal(signal.SIGINT)
            error = process.communicate(timeout=DEADLINE_S)[1]
        finally:
            process.kill()
    assert (process.returncode, error) == (130, "evaluate: interrupted\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["cat", "dog", "fox"]}, "class 2, the first that differs, is 'emu' "),
        ({"val_dataset": None}, "is of a job without a validation set: name one with --val-data"),
        ({"model": {}}, "cannot be evaluated: it lacks or has other "),
    ],
)
def test_a_checkpoint_that_cannot_be_evaluated_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    message: str,
) -> None:
    path = folder / "checkpoints" / "epoch-0001.pt"
    content = load_checkpoint(path)
    save_checkpoint(path, content | change)
    assert main([str(path), "--device", "cpu"]) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
