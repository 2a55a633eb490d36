"""Jobs of several ranks: equal to one rank, killed, stopped and resumed on other numbers of ranks.

The samples of every step are compared with the order of the job's first run.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError, PeerError
from feeder.wire.messages import Hello, Request
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.jobs import (
    BATCH,
    SAMPLES,
    STEPS,
    Stopped,
    command_line,
    exit_with,
    is_wanted,
    join_ranks,
    position,
    run,
    running_ranks,
)
from trainer_client import Batch, FeederLoader
from trainer_client.train import TrainingOptions, TrainingRecipe, main, train

EPOCHS = 4
Step = tuple[int, int, list[int]]  # epoch, step, samples


def log_steps(fields: dict[str, Any], log: Path) -> None:
    """Train as the rank that the environment names; log the samples of each step, then losses."""

    def note(batch: Batch, loader: FeederLoader) -> None:
        step = batch.index // loader.world_size
        print(json.dumps([batch.epoch, step, batch.sample_ids.tolist()]), file=file, flush=True)

    options = TrainingOptions(**fields | {"recipe": TrainingRecipe(**fields["recipe"])})
    with log.open("a") as file:
        result = train(options, report=partial(print, flush=True), on_batch=note)
    log.with_suffix(".losses").write_text(json.dumps(result.losses))


class Job:
    """A job of some ranks, each of which logs the samples of its steps."""

    def __init__(
        self, node: FakeNode, folder: Path, name: str, ranks: int, recipe: object, **options: object
    ) -> None:
        fields = {"endpoint": node.endpoint, "dataset": "train", "device": "cpu"}
        fields |= {"timeout_s": 60.0, "recipe": recipe, **options}
        self.folder = folder
        self.logs = [folder / f"{name}-{rank}.log" for rank in range(ranks)]
        for log in self.logs:
            log.touch()
        self._running = running_ranks(log_steps, [(fields, log) for log in self.logs], folder)

    def __enter__(self) -> "Job":
        self.processes = self._running.__enter__()
        return self

    def __exit__(self, *exit_: Any) -> None:
        self._running.__exit__(*exit_)

    def steps(self) -> list[Step]:
        """Each step that every rank has begun, with the samples of all ranks in order."""
        logs = []
        for log in self.logs:
            lines = log.read_text().splitlines(keepends=True)
            logs.append([json.loads(line) for line in lines if line.endswith("\n")])
        steps: list[Step] = []
        for shares in zip(*logs, strict=False):
            assert len({(epoch, step) for epoch, step, _ in shares}) == 1
            epoch, step, _ = shares[0]
            steps.append((epoch, step, [row for _, _, ids in shares for row in ids]))
        return steps

    def wait_for(self, epoch: int, step: int) -> None:
        """Wait until every rank has begun a step."""
        wait_until(
            lambda: (epoch, step) in [each[:2] for each in self.steps()] or not self.is_alive(),
            f"{step} of {epoch} begins",
        )
        assert self.is_alive(), (self.folder / "output-0").read_text()

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)


def train_ranks(
    node: FakeNode, folder: Path, ranks: int, recipe: Mapping[str, object], **options: object
) -> tuple[list[float], list[Step]]:
    """Train in processes of their own; return the losses, equal in all ranks, and the steps."""
    name = f"job-{len([*folder.iterdir()])}"
    with Job(node, folder, name, ranks, recipe, **options) as job:
        join_ranks(job.processes, folder)
    losses = [json.loads(log.with_suffix(".losses").read_text()) for log in job.logs]
    assert losses == [losses[0]] * ranks, "the mean of the ranks"
    return losses[0], job.steps()


def train_here(node: FakeNode, **changes: object) -> tuple[list[float], list[Step]]:
    steps: list[Step] = []

    def note(batch: Batch, loader: FeederLoader) -> None:
        steps.append((batch.epoch, batch.index, batch.sample_ids.tolist()))

    return run(node, on_batch=note, **changes).losses, steps


def check_steps(node: FakeNode, steps: list[Step], first: tuple[int, int]) -> None:
    """Compare with the order of the job's first run, from ``first`` on without a gap."""
    recipe = next(message for message in node.received if isinstance(message, Hello)).recipe
    assert steps
    for number, at in enumerate(steps, first[0] * STEPS + first[1]):
        epoch, step = divmod(number, STEPS)
        ids = recipe.plan_epoch(node.layout, seed=0, epoch=epoch).samples(step).tolist()
        assert at == (epoch, step, ids)


def test_killed_and_stopped_jobs_resume_with_the_same_samples_on_other_ranks(
    node: FakeNode, tmp_path: Path
) -> None:
    path = tmp_path / "job.pt"
    recipe = {"model": "small", "image_size": 32, "epochs": 100_000, "warmup_epochs": 1.0}
    kept: dict[str, Any] = {"checkpoint": str(path), "resume": "auto"}
    node.script = lambda key, messages: [] if key == (1, 3) else messages
    options = {"batch_size": BATCH, "checkpoint_steps": 4, **kept}
    with Job(node, tmp_path, "killed", 1, recipe, **options) as killed:
        killed.wait_for(1, 2)
        wait_until(lambda: position(path) == (1, 2), "the checkpoint of the step")
    check_steps(node, killed.steps(), (0, 0))

    node.script = lambda key, messages: messages
    before = path.read_bytes()
    losses, steps = train_here(node, **kept)
    check_steps(node, steps, (1, 2))
    assert len(steps) == len(losses) == STEPS - 2
    path.write_bytes(before)

    with Job(node, tmp_path, "stopped", 2, recipe, **options | {"batch_size": 8}) as stopped:
        stopped.wait_for(3, 1)
        stopped.processes[1].terminate()  # SIGTERM, which must stop the other one, too
        outputs = join_ranks(stopped.processes, tmp_path)
    check_steps(node, stopped.steps(), (1, 2))
    epoch, step, _ = stopped.steps()[-1]
    after = divmod(epoch * STEPS + step + 1, STEPS)
    assert position(path) == after
    assert f"stopped by SIGTERM, step {after[1]} of epoch {after[0]} comes next" in outputs[0]
    _, joined = train_here(node, epochs=after[0] + 1, **kept)
    check_steps(node, joined, after)
    assert joined[-1][:2] == (after[0], STEPS - 1)


def recipe_keys(**changes: object) -> dict[str, object]:
    keys: dict[str, object] = {"model": "small", "image_size": 32, "epochs": EPOCHS}
    keys |= {"global_batch": BATCH, "lr": 0.02}
    # Rounding differences grow with each step, on 16 images of noise: at 0.05 to 2e-3 on some CPUs.
    keys |= {"warmup_epochs": float(EPOCHS)}
    # Of 97 samples; by default the order is that of each rank's batches.
    return keys | {"data": {"order_batch_size": BATCH}} | changes


def test_two_ranks_with_distributed_batch_norm_equal_one_and_it_goes_on_as_they_do(
    node: FakeNode, tmp_path: Path
) -> None:
    """Also from the checkpoint of two ranks on, up to rounding."""
    kept: dict[str, object] = {"checkpoint": str(tmp_path / "job.pt"), "resume": "auto"}
    alone = {"batch_size": 0, **recipe_keys()}
    losses, steps = train_here(node, **alone)
    halves = recipe_keys(batch_norm_ranks=2, epochs=EPOCHS - 1)
    two, their_steps = train_ranks(node, tmp_path, 2, halves, **kept)
    rest, later = train_here(node, **alone, **kept)
    assert len(losses) == EPOCHS * STEPS >= 20
    assert their_steps + later == steps
    assert two + rest == pytest.approx(losses, abs=1e-4)


def test_three_ranks_resume_with_the_same_losses(node: FakeNode, tmp_path: Path) -> None:
    """Bit by bit, in mid-epoch: of three addends, the order of adding up matters."""
    keys = recipe_keys(batch_norm_ranks=3, global_batch=12, data={}, epochs=1)
    whole, steps = train_ranks(node, tmp_path, 3, keys)
    kept = {"checkpoint": str(tmp_path / "job.pt"), "checkpoint_steps": 4}
    short = keys | {"time_budget": "0.0000001s"}
    stopped, first = train_ranks(node, tmp_path, 3, short, **kept)
    rest, then = train_ranks(node, tmp_path, 3, keys, resume="auto", **kept)
    assert len(rest) == SAMPLES // 12 - 1
    assert stopped + rest == whole
    assert first + then == steps


def test_accumulation_takes_the_samples_of_the_large_batch(node: FakeNode, tmp_path: Path) -> None:
    """Also where an epoch's last micro-batches fill no step, and from a checkpoint on."""
    keys = {"batch_size": 0, **recipe_keys(epochs=2)}
    _, large = train_here(node, **keys)
    keys |= {"accumulation": 4, "checkpoint": str(tmp_path / "job.pt"), "checkpoint_steps": 4}
    seen: list[Step] = []

    def note(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (0, 18):  # within a step
            raise Stopped
        seen.append((batch.epoch, batch.index, batch.sample_ids.tolist()))

    with pytest.raises(Stopped):
        run(node, on_batch=note, **keys)
    assert len(seen) == 18
    del seen[16:]  # those of the step that was not completed
    _, rest = train_here(node, resume="auto", **keys)
    parts = [*seen, *rest]
    assert len(parts) == 4 * len(large)
    for number, (epoch, step, ids) in enumerate(large):
        own = parts[4 * number : 4 * number + 4]
        assert {each[0] for each in own} == {epoch}
        assert [each[1] // 4 for each in own] == [step] * 4
        assert [sample for _, _, part in own for sample in part] == ids


def test_two_ranks_share_an_epoch_and_count_the_evaluation_once(
    node: FakeNode, tmp_path: Path
) -> None:
    arguments = command_line(node, "--val-dataset", "val", "--json", str(tmp_path / "result.json"))
    with running_ranks(exit_with, [(main, arguments)] * 2, tmp_path) as processes:
        first, second = join_ranks(processes, tmp_path)
    assert "small on cpu, 2 x 16 images a step, 3 steps an epoch" in first
    assert "epoch 0: loss" in first
    assert second == "", "only rank 0 reports"
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"][0]["val_images"] == SAMPLES
    assert result["epochs"][0]["images"] == 96
    wanted = [key for m in node.received if isinstance(m, Request) for key in m.want if key[0] == 0]
    assert len([key for key in wanted if key[1] < 6]) == 6 + 6, "training and evaluation, once each"


def test_a_rank_that_loses_another_one_ends_with_one_line(node: FakeNode, tmp_path: Path) -> None:
    node.script = lambda key, messages: [] if key == (0, 4) else messages  # both ranks wait here
    arguments = command_line(node, "--timeout-s", "100")
    with running_ranks(exit_with, [(main, arguments)] * 2, tmp_path) as (first, second):
        node.wait_until(lambda: is_wanted(node, (0, 4)), "the job does not train")
        first.kill()
        second.join(2 * DEADLINE_S)
        error = (tmp_path / "output-1").read_text()
        assert second.exitcode == PeerError.exit_status, error
    assert error.startswith("train: error: rank 1 has lost another rank, which has ended: see that")
    assert error.count("\n") == 1


def test_ranks_that_read_different_checkpoints_are_an_error(node: FakeNode, tmp_path: Path) -> None:
    """As where the path is on each host's own disk."""
    files = [tmp_path / f"rank-{rank}.pt" for rank in range(2)]
    run(node, epochs=1, warmup_epochs=0.0, checkpoint=str(files[0]))
    more = ["--batch-size", "8", "--resume", "--checkpoint"]
    arguments = [(main, [*command_line(node), *more, str(path)]) for path in files]
    with running_ranks(exit_with, arguments, tmp_path) as processes:
        for process in processes:
            process.join(2 * DEADLINE_S)
        assert all(process.exitcode for process in processes)
    outputs = [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]
    text = "another rank has another: all ranks must read the same checkpoint, from a shared disk"
    assert any(text in each for each in outputs), outputs


def test_what_fails_in_rank_0_alone_ends_all_ranks(node: FakeNode, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "job.pt"
    arguments = [(main, command_line(node, "--checkpoint", str(nowhere)))] * 2
    statuses = [ConfigError.exit_status, PeerError.exit_status]
    with running_ranks(exit_with, arguments, tmp_path) as processes:
        first, second = join_ranks(processes, tmp_path, statuses)
    line = f"checkpoint must name a file in an existing folder, got {nowhere}"
    assert line in first
    assert f"rank 0 cannot go on: {line}" in second
