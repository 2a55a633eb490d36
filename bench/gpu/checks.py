"""Runs the checks on one device, with one daemon for those that need a feeder. Needs torch."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch

from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import usable_cpus
from feeder.pack.progress import ProgressLine

from ..daemon import DATASET_NAME, Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import describe_machine
from .bandwidth import SIDE_PX, check_bandwidth
from .device import DeviceClock, describe_device, open_device
from .exactness import check_exactness
from .options import DEFAULTS, GpuOptions
from .report import Check, GpuReport
from .slots import check_slots
from .step import StepOptions, check_step

_FED: Final = frozenset({"slots", "step"})


def run_checks(options: GpuOptions) -> GpuReport:
    """Run the checks that ``options`` name.

    Raises ConfigError for a device that cannot be used and batches larger than the dataset,
    ResourceError when the device's memory does not suffice.
    """
    device = open_device(options.device)
    default = DEFAULTS[device.type]
    batch_size = options.batch_size or default.batch_size
    rounds = options.rounds or default.rounds
    step = StepOptions(
        model=default.model,
        batch_size=batch_size,
        image_px=default.image_px,
        steps=options.steps or default.steps,
        rounds=rounds,
        workers=max(1, usable_cpus().count - 1),  # the trainer's own thread takes a core
    )
    machine = describe_machine() | describe_device(device)
    clock = DeviceClock(device)
    checks: list[Check] = []
    progress = ProgressLine(sys.stderr)
    with ExitStack() as stack:
        if _FED.intersection(options.only):
            images = options.images or default.images
            daemon = stack.enter_context(_feeder(options, images, batch_size, step.workers))
        progress.begin("checking", "checks", len(options.only))
        try:
            for name in options.only:
                if name == "exactness":
                    check = check_exactness(device)
                elif name == "bandwidth":
                    check = check_bandwidth(device, clock, batch_size=batch_size, rounds=rounds)
                elif name == "slots":
                    check = check_slots(
                        device,
                        clock,
                        daemon.ipc,
                        batch_size=batch_size,
                        image_px=SIDE_PX,
                        rounds=rounds,
                    )
                else:
                    check = check_step(device, clock, daemon.ipc, DATASET_NAME, step)
                checks.append(check)
                progress.add(1)
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"{device} has too little memory for batches of {batch_size}: use a smaller "
                "--batch-size"
            ) from error
        progress.end()
    return GpuReport.of(
        checks,
        machine=machine,
        measured={
            "rounds": rounds,
            "batch": f"{batch_size} images",
            "step": f"{step.model} at {step.image_px} px, {step.steps} in a turn",
            "workers": step.workers,
        },
    )


@contextmanager
def _feeder(options: GpuOptions, images: int, batch_size: int, workers: int) -> Iterator[Daemon]:
    """Run a daemon, without a decoded cache, which a real dataset would not fit in."""
    if options.dataset is None and images < batch_size:
        raise ConfigError(f"--images {images} are fewer than a batch of {batch_size}: make more")
    with dataset_or_synthetic(options.dataset, images=images) as path:
        with Dataset.open(path) as dataset:
            samples = dataset.layout.samples
        if samples < batch_size:
            raise ConfigError(
                f"{path} has {samples} samples, fewer than a batch of {batch_size}: use a smaller "
                "--batch-size"
            )
        with running_daemon(
            path,
            workers=workers,
            cores=frozenset(os.sched_getaffinity(0)),
            options=["--decoded-bytes", "0"],
        ) as daemon:
            yield daemon
