"""Values that a made-up run reports: 3 epochs of 7 steps, with a validation set of 1,009 images."""

from dataclasses import replace
from functools import partial
from typing import Any

from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport

EPOCHS, STEPS = 3, 7
IMAGES = 32  # of a step
VAL_IMAGES = 1009

make_run = partial(
    RunInfo,
    model="resnet50",
    optimiser="sgd",
    device="cpu",
    epochs=EPOCHS,
    steps_per_epoch=STEPS,
    global_batch=IMAGES,
    ranks=2,
    classes=10,
    train_samples=227,
    val_samples=VAL_IMAGES,
    seed=5,
    recipe={"lr": 0.1, "schedule": "cosine"},
)
make_outcome = partial(
    Outcome,
    ending="finished",
    epochs=EPOCHS,
    seconds=2.058,
    images_per_s=1204.0,
    wait_share=0.02,
    val_top1=300 / VAL_IMAGES,
    best_top1=300 / VAL_IMAGES,
    best_epoch=2,
)


def make_step(global_step: int = 1, **changes: Any) -> StepReport:
    report = StepReport(
        epoch=(global_step - 1) // STEPS,
        step=(global_step - 1) % STEPS + 1,
        steps_per_epoch=STEPS,
        global_step=global_step,
        loss=2.0 + global_step / 1000,
        lr=0.1,
        images_per_s=1204.3,
        wait_share=0.02,
        remaining_s=75.0,
    )
    return replace(report, **changes)


def make_result(epoch: int = 0, **changes: Any) -> EpochResult:
    result = EpochResult(
        epoch=epoch,
        steps=STEPS,
        images=STEPS * IMAGES,
        seconds=0.186,
        images_per_s=1204.30107,
        wait_share=0.02,
        loss=2.0 - epoch / 10,
        lr=0.1,
        val_images=VAL_IMAGES,
        val_correct=100 * (epoch + 1),
        val_correct_top5=300 * (epoch + 1),
        val_s=0.5,
    )
    return replace(result, **changes)
