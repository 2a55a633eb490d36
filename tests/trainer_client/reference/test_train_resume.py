"""The reference job is killed, stopped and resumed on other ranks, checked sample by sample."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.daemon import free_port
from feeder.errors import ConfigError, ResourceError
from feeder.wire.messages import Hello
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.support.hanging_fs import small_disk
from tests.trainer_client.reference.parallel.ranks import join_ranks, running_ranks
from tests.trainer_client.reference.test_train import (
    SAMPLES,
    command_line,
    make_options,
    run_job,
)
from trainer_client import Accuracy, AccuracyResult, Batch, FeederLoader
from trainer_client.reference.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from trainer_client.reference.stop_vote import Stop, StopVote
from trainer_client.train import TrainingOptions, TrainingRecipe, main, train

GLOBAL_BATCH = 16
STEPS = SAMPLES // GLOBAL_BATCH

Step = tuple[int, int]  # epoch, step


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


def log_steps(fields: dict[str, Any], log: Path) -> None:
    """Train as the rank that the environment names; log the samples of each step."""

    def note(batch: Batch, loader: FeederLoader) -> None:
        step = batch.index // loader.world_size
        print(json.dumps([batch.epoch, step, batch.sample_ids.tolist()]), file=file, flush=True)

    options = TrainingOptions(**fields | {"recipe": TrainingRecipe(**fields["recipe"])})
    with log.open("a") as file:
        train(options, report=partial(print, flush=True), on_batch=note)


class Job:
    """A job of one or two ranks, each of which logs the samples of its steps."""

    def __init__(self, node: FakeNode, folder: Path, name: str, *, ranks: int) -> None:
        fields = {
            **{"endpoint": node.endpoint, "dataset": "train", "device": "cpu"},
            **{"batch_size": GLOBAL_BATCH // ranks, "timeout_s": 60.0},
            **{"checkpoint": str(folder / "job.pt"), "checkpoint_steps": 4, "resume": "auto"},
            "recipe": {"model": "small", "image_size": 32, "epochs": 100_000, "warmup_epochs": 1.0},
        }
        self.logs = [folder / f"{name}-{rank}" for rank in range(ranks)]
        for log in self.logs:
            log.touch()
        self._running = running_ranks(log_steps, [(fields, log) for log in self.logs], folder)

    def __enter__(self) -> "Job":
        self.processes = self._running.__enter__()
        return self

    def __exit__(self, *exit_: Any) -> None:
        self._running.__exit__(*exit_)

    def steps(self) -> list[tuple[Step, list[int]]]:
        """Each step that every rank has begun, with the samples of all ranks in order."""
        logs = [[*map(json.loads, _complete_lines(log))] for log in self.logs]
        steps = []
        for shares in zip(*logs, strict=False):
            assert len({(epoch, step) for epoch, step, _ in shares}) == 1
            epoch, step, _ = shares[0]
            steps.append(((epoch, step), [row for _, _, ids in shares for row in ids]))
        return steps

    def wait_for(self, step: Step) -> None:
        """Wait until every rank has begun a step."""
        wait_until(
            lambda: step in [at for at, _ in self.steps()] or not self.is_alive(), f"{step} begins"
        )
        assert self.is_alive(), [log.with_name("output-0").read_text() for log in self.logs]

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)


def _complete_lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Record:
    """The samples of each step of the job in this process."""

    def __init__(self) -> None:
        self.steps: list[tuple[Step, list[int]]] = []

    def note(self, batch: Batch, loader: FeederLoader) -> None:
        self.steps.append(((batch.epoch, batch.index), batch.sample_ids.tolist()))


def check_steps(node: FakeNode, steps: list[tuple[Step, list[int]]], first: Step) -> None:
    """Compare with the order of the job's first run, from ``first`` on without a gap."""
    recipe = next(message for message in node.received if isinstance(message, Hello)).recipe
    start = first[0] * STEPS + first[1]
    assert steps
    for number, (at, ids) in enumerate(steps, start):
        epoch, step = divmod(number, STEPS)
        assert at == (epoch, step)
        assert ids == recipe.plan_epoch(node.layout, seed=0, epoch=epoch).samples(step).tolist()


def test_killed_and_stopped_jobs_resume_with_the_same_samples_on_other_ranks(
    node: FakeNode, tmp_path: Path
) -> None:
    path = tmp_path / "job.pt"
    node.script = lambda key, messages: [] if key == (1, 3) else messages
    with Job(node, tmp_path, "killed", ranks=1) as killed:
        killed.wait_for((1, 2))
        wait_until(lambda: position(path) == (1, 2), "the checkpoint of the step")
    check_steps(node, killed.steps(), (0, 0))

    node.script = lambda key, messages: messages
    same, options = Record(), {"checkpoint": str(path), "resume": "auto", "epochs": 2}
    lines: list[str] = []
    before = path.read_bytes()
    result = train(make_options(node, **options), report=lines.append, on_batch=same.note)
    check_steps(node, same.steps, (1, 2))
    assert len(same.steps) == STEPS - 2
    assert lines[1] == f"resumed from {path}, step 2 of epoch 1"
    assert (result.epochs[0].epoch, result.epochs[0].steps) == (1, STEPS - 2)
    path.write_bytes(before)

    with Job(node, tmp_path, "stopped", ranks=2) as stopped:
        stopped.wait_for((3, 1))
        stopped.processes[1].terminate()  # SIGTERM, which must stop the other one, too
        outputs = join_ranks(stopped.processes, tmp_path)
    check_steps(node, stopped.steps(), (1, 2))
    epoch, step = stopped.steps()[-1][0]
    after = divmod(epoch * STEPS + step + 1, STEPS)
    assert position(path) == after
    assert f"stopped by SIGTERM, step {after[1]} of epoch {after[0]} comes next" in outputs[0]

    joined = Record()
    options["epochs"] = after[0] + 2
    train(make_options(node, **options), report=lambda line: None, on_batch=joined.note)
    check_steps(node, joined.steps, after)
    assert joined.steps[-1][0] == (after[0] + 1, STEPS - 1)


class OtherRank:
    """Another rank in an all_reduce with MAX."""

    def __init__(self, *values: int) -> None:
        self.values = torch.tensor(values)
        self.is_over = False

    def all_reduce(self, tensor: torch.Tensor, *_: object, **__: object) -> "OtherRank":
        tensor.copy_(torch.maximum(tensor, self.values))
        return self

    def wait(self) -> None:
        self.is_over = True


def test_another_ranks_vote_stops_this_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for vote_of_other in (Stop.NO, Stop.SIGTERM):
        other = OtherRank(vote_of_other)
        monkeypatch.setattr("torch.distributed.all_reduce", other.all_reduce)
        vote = StopVote(object())  # type: ignore[arg-type]
        vote.begin()
        assert not other.is_over, "the vote must not wait before the step is computed"
        assert vote.end() is vote_of_other
        assert other.is_over


def test_ranks_that_read_different_checkpoints_are_an_error(node: FakeNode, tmp_path: Path) -> None:
    """As where the path is on each host's own disk."""
    files = [tmp_path / f"rank-{rank}.pt" for rank in range(2)]
    train(make_options(node, epochs=1, checkpoint=str(files[0])), report=lambda line: None)
    port, processes = free_port(), []
    for rank, path in enumerate(files):
        command = ["-m", "trainer_client.train", node.endpoint, "--dataset", "train"]
        command += ["--model", "small", "--image-size", "32", "--device", "cpu", "--epochs", "3"]
        command += ["--warmup-epochs", "1", "--batch-size", "8", "--checkpoint", str(path)]
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        processes.append(
            run_job(*command, "--resume", environment={**environment, "RANK": str(rank)})
        )
    try:
        errors = [process.communicate(timeout=DEADLINE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    text = "another rank has another: all ranks must read the same checkpoint, from a shared disk"
    assert any(text in each for each in errors)
    assert all(process.returncode for process in processes), errors


def position(path: Path) -> Step | None:
    if not path.exists():
        return None
    state = load_checkpoint(path)["progress"]
    return state["epoch"], state["step"]


def test_a_resumed_job_has_the_losses_of_an_uninterrupted_one(
    node: FakeNode, tmp_path: Path
) -> None:
    options = {"checkpoint": str(tmp_path / "job.pt"), "resume": "auto", "val_dataset": "val"}
    uninterrupted = train(make_options(node, epochs=2), report=lambda line: None)

    class Stopped(Exception):  # noqa: N818 -- no error of the job's
        pass

    def stop(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (1, 3):
            raise Stopped

    options["checkpoint_steps"] = 1
    with pytest.raises(Stopped):
        train(make_options(node, **options), report=lambda line: None, on_batch=stop)
    rest = train(make_options(node, **options), report=lambda line: None)
    assert rest.losses == pytest.approx(uninterrupted.losses[STEPS + 3 :], rel=1e-3)
    assert rest.epochs[0].lr == uninterrupted.epochs[1].lr
    assert rest.epochs[0].val_images == SAMPLES
    done = train(make_options(node, **options), report=lambda line: None)
    assert (done.losses, done.epochs) == ([], []), "a finished job trained again"


def test_an_epoch_is_saved_with_its_evaluation_not_before(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.pt"
    options = {"val_dataset": "val", "checkpoint": str(path), "checkpoint_steps": 1, "epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Accuracy, "result", lambda accuracy: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(make_options(node, **options), report=lambda line: None)
    assert position(path) == (0, STEPS - 1)
    result = train(make_options(node, **options, resume="auto"), report=lambda line: None)
    assert (result.epochs[0].steps, result.epochs[0].val_images) == (1, SAMPLES)


def test_sigterm_in_one_process_saves_and_ends_with_status_0(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.pt"

    def terminate(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (0, 2):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    options = make_options(node, checkpoint=str(path))
    result = train(options, report=lambda line: None, on_batch=terminate)
    assert signal.getsignal(signal.SIGTERM) is before
    assert result.was_stopped
    assert position(path) == (0, 4), "the next step's vote stops the job"
    more = ["--warmup-epochs", "1", "--checkpoint", str(path), "--resume"]
    assert main(command_line(node, *more)) == 0
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
    result = train(
        make_options(node, checkpoint=str(path), val_dataset="val"), report=lambda line: None
    )
    assert result.was_stopped
    assert [epoch.val_images for epoch in result.epochs] == [SAMPLES]
    assert position(path) == (1, 0)


def test_a_checkpoint_of_another_job_is_refused(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    train(make_options(node, epochs=1, checkpoint=str(path)), report=lambda line: None)
    for changes, message in (
        ({"model": "resnet50"}, "is of model 'small', this job trains 'resnet50': pass --model"),
        ({"batch_size": 8}, "global batch of 16 images, this job has 8: pass --global-batch 16"),
        ({"seed": 4}, "of seed 0, this job has 4: pass --seed 0"),
        ({"data": {"hue": 0.1}}, "of data .*, this job has .*: pass the same --data-recipe"),
    ):
        options = make_options(node, checkpoint=str(path), resume="auto", **changes)
        with pytest.raises(ConfigError, match=message):
            train(options, report=lambda line: None)
    content = load_checkpoint(path)
    del content["optimiser"]
    save_checkpoint(path, content)
    with pytest.raises(ConfigError, match="does not fit this job: 'optimiser'"):
        train(make_options(node, checkpoint=str(path), resume="auto"), report=lambda line: None)


def test_resuming_without_a_checkpoint_starts_from_scratch(node: FakeNode, tmp_path: Path) -> None:
    lines: list[str] = []
    options = {"epochs": 1, "checkpoint": str(tmp_path / "none"), "resume": "auto"}
    train(make_options(node, **options), report=lines.append)
    assert lines[1] == f"no checkpoint {tmp_path / 'none'} yet: starting from scratch"
    with pytest.raises(ConfigError, match="--resume needs --checkpoint"):
        train(make_options(node, resume="auto"), report=lines.append)
    with pytest.raises(ConfigError, match="checkpoint_steps must be 1 or more, got 0"):
        train(make_options(node, **options, checkpoint_steps=0), report=lines.append)


def test_a_checkpoint_path_that_cannot_be_written_is_refused_before_training(
    node: FakeNode, tmp_path: Path
) -> None:
    for name in (str(tmp_path / "nowhere" / "job.pt"), str(tmp_path), "", "x" * 300):
        record = Record()
        options = make_options(node, checkpoint=name, resume="auto")
        with pytest.raises(ConfigError, match="checkpoint must name a file in an existing"):
            train(options, report=lambda line: None, on_batch=record.note)
        assert record.steps == []


@pytest.mark.parametrize("option", ["lr", "momentum", "weight_decay"])
def test_an_option_that_the_checkpoint_would_override_is_refused(
    node: FakeNode, tmp_path: Path, option: str
) -> None:
    path = str(tmp_path / "job.pt")
    train(make_options(node, epochs=1, checkpoint=path), report=lambda line: None)
    options = make_options(node, checkpoint=path, resume="auto", **{option: 0.25})
    with pytest.raises(ConfigError, match=f"checkpoint is of {option} .*, this job has 0.25: pass"):
        train(options, report=lambda line: None)


def test_a_failed_write_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(ResourceError, match=r"cannot write the checkpoint .*: make room"):
        save_checkpoint(tmp_path / "nowhere" / "job.pt", {"step": 2})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(ResourceError, match=r"job\.pt \(File too large\): make room"):
            save_checkpoint(path, {"step": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_checkpoint(path)["step"] == 1
    save_checkpoint(path, {"step": torch.ones(3)})
    assert load_checkpoint(path)["step"].tolist() == [1, 1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["job.pt"]


def test_a_full_disk_is_named_with_what_the_checkpoint_needs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        save_checkpoint(disk / "job.pt", {"step": 1})
        with pytest.raises(ResourceError) as caught:
            save_checkpoint(disk / "job.pt", {"step": torch.zeros(100_000)})
        assert str(caught.value) == (
            f"cannot write the checkpoint {disk}/job.pt (no space left on its disk: it needs 0.4 "
            "MB, 0.1 MB are free): make room, or name another --checkpoint or --output"
        )
        assert load_checkpoint(disk / "job.pt")["step"] == 1
        assert [path.name for path in disk.iterdir()] == ["job.pt"]


def test_checkpoints_come_every_checkpoint_steps_and_after_epochs(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Step] = []

    def note(path: Path, content: dict[str, Any]) -> None:
        saved.append((content["progress"]["epoch"], content["progress"]["step"]))

    monkeypatch.setattr("trainer_client.reference.checkpoints.store.save_checkpoint", note)
    options = make_options(node, checkpoint=str(tmp_path / "job.pt"), checkpoint_steps=4)
    train(options, report=lambda line: None)
    assert saved == [(0, 4), (1, 0), (1, 2), (2, 0)]


def test_a_checkpoint_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "job.pt", []
    replace = Path.replace

    def note(source: Path, target: Path) -> Path:
        done.append("renamed")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.readlink(f"/dev/fd/{number}")))
    monkeypatch.setattr(Path, "replace", note)
    save_checkpoint(path, {"step": 1})
    assert done == [f"{path}.unfinished", "renamed", str(tmp_path)]


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "cut", "bit", "method", "folder", "version"]
)
def test_invalid_checkpoints_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "job.pt"
    save_checkpoint(path, {"step": torch.ones(1000)})
    whole = path.read_bytes()
    bit = whole.replace(torch.ones(2).numpy().tobytes(), torch.tensor([1.0, 2]).numpy().tobytes())
    # In the record's entry of zip's directory: the compression method and the folder attribute.
    entry = whole.rindex(b"PK\1\2", 0, whole.rindex(b"archive/data/0"))
    method, folder = bytearray(whole), bytearray(whole)
    method[entry + 10] = 8
    folder[entry + 38] |= 0x10
    contents = {"empty": b"", "garbage": b"x" * 500, "cut": whole[:-700], "bit": bit}
    contents |= {"method": bytes(method), "folder": bytes(folder)}
    path.write_bytes(contents.get(damage, whole))
    if damage == "version":
        torch.save({"version": 99}, path)
    with pytest.raises(ConfigError, match=r"job.pt is no checkpoint.*: name another") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ResourceError, match="cannot read"):
        load_checkpoint(tmp_path / "none")
