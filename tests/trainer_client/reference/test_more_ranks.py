"""Two ranks with distributed batch norm train as one rank with the whole batch, and go on as it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.parallel.ranks import join_ranks, running_ranks
from tests.trainer_client.reference.test_train import SAMPLES, make_options
from trainer_client import Batch, FeederLoader
from trainer_client.reference.run import TrainingResult
from trainer_client.train import TrainingOptions, TrainingRecipe, train

torch.set_num_threads(1)  # more threads only slow down models this small
GLOBAL_BATCH = 16
STEPS = SAMPLES // GLOBAL_BATCH
EPOCHS = 4


def train_rank(fields: dict[str, Any], file: Path) -> None:
    """Train as the rank that the environment names; save its losses and steps."""
    steps: list[list[Any]] = []

    def note(batch: Batch, loader: FeederLoader) -> None:
        steps.append([batch.epoch, batch.index // loader.world_size, batch.sample_ids.tolist()])

    options = TrainingOptions(**fields | {"recipe": TrainingRecipe(**fields["recipe"])})
    result = train(options, report=lambda line: None, on_batch=note)
    file.write_text(json.dumps({"losses": result.losses, "steps": steps}))


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


def recipe_keys(**changes: object) -> dict[str, object]:
    keys: dict[str, object] = {"model": "small", "image_size": 32, "epochs": EPOCHS}
    keys |= {"global_batch": GLOBAL_BATCH, "lr": 0.02}
    # Rounding differences grow with each step, on 16 images of noise: at 0.05 to 2e-3 on some CPUs.
    keys |= {"warmup_epochs": float(EPOCHS)}
    # Of 97 samples; by default the order is that of each rank's batches.
    return keys | {"data": {"order_batch_size": GLOBAL_BATCH}} | changes


def train_ranks(
    node: FakeNode,
    folder: Path,
    ranks: int,
    *,
    recipe: Mapping[str, object],
    **options: object,
) -> list[dict[str, Any]]:
    """Train in processes of their own; return each rank's losses and steps."""
    fields = {"endpoint": node.endpoint, "dataset": "train", "device": "cpu", "timeout_s": 60.0}
    fields |= {"recipe": recipe, **options}
    files = [folder / f"{ranks}-{rank}.json" for rank in range(ranks)]
    with running_ranks(train_rank, [(fields, file) for file in files], folder) as processes:
        join_ranks(processes, folder)
    return [json.loads(path.read_text()) for path in files]


def joined_steps(results: list[dict[str, Any]]) -> list[list[Any]]:
    """Return epoch, step and the samples of all ranks in order."""
    return [
        [*shares[0][:2], [sample for _, _, ids in shares for sample in ids]]
        for shares in zip(*(result["steps"] for result in results), strict=True)
    ]


def train_here(node: FakeNode, **changes: object) -> tuple[TrainingResult, list[list[Any]]]:
    steps: list[list[Any]] = []

    def note(batch: Batch, loader: FeederLoader) -> None:
        steps.append([batch.epoch, batch.index, batch.sample_ids.tolist()])

    options = make_options(node, **{"batch_size": 0, **recipe_keys(), **changes})
    return train(options, report=lambda line: None, on_batch=note), steps


def test_two_ranks_with_distributed_batch_norm_equal_one_with_twice_the_batch(
    node: FakeNode, tmp_path: Path
) -> None:
    one, steps = train_here(node)
    two = train_ranks(node, tmp_path, 2, recipe=recipe_keys(batch_norm_ranks=2))
    assert len(one.losses) == EPOCHS * STEPS >= 20
    assert joined_steps(two) == steps
    assert two[0]["losses"] == two[1]["losses"], "the mean of the ranks"
    assert two[0]["losses"] == pytest.approx(one.losses, abs=1e-4)


@pytest.mark.extensive("shows that the test before it can fail")
def test_without_distributed_batch_norm_two_ranks_differ(node: FakeNode, tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    one, steps = train_here(node, epochs=1)
    two = train_ranks(node, tmp_path, 2, recipe=recipe_keys(epochs=1))
    assert joined_steps(two) == steps
    assert two[0]["losses"] != pytest.approx(one.losses, abs=1e-3)


def test_a_job_goes_on_with_another_number_of_ranks_up_to_rounding(
    node: FakeNode, tmp_path: Path
) -> None:
    path = str(tmp_path / "job.pt")
    kept: dict[str, object] = {"checkpoint": path, "resume": "auto"}
    whole, steps = train_here(node)
    two = train_ranks(node, tmp_path, 2, recipe=recipe_keys(batch_norm_ranks=2, epochs=2), **kept)
    rest, later = train_here(node, **kept)
    assert joined_steps(two) + later == steps
    assert two[0]["losses"] + rest.losses == pytest.approx(whole.losses, abs=1e-4)


def test_three_ranks_resume_with_the_same_losses(node: FakeNode, tmp_path: Path) -> None:
    """Bit by bit, in mid-epoch: of three addends, the order of adding up matters."""
    keys = recipe_keys(batch_norm_ranks=3, global_batch=12, data={})
    kept: dict[str, object] = {"checkpoint_steps": 4, "resume": "auto"}
    whole = train_ranks(node, tmp_path, 3, recipe=keys | {"epochs": 1})
    kept["checkpoint"] = str(tmp_path / "job.pt")
    short = keys | {"epochs": 1, "time_budget": "0.0000001s"}
    stopped = train_ranks(node, tmp_path, 3, recipe=short, **kept)
    rest = train_ranks(node, tmp_path, 3, recipe=keys | {"epochs": 1}, **kept)
    assert len(stopped[0]["losses"]) == 1
    assert len(rest[0]["losses"]) == 97 // 12 - 1
    assert stopped[0]["losses"] + rest[0]["losses"] == whole[0]["losses"]
    assert joined_steps(stopped) + joined_steps(rest) == joined_steps(whole)


def test_accumulation_takes_the_samples_of_the_large_batch(node: FakeNode, tmp_path: Path) -> None:
    """Also where an epoch's last micro-batches fill no step, and from a checkpoint on."""
    path = str(tmp_path / "job.pt")
    _, large = train_here(node, epochs=2)
    kept = {"checkpoint": path, "resume": "auto", "checkpoint_steps": 4, "accumulation": 4}
    kept["data"] = {"order_batch_size": GLOBAL_BATCH}

    class Stopped(Exception):  # noqa: N818 -- no error of the job's
        pass

    seen: list[tuple[int, int, list[int]]] = []

    def note(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (0, 18):  # within a step
            raise Stopped
        seen.append((batch.epoch, batch.index, batch.sample_ids.tolist()))

    options = make_options(node, **{"batch_size": 0, **recipe_keys(epochs=2), **kept})
    with pytest.raises(Stopped):
        train(options, report=lambda line: None, on_batch=note)
    assert len(seen) == 18
    del seen[16:]  # those of the step that was not completed
    _, rest = train_here(node, epochs=2, **kept)
    parts = [*seen, *rest]
    assert len(parts) == 4 * len(large)
    for number, (epoch, step, ids) in enumerate(large):
        own = parts[4 * number : 4 * number + 4]
        assert {each[0] for each in own} == {epoch}
        assert [each[1] // 4 for each in own] == [step] * 4
        assert [sample for _, _, part in own for sample in part] == ids
