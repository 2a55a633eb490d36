"""Each example trains, evaluates exactly, is killed and resumes in mid-epoch; Lightning apart.

Also what holds for one of them: fewer ranks after a kill, no torch where arrays will do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
    SCRIPTS,
    SIDE,
    Run,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)
from tests.support.sources import REPOSITORY

Positions = set[tuple[int, int]]
TORCH = ("torch", "lightning")
ACCURACY = r"^epoch (\d): .*accuracy \d+/(\d+)$"


@dataclass(frozen=True, kw_only=True)
class Example:
    """How an example is run, and what it delivers and prints."""

    script: str
    environments: tuple[str, ...]  # the first that is made
    ranks: int = 1
    is_launched: bool = False  # by torchrun
    options: tuple[object, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    counted: str = ACCURACY  # the epoch and the images of an evaluation, as printed
    shape: tuple[int, ...] | None = (BATCH, 3, SIDE, SIDE)  # of the training batches
    checkpoint_steps: int = 4
    kill: tuple[int, int] | None = None  # (epoch, step) of training at which it dies
    first: Positions = field(default_factory=set)  # where it may resume

    def run(
        self, served: Served, folder: Path, *more: object, kill: tuple[int, int] | None = None
    ) -> Run:
        script, arguments = self.script, [*example_options(served), "--epochs", 2, *more]
        if self.environments == ("timm",):
            arguments = [REPOSITORY / "docs" / "examples" / script, *arguments]
            script = str(SCRIPTS / "with_torchvision.py")
        return run_example(
            environment(*self.environments),
            script,
            *arguments,
            *self.options,
            folder=folder,
            ranks=self.ranks if self.is_launched else 0,
            kill=kill,
            environ=self.environ,
        )


def accelerate(ranks: int, first: tuple[int, int], *options: object) -> Example:
    return Example(
        script="accelerate_loop.py",
        environments=("torch",),
        ranks=ranks,
        is_launched=True,
        options=options,
        environ={"ACCELERATE_USE_CPU": "true"},
        checkpoint_steps=5,
        shape=None,
        kill=(1, 5),
        first={first},
    )


def huggingface(ranks: int, kill: tuple[int, int]) -> Example:
    return Example(
        script="huggingface_trainer.py",
        environments=("torch",),
        ranks=ranks,
        is_launched=ranks > 1,
        counted=r"()'eval_images': '?(\d+)",
        kill=kill,
        first={(1, 2), (1, 4), (1, 8)},
    )


def arrays(framework: str) -> Example:
    return Example(
        script=f"{framework}_train.py",
        environments=(framework,),
        shape=(BATCH, SIDE, SIDE, 3),
        kill=(1, 10),
        first={(1, 4), (1, 8)},
    )


EXAMPLES = {
    "plain": Example(script="plain_loop.py", environments=TORCH, kill=(1, 6), first={(1, 4)}),
    "compiled": Example(script="plain_loop.py", environments=TORCH, options=("--compile",)),
    "ddp": Example(
        script="ddp.py",
        environments=TORCH,
        ranks=2,
        is_launched=True,
        checkpoint_steps=2,
        shape=None,
        kill=(1, 3),
        first={(1, 2)},
    ),
    "accelerate-1": accelerate(1, (1, 3)),
    "accelerate-2": accelerate(2, (1, 4)),
    "accelerate-counted-1": accelerate(1, (1, 3), "--count-steps"),
    "accelerate-counted-2": accelerate(2, (1, 4), "--count-steps"),
    "huggingface-1": huggingface(1, (1, 10)),
    "huggingface-2": huggingface(2, (1, 4)),
    "timm": Example(
        script="timm_train.py",
        environments=("timm",),
        counted=r"^epoch (\d): .* % of (\d+)$",
        shape=(BATCH, 4, SIDE, SIDE),
        kill=(1, 6),
        first={(1, 4)},
    ),
    "jax": arrays("jax"),
    "tensorflow": arrays("tensorflow"),
}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "counted" not in name])
def test_it_trains_and_evaluates_exactly(served: Served, tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    run = example.run(served, tmp_path)
    check_trained(served, run, epochs=2, ranks=example.ranks)
    check_evaluated(served, run, times=2)
    counted = re.findall(example.counted, run.output, re.MULTILINE)
    assert [epoch for epoch, _ in counted] in (["0", "1"], ["", ""])
    assert {images for _, images in counted} == {str(SAMPLES["val"])}
    if example.shape is not None:
        assert run.shapes("train") == {example.shape}
        if example.ranks == 1 and name not in ("huggingface-1", "timm"):
            assert (SAMPLES["val"] % BATCH, *example.shape[1:]) in run.shapes("val")


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if each.kill])
def test_killed_it_resumes_in_mid_epoch(served: Served, tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    steps = ("--checkpoint-steps", example.checkpoint_steps)
    killed = example.run(served, tmp_path, *steps, kill=example.kill)
    resumed = example.run(served, tmp_path, *steps)
    assert resumed.order()[0] in example.first, "not from the last checkpoint"
    check_resumed(served, killed, resumed, epochs=2, ranks=example.ranks)
    check_evaluated(served, resumed, times=1)


def test_two_killed_ranks_resume_as_one_with_twice_the_batch(
    served: Served, tmp_path: Path
) -> None:
    python = environment(*TORCH)
    options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 2]
    killed = run_example(python, "ddp.py", *options, folder=tmp_path, ranks=2, kill=(1, 3))
    options[options.index("--batch-size") + 1] = 10
    resumed = run_example(python, "ddp.py", *options, folder=tmp_path, ranks=1)
    planned = [served.planned("train", 1, rank, 2) for rank in range(2)]
    # A step's samples are the same, as one batch instead of two.
    assert {key: {*ids} for key, ids in resumed.steps().items()} == {
        (1, step): {*planned[0][1, step], *planned[1][1, step]} for step in range(2, 6)
    }
    assert {(0, step) for step in range(6)} | {(1, step) for step in range(3)} >= {*killed.order()}
    check_evaluated(served, resumed, times=1)


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_two_ranks_share_each_epoch(served: Served, tmp_path: Path, framework: str) -> None:
    for rank in range(2):
        share = ["--rank", rank, "--world-size", 2]
        run = EXAMPLES[framework].run(served, tmp_path / str(rank), *share)
        for epoch in range(2):
            for key, ids in served.planned("train", epoch, rank, 2).items():
                assert run.steps("train", rank)[key] == ids
