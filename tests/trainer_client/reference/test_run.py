"""Whole runs: what ends them, what they leave, and what a second process resumes."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.jobs import (
    SAMPLES,
    STEPS,
    Run,
    Stopped,
    command_line,
    make_options,
    position,
    rows_of,
    run,
    stop_at,
)
from trainer_client import Accuracy, AccuracyResult, Batch, FeederLoader
from trainer_client.reference import models
from trainer_client.reference.checkpoints import CheckpointFolder, load_checkpoint, save_checkpoint
from trainer_client.reference.efficientnet import EfficientNet, Stage
from trainer_client.reference.recipes.recipe import compose_recipe
from trainer_client.reference.resnet import resnet_small
from trainer_client.reference.tracking.tracker import Tracker
from trainer_client.train import main, train

TINY_BUDGET = "0.0000001s"


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_a_run_leaves_everything_in_its_folder(finished: Run) -> None:
    node, folder, result = finished
    assert {each.name for each in folder.iterdir()} >= {
        *("checkpoints", "curves.png", "epochs.csv", "plan.json", "recipe.toml", "run.json"),
        *("steps.csv", "summary.json", "weights.pt", "weights-averaged.pt"),
    }
    assert not [*folder.glob("**/*.unfinished")]
    summary, last = summary_of(folder), result.epochs[-1]
    assert (summary["ending"], summary["epochs"]) == ("finished", 3)
    assert summary["val_top1"] == last.top1
    assert summary["best_top1"] == max(each.best_top1 or 0 for each in result.epochs)
    assert summary["images_per_s"] > 0
    assert 0 <= summary["wait_share"] <= 1
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["seed"], plan["steps_per_epoch"], plan["global_batch"]) == (5, STEPS, 16)
    assert plan["fingerprint"] == node.content
    assert plan["versions"]["torch"] == torch.__version__
    kept = compose_recipe(str(folder / "recipe.toml"), {})[0]
    assert kept == result.options.recipe
    assert [row["epoch"] for row in rows_of(folder / "epochs.csv")] == ["0", "1", "2"]


def test_the_weights_of_a_run_are_ordinary_ones_of_three_channels(
    finished: Run, tmp_path: Path
) -> None:
    state = torch.load(finished.folder / "weights.pt", weights_only=True)
    assert state["conv1.weight"].shape[1] == 3
    model = resnet_small(3)
    model.load_state_dict(state)
    saved = load_checkpoint(finished.folder / "checkpoints" / "epoch-0003.pt")["model"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    run(finished.node, epochs=0, init=str(finished.folder / "weights.pt"), output=str(tmp_path))
    again = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert all(torch.equal(value, again[name]) for name, value in state.items())


def test_a_folder_with_a_run_is_continued_only_by_resuming_with_a_line_about_more_epochs(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    keys = {"output": str(folder), "ema_decay": 0.9, "seed": 5, "epochs": 4}
    with (
        CheckpointFolder(folder / "checkpoints", keep=1).hold(print),
        pytest.raises(ConfigError, match=f"^another job saves to {folder}: process "),
    ):
        run(finished.node, resume="auto", **keys)
    with pytest.raises(ConfigError, match="has checkpoints of a run: continue it with --resume"):
        run(finished.node, **keys)
    lines: list[str] = []
    result = run(finished.node, lines, resume="auto", **keys)
    newest = folder / "checkpoints" / "epoch-0003.pt"
    assert f"resumed from {newest}, step 0 of epoch 3" in lines
    assert any(line.startswith("epochs is 4 now, 3 in the checkpoint") for line in lines)
    assert [each.epoch for each in result.epochs] == [3]
    # A damaged checkpoint offers the one before, which works.
    newest = folder / "checkpoints" / "epoch-0004.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    arguments = command_line(finished.node, "--output", str(folder), "--epochs", "4", "--seed=5")
    arguments += ["--ema-decay", "0.9", "--warmup-epochs", "1"]
    assert main([*arguments, "--resume", "auto"]) == ConfigError.exit_status
    error = capsys.readouterr().err
    before = folder / "checkpoints" / "epoch-0003.pt"
    assert error.endswith(f"resume from the one before it with --resume {before}\n")
    assert error.count("\n") == 1
    assert main([*arguments, "--resume", str(before)]) == 0
    assert f"resumed from {before}, step 0 of epoch 3" in capsys.readouterr().out
    assert position(newest) == (4, 0)


def test_a_resumed_run_has_every_epoch_once_and_the_same_weights(
    node: FakeNode, tmp_path: Path
) -> None:
    """With all that has state: averaged weights, momentum, dropout's random numbers, mixing."""
    keys = {"epochs": 3, "ema_decay": 0.9, "mixup": 0.2, "cutmix": 1.0, "clip_norm": 1.0}
    keys |= {"accumulation": 2, "batch_size": 8, "checkpoint_steps": 2, "val_dataset": "val"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = run(node, output=str(whole), **keys)
    options = {"output": str(parts), "resume": "auto", **keys}
    for place in ((0, 7), (1, 9), (2, 11)):
        with pytest.raises(Stopped):
            run(node, on_batch=stop_at(*place), **options)
    last = run(node, **options)
    assert last.losses == first.losses[-len(last.losses) :]
    for name in ("weights.pt", "weights-averaged.pt"):
        one, two = (torch.load(each / name, weights_only=True) for each in (whole, parts))
        assert all(torch.equal(value, two[key]) for key, value in one.items()), name
    columns = ("epoch", "loss", "lr", "val_top1", "ema_top1")
    tables = [
        [[row[name] for name in columns] for row in rows_of(each / "epochs.csv")]
        for each in (whole, parts)
    ]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 3
    done = run(node, **options)
    assert (done.losses, done.epochs) == ([], []), "a finished job trained again"


def test_dropout_continues_with_the_same_random_numbers(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (Stage(3, 1, 16, 1, is_expanded=False), Stage(5, 2, 24, 2))
    monkeypatch.setattr(models, "EfficientNet", partial(EfficientNet, stages=stages))
    keys = {"model": "efficientnet-b0", "epochs": 1, "checkpoint_steps": 2}
    whole = run(node, **keys)
    options = {"output": str(tmp_path), "resume": "auto", **keys}
    with pytest.raises(Stopped):
        run(node, on_batch=stop_at(0, 3), **options)
    torch.manual_seed(99)
    rest = run(node, **options)
    assert rest.losses == whole.losses[2:]


def test_trackers_follow_a_run(node: FakeNode) -> None:
    calls: list[tuple[str, Any]] = []

    class Recorder(Tracker):
        def __getattribute__(self, name: str) -> Any:
            return lambda content=None: calls.append((name, content))

    options = make_options(node, val_dataset="val", epochs=3, eval_every_epochs=2)
    train(options, report=lambda line: None, trackers=[Recorder()])
    assert [name for name, _ in calls if name != "log_step"] == [
        *("begin", "begin_epoch", "end_epoch", "begin_epoch", "begin_evaluation", "end_epoch"),
        *("begin_epoch", "begin_evaluation", "end_epoch", "end", "close"),
    ]
    reports = [content for name, content in calls if name == "log_step"]
    assert [report.global_step for report in reports] == [*range(1, 19)]
    assert reports[-1].remaining_s == 0
    begun = calls[0][1]
    assert begun.val_samples == SAMPLES
    assert begun.recipe["lr"] == pytest.approx(0.1 * 16 / 256)


def test_the_target_accuracy_ends_the_run_also_after_a_resume(
    node: FakeNode, tmp_path: Path
) -> None:
    keys = {"val_dataset": "val", "output": str(tmp_path), "epochs": 9}
    lines: list[str] = []
    result = run(node, lines, target_accuracy=0.01, **keys)
    assert len(result.epochs) == 1
    assert any(line.startswith("reached ") and "(target 1.0%)" in line for line in lines)
    first = summary_of(tmp_path)
    assert first["ending"] == "target"
    assert 0 < first["target_s"] <= first["seconds"]
    for target in (0.01, 0.005):  # as after a kill between the checkpoint and the summary
        assert run(node, target_accuracy=target, resume="auto", **keys).epochs == []
        summary = summary_of(tmp_path)
        assert (summary["ending"], summary["target_s"]) == ("target", first["target_s"])
    higher = run(node, target_accuracy=1.0, resume="auto", **{**keys, "epochs": 2})
    assert len(higher.epochs) == 1
    assert higher.outcome is not None
    assert (higher.outcome.ending, higher.outcome.target_s) == ("finished", None)


def test_the_time_budget_ends_the_run_with_its_accuracy(node: FakeNode, tmp_path: Path) -> None:
    keys = {"val_dataset": "val", "output": str(tmp_path), "epochs": 9}
    lines: list[str] = []
    result = run(node, lines, time_budget=TINY_BUDGET, **keys)
    assert result.was_stopped
    assert [each.steps for each in result.epochs] == [1]
    summary = summary_of(tmp_path)
    assert (summary["ending"], summary["epochs"]) == ("time-budget", 0)
    assert summary["val_top1"] == result.epochs[0].top1
    assert f"stopped by the time budget, step 1 of epoch 0 comes next; saved to {tmp_path}" in lines
    again = run(node, time_budget=TINY_BUDGET, resume="auto", **keys)
    assert (again.losses, again.was_stopped) == ([], True), "a used-up budget takes no step"
    more = run(node, resume="auto", **{**keys, "epochs": 1})
    assert [each.steps for each in more.epochs] == [STEPS - 1]


def test_a_loss_that_is_not_finite_ends_the_run(node: FakeNode, tmp_path: Path) -> None:
    message = r"the loss is (nan|inf) in epoch 0: use a lower --lr, "
    with pytest.raises(ConfigError, match=message) as caught:
        run(node, output=str(tmp_path), lr=1e18, warmup_epochs=0.0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "summary.json").exists()


def test_checkpoints_come_every_checkpoint_steps_and_after_epochs(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[int, int]] = []

    def note(path: Path, content: dict[str, Any]) -> None:
        saved.append((content["progress"]["epoch"], content["progress"]["step"]))

    monkeypatch.setattr("trainer_client.reference.checkpoints.save_checkpoint", note)
    run(node, checkpoint=str(tmp_path / "job.pt"), checkpoint_steps=4)
    assert saved == [(0, 4), (1, 0), (1, 2), (2, 0)]


def test_an_epoch_is_saved_with_its_evaluation_not_before(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.pt"
    options = {"val_dataset": "val", "checkpoint": str(path), "checkpoint_steps": 1, "epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Accuracy, "result", lambda accuracy: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(node, **options)
    assert position(path) == (0, STEPS - 1)
    result = run(node, resume="auto", **options)
    assert (result.epochs[0].steps, result.epochs[0].val_images) == (1, SAMPLES)


def test_sigterm_saves_and_ends_with_status_0(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.pt"

    def terminate(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (0, 2):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    result = run(node, on_batch=terminate, checkpoint=str(path))
    assert signal.getsignal(signal.SIGTERM) is before
    assert result.was_stopped
    assert position(path) == (0, 4), "the next step's vote stops the job"
    # --resume without a value may stand before the endpoint.
    arguments = ["--checkpoint", str(path), "--resume", *command_line(node)]
    assert main([*arguments, "--warmup-epochs", "1"]) == 0
    assert f"resumed from {path}, step " in capsys.readouterr().out
    assert position(path) == (1, 0)


def test_sigterm_during_an_evaluation_stops_after_it(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, result_of = tmp_path / "job.pt", Accuracy.result

    def terminate(accuracy: Accuracy) -> AccuracyResult:
        signal.raise_signal(signal.SIGTERM)
        return result_of(accuracy)

    monkeypatch.setattr(Accuracy, "result", terminate)
    result = run(node, checkpoint=str(path), val_dataset="val")
    assert result.was_stopped
    assert [epoch.val_images for epoch in result.epochs] == [SAMPLES]
    assert position(path) == (1, 0)


def test_a_checkpoint_of_another_job_is_refused(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    keys = {"checkpoint": str(path), "resume": "auto", "epochs": 0}
    lines: list[str] = []
    run(node, lines, **keys)
    assert lines[1] == f"no checkpoint {path} yet: starting from scratch"
    run(node, **{**keys, "epochs": 1})
    for changes, message in (
        ({"model": "resnet50"}, "of model small, this job has resnet50: pass --model small"),
        ({"batch_size": 8}, "of global batch 16, this job has 8: pass --global-batch 16"),
        ({"seed": 4}, "of seed 0, this job has 4: pass --seed 0"),
        ({"lr": 0.25}, "of lr 0.0, this job has 0.25: pass --lr 0.0"),
        ({"momentum": 0.25}, "of momentum 0.9, this job has 0.25: pass --momentum 0.9"),
        ({"data": {"hue": 0.1}}, "of data .*, this job has .*: pass the same --data-recipe"),
    ):
        with pytest.raises(ConfigError, match=f"^the checkpoint is {message}"):
            run(node, **keys, **changes)
    content = load_checkpoint(path)
    del content["optimiser"]
    save_checkpoint(path, content)
    with pytest.raises(ConfigError, match="does not fit this job: 'optimiser'"):
        run(node, **keys)


def test_a_checkpoint_path_that_cannot_be_written_is_refused_before_training(
    node: FakeNode, tmp_path: Path
) -> None:
    for name in (str(tmp_path / "nowhere" / "job.pt"), str(tmp_path), "", "x" * 300):
        with pytest.raises(ConfigError, match="checkpoint must name a file in an existing"):
            run(node, on_batch=stop_at(0, 0), checkpoint=name, resume="auto")
