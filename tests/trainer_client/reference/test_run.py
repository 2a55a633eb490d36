"""Whole runs in a folder: what ends them, what they leave, and what a second process finds."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.test_train import SAMPLES, command_line, make_options
from trainer_client import Batch, FeederLoader
from trainer_client.reference.checkpoints.checkpoint import load_checkpoint
from trainer_client.reference.checkpoints.store import CheckpointFolder
from trainer_client.reference.recipes.recipe_file import EffectiveRecipe
from trainer_client.reference.resnet import resnet_small
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.tracker import Tracker
from trainer_client.train import TrainingResult, main, train

torch.set_num_threads(1)  # more threads only slow down models this small
STEPS = SAMPLES // 16


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


class Stopped(Exception):  # noqa: N818 -- no error of the job's
    """Stands for a kill."""


def stop_at(epoch: int, index: int) -> Callable[[Batch, FeederLoader], None]:
    def stop(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (epoch, index):
            raise Stopped

    return stop


def run(node: FakeNode, folder: Path, lines: list[str], **changes: Any) -> TrainingResult:
    options = make_options(node, val_dataset="val", output=str(folder), **changes)
    return train(options, report=lines.append)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_folder_of_a_job_that_runs_is_left_alone(node: FakeNode, tmp_path: Path) -> None:
    with (
        CheckpointFolder(tmp_path / "checkpoints", keep=1).hold(print),
        pytest.raises(ConfigError, match=f"^another job saves to {tmp_path}: process "),
    ):
        run(node, tmp_path, [], epochs=1, resume="auto")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert run(node, tmp_path, [], epochs=1).outcome is not None


def test_a_run_leaves_everything_in_its_folder(node: FakeNode, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run(node, folder, [], epochs=3, ema_decay=0.9, seed=5)
    assert {each.name for each in folder.iterdir()} >= {
        *("checkpoints", "curves.png", "epochs.csv", "plan.json", "recipe.toml", "run.json"),
        *("steps.csv", "summary.json", "weights.pt", "weights-averaged.pt"),
    }
    assert not [*folder.glob("**/*.unfinished")]
    summary = json.loads((folder / "summary.json").read_text())
    last = result.epochs[-1]
    assert summary["ending"] == "finished"
    assert summary["epochs"] == 3
    assert summary["val_top1"] == last.top1
    assert summary["best_top1"] == max(each.best_top1 or 0 for each in result.epochs)
    assert summary["images_per_s"] > 0
    assert 0 <= summary["wait_share"] <= 1
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["seed"], plan["steps_per_epoch"], plan["global_batch"]) == (5, STEPS, 16)
    assert plan["fingerprint"] == node.content
    assert plan["versions"]["torch"] == torch.__version__
    kept = EffectiveRecipe.make(str(folder / "recipe.toml"), {}).recipe
    assert kept == result.options.recipe
    assert [row["epoch"] for row in rows_of(folder / "epochs.csv")] == ["0", "1", "2"]


def test_the_weights_of_a_run_are_ordinary_ones_of_three_channels(
    node: FakeNode, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(node, folder, [], epochs=1)
    state = torch.load(folder / "weights.pt", weights_only=True)
    assert state["conv1.weight"].shape[1] == 3
    model = resnet_small(3)
    model.load_state_dict(state)
    saved = load_checkpoint(folder / "checkpoints" / "epoch-0001.pt")["model"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    options = make_options(node, epochs=0, init=str(folder / "weights.pt"), output=str(tmp_path))
    train(options, report=lambda line: None)
    again = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert all(torch.equal(value, again[name]) for name, value in state.items())


def test_a_resumed_run_has_every_epoch_once_and_the_same_weights(
    node: FakeNode, tmp_path: Path
) -> None:
    """With all that has state: averaged weights, momentum, dropout's random numbers, mixing."""
    keys = {"epochs": 3, "ema_decay": 0.9, "mixup": 0.2, "cutmix": 1.0, "clip_norm": 1.0}
    keys |= {"accumulation": 2, "batch_size": 8, "checkpoint_steps": 2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = run(node, whole, [], **keys)
    options = make_options(node, val_dataset="val", output=str(parts), resume="auto", **keys)
    losses = []
    for place in ((0, 7), (1, 1), (1, 9), (2, 11)):
        with pytest.raises(Stopped):
            train(options, report=lambda line: None, on_batch=stop_at(*place))
    last = train(options, report=lambda line: None)
    losses = last.losses
    assert losses == first.losses[-len(losses) :]
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


def test_dropout_continues_with_the_same_random_numbers(node: FakeNode, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": "efficientnet-b0", "epochs": 1, "checkpoint_steps": 2}
    whole = train(make_options(node, **keys), report=lambda line: None)
    options = make_options(node, output=str(tmp_path), resume="auto", **keys)
    with pytest.raises(Stopped):
        train(options, report=lambda line: None, on_batch=stop_at(0, 3))
    torch.manual_seed(99)
    rest = train(options, report=lambda line: None)
    assert rest.losses == whole.losses[2:]


def test_a_folder_with_a_run_is_not_overwritten(node: FakeNode, tmp_path: Path) -> None:
    run(node, tmp_path, [], epochs=1)
    with pytest.raises(ConfigError, match="has checkpoints of a run: continue it with --resume"):
        run(node, tmp_path, [], epochs=2)
    lines: list[str] = []
    result = run(node, tmp_path, lines, epochs=2, resume="auto")
    assert f"resumed from {tmp_path / 'checkpoints' / 'epoch-0001.pt'}, step 0 of epoch 1" in lines
    assert [each.epoch for each in result.epochs] == [1]


def test_a_damaged_checkpoint_offers_the_one_before_which_works(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path), "--epochs", "3"]
    assert main([*command_line(node), *output]) == 0
    newest = tmp_path / "checkpoints" / "epoch-0003.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    capsys.readouterr()
    assert main([*command_line(node), *output, "--resume", "auto"]) == ConfigError.exit_status
    error = capsys.readouterr().err
    before = tmp_path / "checkpoints" / "epoch-0002.pt"
    assert error.endswith(f"resume from the one before it with --resume {before}\n")
    assert error.count("\n") == 1
    assert main([*command_line(node), *output, "--resume", str(before)]) == 0
    assert f"resumed from {before}, step 0 of epoch 2" in capsys.readouterr().out
    assert load_checkpoint(newest)["progress"]["epoch"] == 3


class Recorder(Tracker):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reports: list[StepReport] = []
        self.run: RunInfo | None = None

    def begin(self, run: RunInfo) -> None:
        self.run = run
        self.calls.append("begin")

    def begin_epoch(self, epoch: int) -> None:
        self.calls.append(f"epoch {epoch}")

    def log_step(self, report: StepReport) -> None:
        self.reports.append(report)

    def begin_evaluation(self, epoch: int) -> None:
        self.calls.append("evaluation")

    def end_epoch(self, result: EpochResult) -> None:
        self.calls.append("result")

    def end(self, outcome: Outcome) -> None:
        self.calls.append(outcome.ending)

    def close(self) -> None:
        self.calls.append("close")


def test_trackers_follow_a_run(node: FakeNode) -> None:
    recorder = Recorder()
    options = make_options(node, val_dataset="val", epochs=3, eval_every_epochs=2)
    train(options, report=lambda line: None, trackers=[recorder])
    assert recorder.calls == [
        *("begin", "epoch 0", "result", "epoch 1", "evaluation", "result"),
        *("epoch 2", "evaluation", "result", "finished", "close"),
    ]
    assert [report.global_step for report in recorder.reports] == [*range(1, 19)]
    assert recorder.reports[-1].remaining_s == 0
    assert recorder.run is not None
    assert recorder.run.val_samples == SAMPLES
    assert recorder.run.recipe["lr"] == pytest.approx(0.1 * 16 / 256)


def test_the_target_accuracy_ends_the_run(node: FakeNode, tmp_path: Path) -> None:
    lines: list[str] = []
    result = run(node, tmp_path, lines, epochs=9, target_accuracy=0.01)
    assert len(result.epochs) == 1
    assert any(line.startswith("reached ") and "(target 1.0%)" in line for line in lines)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ending"] == "target"
    assert 0 < summary["target_s"] <= summary["seconds"]


def test_a_run_that_reached_its_target_has_ended_also_after_a_resume(
    node: FakeNode, tmp_path: Path
) -> None:
    """As after a kill between the checkpoint and the summary."""
    run(node, tmp_path, [], epochs=9, target_accuracy=0.01)
    first = json.loads((tmp_path / "summary.json").read_text())
    again = run(node, tmp_path, [], epochs=9, target_accuracy=0.01, resume="auto")
    assert again.epochs == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ending"], summary["target_s"]) == ("target", first["target_s"])
    lower = run(node, tmp_path, [], epochs=9, target_accuracy=0.005, resume="auto")
    assert lower.epochs == []
    higher = run(node, tmp_path, [], epochs=2, target_accuracy=1.0, resume="auto")
    assert len(higher.epochs) == 1
    assert higher.outcome is not None
    assert (higher.outcome.ending, higher.outcome.target_s) == ("finished", None)


def test_the_target_counts_where_the_time_is_up_too(node: FakeNode, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"batch_size": 96, "target_accuracy": 0.01}  # one step an epoch
    result = run(node, tmp_path, [], epochs=9, time_budget="0.0000001s", **keys)
    assert result.outcome is not None
    assert result.outcome.ending == "target"


def test_a_used_up_time_budget_takes_no_further_step(node: FakeNode, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"epochs": 9, "time_budget": "0.0000001s"}
    run(node, tmp_path, [], **keys)
    again = run(node, tmp_path, [], resume="auto", **keys)
    assert (again.losses, again.was_stopped) == ([], True)


def test_a_loss_that_is_not_finite_ends_the_run(node: FakeNode, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the loss is (nan|inf) in epoch 0: use a lower --lr, "
    ) as (caught):
        run(node, tmp_path, [], lr=1e18, warmup_epochs=0.0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "summary.json").exists()


def test_weights_of_a_fourth_channel_are_kept(node: FakeNode, tmp_path: Path) -> None:
    state = resnet_small(3).state_dict()
    state["conv1.weight"][:, 3] = 1.0
    torch.save(state, tmp_path / "four.pt")
    run(node, tmp_path / "run", [], epochs=1, init=str(tmp_path / "four.pt"))
    kept = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    assert kept["conv1.weight"].shape[1] == 4


def test_more_epochs_change_the_schedule_with_a_line(node: FakeNode, tmp_path: Path) -> None:
    run(node, tmp_path, [], epochs=1)
    lines: list[str] = []
    run(node, tmp_path, lines, epochs=2, resume="auto")
    assert any(line.startswith("epochs is 2 now, 1 in the checkpoint") for line in lines)


def test_a_micro_batch_that_batch_norm_cannot_take_is_one_line(node: FakeNode) -> None:
    options = make_options(node, batch_size=1, image_size=8)
    with pytest.raises(ConfigError, match="batch norm needs more than one value of a channel"):
        train(options, report=lambda line: None)


def test_the_time_budget_ends_the_run_with_its_accuracy(node: FakeNode, tmp_path: Path) -> None:
    lines: list[str] = []
    result = run(node, tmp_path, lines, epochs=9, time_budget="0.0000001s")
    assert result.was_stopped
    assert [each.steps for each in result.epochs] == [1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ending"], summary["epochs"]) == ("time-budget", 0)
    assert summary["val_top1"] == result.epochs[0].top1
    assert f"stopped by the time budget, step 1 of epoch 0 comes next; saved to {tmp_path}" in lines
    more = run(node, tmp_path, lines, epochs=1, resume="auto")
    assert [each.steps for each in more.epochs] == [STEPS - 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoint": None}, "there is no endpoint: pass one"),
        ({"dataset": ""}, "there is no dataset: pass --dataset NAME"),
        ({"resume": "auto"}, "--resume needs --checkpoint FILE or --output DIR"),
        ({"checkpoint": "x", "output": "y"}, "--output DIR keeps checkpoints in DIR/checkpoints"),
        ({"target_accuracy": 0.7}, "target accuracy 0.7 needs a validation set: pass --val-data"),
        (
            {"resume": "nowhere.pt"},
            "there is no checkpoint nowhere.pt: name a file, or pass --resu",
        ),
        ({"keep": 0}, "keep must be 1 or more, got 0"),
        ({"batch_norm_ranks": 3}, "batch_norm_ranks 3 does not divide the 1 rank"),
        ({"global_batch": 1024, "batch_size": 0}, "fewer than a step of 1,024|fewer than the"),
        ({"accumulation": 3, "global_batch": 32}, "accumulation 3 on 1 rank does not divide the"),
        ({"recompute": ["stage?"]}, "stage"),
        ({"group_width": 16}, "group_width is an option of the EfficientNets"),
        ({"endpoint": None, "recipe_name": "smoke"}, "--recipe smoke needs --output DIR"),
        ({"tensorboard": True}, "--tensorboard needs --output DIR"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    node: FakeNode, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        train(make_options(node, **changes), report=lambda line: None)
    assert "\n" not in str(caught.value)


def test_show_prints_the_recipe_in_effect_and_needs_no_endpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--recipe", "imagenet-90", "--weight-decay", "1e-4", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "(command line)\nweight_decay = 0.0001" in shown
    assert "(imagenet-90)\nglobal_batch = 1024" in shown


def test_resume_without_a_value_may_stand_before_the_endpoint(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--output", str(tmp_path), "--resume", *command_line(node)]
    assert main(arguments) == 0
    assert f"no checkpoint {tmp_path} yet: starting from scratch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--wieght-decay 1", "there is no option --wieght-decay; nearest is --weight-decay"),
        ("--banana 1", "there is no option --banana (--help lists the options)"),
        ("--epochs=3 --sead=4", "there is no option --sead; nearest is --seed"),
        ("tcp://127.0.0.1:1 again", "'again' is one argument too many (--help lists the options)"),
        ("--keep many", "argument --keep: invalid int value: 'many' (--help lists the options)"),
        ("--lr", "argument --lr: expected one argument (--help lists the options)"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == ConfigError.exit_status
    assert capsys.readouterr().err == f"train: error: {message}\n"
