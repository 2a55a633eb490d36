"""Offline evaluation gives the figures of that in the loop: after the run and beside it."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from bench.daemon import free_port
from feeder.errors import ConfigError
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.test_train import ROOT, SAMPLES, make_options
from trainer_client import Batch, FeederLoader
from trainer_client.evaluate import main
from trainer_client.reference.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from trainer_client.train import TrainingResult, train

torch.set_num_threads(1)  # more threads only slow down models this small
EPOCHS = 3


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


def run(node: FakeNode, folder: Path, **changes: object) -> TrainingResult:
    keys: dict[str, object] = {"epochs": EPOCHS, "ema_decay": 0.9, "keep": 9}
    options = make_options(node, val_dataset="val", output=str(folder), **(keys | changes))
    return train(options, report=lambda line: None)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


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


def evaluate_process(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_client.evaluate", *arguments, "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_evaluated_afterwards_has_the_same_figures_by_epoch(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(node, tmp_path)
    path = tmp_path / "all.json"
    assert main([str(tmp_path), "--device", "cpu", "--json", str(path)]) == 0
    rows = rows_of(tmp_path / "evaluations.csv")
    assert figures(rows) == expected(result)
    assert [row["steps"] for row in rows] == ["6", "12", "18"]
    assert capsys.readouterr().out.startswith("epoch-0001.pt: ")
    assert [each["val_images"] for each in json.loads(path.read_text())] == [SAMPLES] * EPOCHS


def test_files_are_evaluated_and_added_to_a_table_by_epoch(node: FakeNode, tmp_path: Path) -> None:
    """Rows of checkpoints that have been removed since stay."""
    result = run(node, tmp_path, epochs=2)
    table = tmp_path / "some.csv"
    for epoch in (2, 1, 2):
        path = tmp_path / "checkpoints" / f"epoch-000{epoch}.pt"
        assert main([str(path), "--device", "cpu", "--csv", str(table)]) == 0
    assert figures(rows_of(table)) == expected(result)


def test_a_damaged_checkpoint_of_a_folder_is_skipped_and_ends_with_an_error(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(node, tmp_path)
    damaged = tmp_path / "checkpoints" / "epoch-0002.pt"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert main([str(tmp_path), "--device", "cpu"]) == ConfigError.exit_status
    output, error = capsys.readouterr()
    assert f"skipped: {damaged} is no checkpoint (" in output
    assert error == "evaluate: error: 1 of 3 checkpoints cannot be read, see above\n"
    both = expected(result)
    assert figures(rows_of(tmp_path / "evaluations.csv")) == [both[0], both[2]]


def test_only_the_folders_own_summary_ends_following(node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "summary.json").touch()  # of a run above
    folder = tmp_path / "run"
    with evaluate_process(str(folder), "--follow") as process:  # which is not there yet
        try:
            result = run(node, folder, epochs=2)
            output, error = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, error
    assert figures(rows_of(folder / "evaluations.csv")) == expected(result)
    assert output.count("\n") == 2


def test_two_ranks_that_follow_a_run_see_every_checkpoint_and_end_with_it(
    node: FakeNode, tmp_path: Path
) -> None:
    table = tmp_path / "evaluations.csv"
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    first, second = (
        evaluate_process(str(tmp_path), "--follow", environment={**ranks, "RANK": str(rank)})
        for rank in (0, 1)
    )

    def wait(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (2, 0):  # so that the rest comes while they follow
            wait_until(lambda: table.exists() or first.poll() is not None, "the first row")

    keys: dict[str, object] = {"epochs": EPOCHS, "ema_decay": 0.9, "keep": 9}
    options = make_options(node, val_dataset="val", output=str(tmp_path), **keys)
    try:
        result = train(options, report=lambda line: None, on_batch=wait)
        outputs = [process.communicate(timeout=DEADLINE_S) for process in (first, second)]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert figures(rows_of(table)) == expected(result)
    assert outputs[1][0] == "", "only rank 0 reports"


def test_ctrl_c_ends_following_in_one_line(node: FakeNode, tmp_path: Path) -> None:
    run(node, tmp_path, epochs=1)
    (tmp_path / "summary.json").unlink()  # as while it runs
    with evaluate_process(str(tmp_path), "--follow") as process:
        try:
            wait_until((tmp_path / "evaluations.csv").exists, "the first row")
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
    node: FakeNode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    message: str,
) -> None:
    run(node, tmp_path, epochs=1)
    path = tmp_path / "checkpoints" / "epoch-0001.pt"
    content = load_checkpoint(path)
    save_checkpoint(path, content | change)
    capsys.readouterr()
    assert main([str(path), "--device", "cpu"]) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "there are no checkpoints in .: name a run's folder or checkpoint files"),
        (["a.pt", "b.pt", "--follow"], "--follow takes one folder: that of a run"),
        (["nowhere.pt"], "cannot read the checkpoint nowhere.pt (No such file"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--device", "cpu"]) != 0
    error = capsys.readouterr().err
    assert error.startswith(f"evaluate: error: {message}")
    assert error.count("\n") == 1
