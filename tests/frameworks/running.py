"""Runs the examples in the frameworks' environments, and reads what their loaders delivered.

A daemon of the main environment serves two small datasets, ``train`` and ``val``, whose sizes are
prime: no batch size divides them, and the last batch of an evaluation is short.
"""

import contextlib
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from feeder.dataset.opened import Dataset
from feeder.plan.epoch import rank_indices
from feeder.plan.recipe import Recipe
from tests.support.sources import REPOSITORY

SAMPLES = {"train": 61, "val": 23}
BATCH, SIDE, SEED = 5, 32, 7
"""Of all examples: 12 steps an epoch, 6 on each of two ranks; the last batch of val has 3 rows."""
TIMEOUT_S = 240.0
RECORDING = REPOSITORY / "tests" / "frameworks" / "recording"
SCRIPTS = REPOSITORY / "tests" / "frameworks" / "scripts"

Steps = dict[tuple[int, int], list[int]]
"""Sample ids by (epoch, step)."""


@dataclass(frozen=True)
class Served:
    """A running daemon's endpoint, and the datasets that it serves by name."""

    endpoint: str
    datasets: Mapping[str, Dataset]

    def planned(self, split: Literal["train", "val"], epoch: int, rank: int, ranks: int) -> Steps:
        """Return what a rank is due in an epoch; only real samples, so [] for padding alone."""
        recipe = Recipe.for_split(split, batch_size=BATCH, image_size=SIDE)
        plan = recipe.plan_epoch(self.datasets[split].layout, seed=SEED, epoch=epoch)
        indices = rank_indices(plan.batches, rank, ranks, recipe.last_batch)
        return {
            (epoch, step): plan.samples(index).tolist() if index < plan.batches else []
            for step, index in enumerate(indices)
        }

    def expected(self, epochs: int, rank: int, ranks: int, limit: int | None) -> Steps:
        """What a rank is due in training, of each epoch ``limit`` steps or all."""
        planned = [self.planned("train", epoch, rank, ranks) for epoch in range(epochs)]
        return {key: ids for steps in planned for key, ids in [*steps.items()][:limit]}


@dataclass(frozen=True)
class Run:
    """A finished run of an example."""

    status: int
    output: str
    batches: list[dict[str, Any]]  # the lines of recording/sitecustomize.py, in order by process

    def steps(self, split: str = "train", rank: int = 0) -> Steps:
        """Return the real samples that a rank's loaders delivered; a step given twice fails."""
        found: Steps = {}
        for batch in self.batches:
            if (batch["split"], batch["rank"]) == (split, rank):
                key = batch["epoch"], batch["step"]
                assert key not in found, f"{split} rank {rank}: step {key} was delivered twice"
                found[key] = batch["sample_ids"][: batch["valid"]]
        return found

    def order(self, split: str = "train", rank: int = 0) -> list[tuple[int, int]]:
        """Return (epoch, step) of a rank's batches in the order of delivery."""
        return [*self.steps(split, rank)]

    def shapes(self, split: str = "train") -> set[tuple[int, ...]]:
        """Return the shapes of the delivered images."""
        return {tuple(batch["shape"]) for batch in self.batches if batch["split"] == split}


def environment(*names: str) -> Path:
    """Return the python of the first environment that is made; RuntimeError without one."""
    for name in names:
        python = REPOSITORY / ".frameworks" / name / "bin" / "python"
        if python.exists():
            return python
    raise RuntimeError(f"no environment {' or '.join(names)}: run `make test-frameworks`")


def run_python(
    python: Path, *arguments: object, folder: Path, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program in ``folder`` to its end, however that is."""
    return subprocess.run(
        [*map(str, (python, *arguments))],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def example_options(served: Served) -> list[object]:
    """Return the arguments that all examples take."""
    datasets = ["--dataset", "train", "--val-dataset", "val"]
    sizes = ["--batch-size", BATCH, "--image-size", SIDE, "--seed", SEED]
    return [served.endpoint, *datasets, *sizes]


def run_example(
    python: Path,
    script: str,
    *arguments: object,
    folder: Path,
    ranks: int = 0,
    kill: tuple[int, int] | None = None,
    environ: Mapping[str, str] | None = None,
    check: bool = True,
) -> Run:
    """Run docs/examples/``script`` (or a script's path) to its end; return what it did.

    ``folder`` is its working directory, ``ranks`` above 0 starts as many with torchrun, ``kill``
    is the (epoch, step) of training at which its processes die. Unless ``check`` is false, it must
    end with status 0, or with another one when it is killed. No process outlives it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = folder / f"records{len([*folder.glob('records*')])}"
    records.mkdir()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    path = REPOSITORY / "docs" / "examples" / script  # an absolute path stays as it is
    command = [python, *(launcher if ranks else []), path, *arguments]
    variables = {
        "PYTHONPATH": str(RECORDING),
        "PYTHONUNBUFFERED": "1",
        "FEEDER_RECORD": str(records),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if kill is not None:
        variables["FEEDER_KILL"] = f"{kill[0]}:{kill[1]}"
    with (folder / f"{records.name}.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = psutil.Popen(
            [*map(str, command)],
            cwd=folder,
            env={**os.environ, **variables, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(TIMEOUT_S)
        finally:
            _end(process, records)
        log.seek(0)
        output = log.read()
    if check:
        assert (status == 0) == (kill is None), f"status {status}:\n{output}"
    lines = (line for path in sorted(records.iterdir()) for line in path.read_text().splitlines())
    return Run(status, output, [json.loads(line) for line in lines])


def _end(process: psutil.Popen, records: Path) -> None:
    """Kill what is left of a run: all processes that record to its folder."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("FEEDER_RECORD") == str(records):
                each.kill()
    process.wait()


def check_trained(
    served: Served, run: Run, *, epochs: int, ranks: int = 1, limit: int | None = None
) -> None:
    """Each rank got its share of every epoch, in order; no sample came twice in an epoch.

    With ``limit``, of each epoch only so many steps.
    """
    for rank in range(ranks):
        expected = served.expected(epochs, rank, ranks, limit)
        assert [*run.steps("train", rank).items()] == [*expected.items()], f"rank {rank}"
    counted: dict[int, list[int]] = defaultdict(list)
    for batch in run.batches:
        if batch["split"] == "train":
            counted[batch["epoch"]] += batch["sample_ids"]
    for epoch, ids in counted.items():
        assert len(ids) == len({*ids}), f"epoch {epoch} repeats samples"


def check_resumed(
    served: Served,
    killed: Run,
    resumed: Run,
    *,
    epochs: int,
    ranks: int = 1,
    limit: int | None = None,
) -> None:
    """A killed run and its resumption delivered every step, each as an undisturbed run does.

    With ``limit``, of each epoch only so many steps.
    """
    for rank in range(ranks):
        expected = served.expected(epochs, rank, ranks, limit)
        before, after = killed.steps("train", rank), resumed.steps("train", rank)
        assert after, f"rank {rank}: nothing was left to do"
        for key, ids in [*before.items(), *after.items()]:
            assert expected[key] == ids, f"rank {rank}, (epoch, step) {key}"
        assert {*before} | {*after} == {*expected}, f"rank {rank}: steps were skipped"
        assert [*after] == [*expected][-len(after) :], f"rank {rank}: not in order"


def check_evaluated(
    served: Served, run: Run, *, times: int | None = None, sanity_steps: int = 0
) -> None:
    """Each evaluation, ``times`` if given, delivered every sample of ``val`` once, over all ranks.

    Before them there may be one of only ``sanity_steps`` steps.
    """
    passes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for batch in run.batches:
        if batch["split"] == "val":
            passes[batch["pass"]].append(batch)
    if sanity_steps:
        assert {batch["step"] for batch in passes.pop(0)} == {*range(sanity_steps)}
    assert len(passes) == times or (times is None and passes)
    samples = served.datasets["val"].layout.samples
    for number, batches in passes.items():
        ids = [each for batch in batches for each in batch["sample_ids"][: batch["valid"]]]
        assert sorted(ids) == [*range(samples)], f"evaluation {number}"
