"""Reports a made-up run to the trackers, or reads back what they wrote.

    python track_run.py report '{"folder": …, …}'     the fields of ``Plan``
    python track_run.py events FOLDER                 TensorBoard's curves, as it shows them
    python track_run.py wandb FOLDER                  all that offline runs have logged

The last two print JSON.
"""

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.tracker import make_trackers

STEPS = 20  # of an epoch
LOG_STEPS = 5
VAL_IMAGES = 50_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One process of a run: from ``first_step`` to the end, or to an error at ``last_step``."""

    folder: str
    options: dict[str, Any]
    accuracies: list[float]  # after each epoch
    optimiser: str = "sgd"
    global_batch: int = 1024
    epochs: int = 3
    recipe: dict[str, Any] = field(default_factory=dict)
    first_step: int = 0
    last_step: int | None = None
    loss: float = 1.0  # of each step


def report_run(plan: Plan) -> None:
    """Report the run, as the reference job does."""
    results = [make_result(plan, epoch) for epoch in range(plan.epochs)]
    trackers = make_trackers(Path(plan.folder), report=print, **plan.options)
    run = RunInfo(
        model="resnet50",
        optimiser=plan.optimiser,
        device="cpu",
        epochs=plan.epochs,
        steps_per_epoch=STEPS,
        global_batch=plan.global_batch,
        ranks=2,
        classes=1000,
        train_samples=1_281_167,
        val_samples=VAL_IMAGES,
        seed=7,
        recipe=plan.recipe,
        first_step=plan.first_step,
        history=results[: plan.first_step // STEPS],
    )
    try:
        for tracker in trackers:
            tracker.begin(run)
        last_step = plan.last_step or plan.epochs * STEPS
        for step in range(plan.first_step, last_step):
            epoch = step // STEPS
            if step == plan.first_step or step % STEPS == 0:
                for tracker in trackers:
                    tracker.begin_epoch(epoch)
            if (step + 1) % LOG_STEPS == 0:
                for tracker in trackers:
                    tracker.log_step(make_report(plan, step))
            if (step + 1) % STEPS == 0:
                for tracker in trackers:
                    tracker.begin_evaluation(epoch)
                for tracker in trackers:
                    tracker.end_epoch(results[epoch])
        if plan.last_step is None:
            for tracker in trackers:
                tracker.end(make_outcome(plan))
    finally:
        for tracker in trackers:
            tracker.close()


def make_report(plan: Plan, step: int) -> StepReport:
    return StepReport(
        epoch=step // STEPS,
        step=step % STEPS + 1,
        steps_per_epoch=STEPS,
        global_step=step + 1,
        loss=plan.loss,
        lr=0.1,
        images_per_s=1000.0,
        wait_share=0.02,
        remaining_s=60.0,
    )


def make_result(plan: Plan, epoch: int) -> EpochResult:
    return EpochResult(
        epoch=epoch,
        steps=STEPS,
        images=STEPS * plan.global_batch,
        seconds=20.0,
        images_per_s=1000.0,
        wait_share=0.02,
        loss=plan.loss,
        lr=0.1,
        val_images=VAL_IMAGES,
        val_correct=round(plan.accuracies[epoch] * VAL_IMAGES),
        val_correct_top5=VAL_IMAGES,
        val_s=2.0,
    )


def make_outcome(plan: Plan) -> Outcome:
    best = max(plan.accuracies)
    return Outcome(
        ending="finished",
        epochs=plan.epochs,
        seconds=66.0,
        images_per_s=1000.0,
        wait_share=0.02,
        val_top1=plan.accuracies[-1],
        best_top1=best,
        best_epoch=plan.accuracies.index(best),
    )


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of each scalar, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(each.step, each.value) for each in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """Return id, project, exit status and logged values of each offline run, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        found: dict[str, Any] = {"config": {}, "values": []}
        for data in read_records(path.read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found |= {"id": record.run.run_id, "project": record.run.project}
                found["config"] |= items(record.run.config.update)
            elif kind == "history":
                values = items(record.history.item)
                found["values"].append(
                    {name: value for name, value in values.items() if not name.startswith("_")}
                )
            elif kind == "exit":
                found["exit_status"] = record.exit.exit_code
        runs.append(found)
    return runs


def items(entries: Any) -> dict[str, Any]:
    return {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in entries}


def read_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, after W&B's header."""
    block, header = 32_768, struct.Struct("<IHB")  # checksum, length, kind
    full, last = 1, 4
    at, parts = header.size, b""
    while at + header.size <= len(data):
        if block - at % block < header.size:
            at += block - at % block
            continue
        _, length, kind = header.unpack_from(data, at)
        at += header.size
        parts += data[at : at + length]
        at += length
        if kind in (full, last):
            yield parts
            parts = b""


def main(action: str, argument: str) -> None:
    if action == "report":
        report_run(Plan(**json.loads(argument)))
    else:
        read = read_events if action == "events" else read_wandb
        sys.stdout.write(json.dumps(read(Path(argument))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
