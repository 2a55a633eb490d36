"""The curves of a run by name, the same in TensorBoard and in Weights & Biases."""

from trainer_client.reference.results import EpochResult, StepReport


def step_scalars(report: StepReport) -> dict[str, float]:
    """Return the values of a step, for its global step."""
    return {
        "train/loss": report.loss,
        "train/lr": report.lr,
        "train/images_per_s": report.images_per_s,
        "train/wait_share": report.wait_share,
    }


def epoch_scalars(result: EpochResult) -> dict[str, float]:
    """Return the values of an epoch, for its last step; only those that it has."""
    values = {
        "epoch/loss": result.loss,
        "epoch/images_per_s": result.images_per_s,
        "epoch/wait_share": result.wait_share,
        "val/top1": result.top1,
        "val/top5": result.top5,
        "val/ema_top1": result.ema_top1,
        "val/ema_top5": result.ema_top5,
    }
    return {name: value for name, value in values.items() if value is not None}
