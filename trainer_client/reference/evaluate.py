"""Offline evaluation: the accuracy of checkpoints, those of a finished run or as they appear.

It gives the same figures as the evaluation in the loop, on one or many ranks: the same weights and
running statistics, the same batches. Everything it needs is in the checkpoint, but for a feeder.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from feeder.errors import ConfigError, ResourceError
from feeder.process.program import run_guarded
from trainer_client._loader import FeederLoader
from trainer_client.reference.checkpoints import (
    CHECKPOINTS,
    list_checkpoints,
    load_checkpoint,
    position_of,
)
from trainer_client.reference.command import JobParser, add_options, handle_signals, write_json
from trainer_client.reference.loaders import evaluate, make_val_loader
from trainer_client.reference.models import make_model
from trainer_client.reference.options import SMOKE, BatchPlan, TrainingOptions
from trainer_client.reference.own_feeder import serve_in_rank_0
from trainer_client.reference.place import Place, in_rank_0, join
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.tracking.files import SUMMARY_FILE, merge_row
from trainer_client.reference.trainer import make_autocast

RESULTS: Final = "evaluations.csv"
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One checkpoint's accuracy."""

    checkpoint: str
    epoch: int  # the epoch that it was trained in last, as in epochs.csv
    steps: int  # steps done in the whole job
    val_images: int
    val_top1: float
    val_top5: float
    ema_top1: float | None = None
    ema_top5: float | None = None
    seconds: float

    def __str__(self) -> str:
        line = (
            f"{Path(self.checkpoint).name}: {self.val_top1:.2%} of {self.val_images:,} correct, "
            f"top 5 {self.val_top5:.2%}"
        )
        return line if self.ema_top1 is None else f"{line}, averaged {self.ema_top1:.2%}"


class Evaluator:
    """Evaluates checkpoints of one job, one after the other, with one loader."""

    def __init__(self, options: TrainingOptions, place: Place, stack: contextlib.ExitStack) -> None:
        """What ``options`` lack comes from the first checkpoint."""
        self._options, self._place, self._stack = options, place, stack
        self._loader: FeederLoader | None = None
        self._classes: Sequence[str] = ()

    def evaluate(self, path: Path, content: Mapping[str, Any]) -> Evaluation:
        """Return a checkpoint's accuracy; every rank must call this.

        Raises ConfigError when it is of other classes than the first one or the validation set.
        """
        start_s = time.monotonic()
        try:
            recipe = TrainingRecipe().changed(content["recipe"])
            classes, states = list(content["classes"]), [content["model"]]
            if content["average"] is not None:
                states.append(content["average"]["model"])
            if self._loader is None:
                self._loader, self._classes = self._open(path, content, recipe), classes
            if classes != self._classes:
                raise ConfigError(
                    f"{path} is of other classes than the checkpoints before it: evaluate the "
                    "checkpoints of one job at a time"
                )
            models = [self._make_model(recipe, len(classes), state) for state in states]
            progress = content["progress"]
            epoch = max(0, int(progress["epoch"]) - (not progress["step"]))
            autocast = make_autocast(recipe, self._place.device)
            raw, *averaged = evaluate(models, self._loader, autocast, epoch=epoch)
            return Evaluation(
                checkpoint=str(path),
                epoch=epoch,
                steps=int(content["steps_done"]),
                val_images=raw.images,
                val_top1=raw.top1,
                val_top5=raw.top5,
                ema_top1=averaged[0].top1 if averaged else None,
                ema_top5=averaged[0].top5 if averaged else None,
                seconds=time.monotonic() - start_s,
            )
        except (KeyError, RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{path} cannot be evaluated: it lacks or has other {reason}") from (
                error
            )

    def _make_model(
        self, recipe: TrainingRecipe, classes: int, state: Mapping[str, torch.Tensor]
    ) -> nn.Module:
        model = make_model(recipe, classes)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(state[name].dtype)  # half precision stays that
        model.load_state_dict(state)
        return model.to(device=self._place.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _open(self, path: Path, content: Mapping[str, Any], recipe: TrainingRecipe) -> FeederLoader:
        options = replace(
            self._options,
            recipe=recipe,
            endpoint=self._options.endpoint or content["endpoint"],
            val_dataset=self._options.val_dataset or content["val_dataset"],
        )
        if options.endpoint is None:  # the smoke recipe: its data is in the run's folder
            folder = path.absolute().parent.parent
            if not (folder / "data").is_dir():
                raise ConfigError(
                    f"{path} is of a job with a feeder of its own, whose data is not in {folder}: "
                    "name a feeder with --endpoint, and --val-dataset"
                )
            options = replace(options, recipe_name=SMOKE, output=str(folder))
            options = serve_in_rank_0(options, self._place, lambda line: None, self._stack)
        if options.val_dataset is None:
            raise ConfigError(
                f"{path} is of a job without a validation set: name one with --val-dataset NAME"
            )
        size, ranks = options.batch_size or int(content["batch_size"]), self._place.ranks
        plan = BatchPlan(global_batch=size * ranks, batch_size=size, accumulation=1, ranks=ranks)
        loader = make_val_loader(options, plan, self._place, list(content["classes"]))
        return self._stack.enter_context(loader)


def run_evaluation(
    named: Sequence[Path],
    options: TrainingOptions,
    *,
    is_following: bool,
    results: Path | None,
    report: Callable[[str], None],
) -> list[Evaluation]:
    """Evaluate checkpoints; ``results`` is a CSV file to which each of them is added.

    A checkpoint of a folder that was removed before its turn, or that is damaged, is skipped, with
    a line; if any was damaged, a ConfigError comes last.
    """
    done: list[Evaluation] = []
    skipped = 0
    with contextlib.ExitStack() as stack:
        place = join(options.device, stack)
        log = report if place.rank == 0 else lambda line: None
        evaluator = Evaluator(options, place, stack)
        for path in _checkpoints(named, place, is_following=is_following):
            content, problem = _load(path, place)
            if content is not None:
                done.append(evaluator.evaluate(path, content))
                log(str(done[-1]))
                if results is not None and place.rank == 0:
                    merge_row(results, "steps", asdict(done[-1]))
            elif path in named:
                raise ConfigError(problem)
            elif not path.exists():
                log(f"{path.name} was removed before its turn: train with a larger --keep")
            else:
                skipped += 1
                log(f"skipped: {problem}")
    if skipped:
        raise ConfigError(
            f"{skipped} of {len(done) + skipped} checkpoints cannot be read, see above"
        )
    if not done:
        raise ConfigError(
            f"there are no checkpoints in {', '.join(map(str, named))}: name a run's folder or "
            "checkpoint files"
        )
    return done if place.rank == 0 else []


def _checkpoints(named: Sequence[Path], place: Place, *, is_following: bool) -> Iterator[Path]:
    """Yield the files that are named and, of folders, their checkpoints after an epoch in order.

    A folder is that of a run, or of its checkpoints. To follow it is to yield new ones, too, until
    its run has ended; the folder may appear later. All ranks get what rank 0 finds: a training may
    add and remove some.
    """
    if is_following:
        if len(named) != 1 or named[0].is_file():
            raise ConfigError("--follow takes one folder: that of a run, or of its checkpoints")
        named = [named[0].parent if named[0].name == CHECKPOINTS else named[0]]
    seen: set[Path] = set()
    has_ended = False
    while not has_ended:
        paths, has_ended = in_rank_0(place, lambda: _find(named, is_following=is_following))
        new = [path for path in paths if path not in seen]
        seen |= {*new}
        yield from new
        if not new and not has_ended:
            time.sleep(POLL_S)


def _find(named: Sequence[Path], *, is_following: bool) -> tuple[list[Path], bool]:
    """Return the checkpoints that there are, and whether no more will come."""
    # Looked for before the list, as the last checkpoint comes before the summary.
    has_ended = not is_following or (named[0] / SUMMARY_FILE).exists()
    paths: list[Path] = []
    for path in named:
        if path.is_dir():
            inside = path / CHECKPOINTS
            checkpoints = list_checkpoints(inside if inside.is_dir() else path)
            paths += [each for each in checkpoints if not position_of(each)[1]]
        elif path.suffix:  # else a folder that does not exist yet
            paths.append(path)
    return paths, has_ended


def _load(path: Path, place: Place) -> tuple[dict[str, Any] | None, str]:
    """Return a checkpoint's content; None, in all ranks, if one cannot read it, and the reason."""
    content, problem = None, "another rank cannot read it"
    try:
        content = load_checkpoint(path)
    except (ConfigError, ResourceError) as error:
        problem = str(error)
    if place.group is not None:
        votes = torch.tensor([int(content is not None)])
        dist.all_reduce(votes, dist.ReduceOp.MIN, place.group)
        content = content if votes.item() else None
    return content, problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the evaluation from the command line and return its exit status."""
    return run_guarded("evaluate", lambda: _run(arguments))


def run_process() -> int:
    """Run it as a process that ``feeder.process.program`` has started."""
    handle_signals()
    return _run(None)


def _run(arguments: Sequence[str] | None) -> int:
    parser = JobParser(
        prog="python -m trainer_client.evaluate",
        description="Evaluate the checkpoints of a training job.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    about = "files, or a run's folder: all its checkpoints after an epoch"
    add("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT", help=about)
    about = "wait for further checkpoints of the folder, until its run has ended"
    add("--follow", action="store_true", help=about)
    add("--endpoint", help="a feeder with the validation set; default: the one that trained")
    add("--val-dataset", metavar="NAME", help="default: that of the training job")
    add_options(parser, "feeder")
    add("--csv", type=Path, metavar="FILE", help=f"default: {RESULTS} in the run's folder")
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    values = parser.parse(arguments)
    named: list[Path] = values.pop("checkpoints")
    json_path, results = values.pop("json"), values.pop("csv")
    is_following = values.pop("follow")
    if results is None and len(named) == 1 and named[0].is_dir():
        results = named[0] / RESULTS
    done = run_evaluation(
        named,
        TrainingOptions(**values),
        is_following=is_following,
        results=results,
        report=_print_line,
    )
    if json_path is not None and done:
        write_json([asdict(each) for each in done], json_path)
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
