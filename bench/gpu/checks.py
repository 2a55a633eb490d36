"""Runs the checks on one device, with one daemon for those that need a feeder. Needs torch."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import torch

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import usable_cpus
from feeder.pack.progress import ProgressLine

from ..daemon import running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import describe_machine
from .bandwidth import check_bandwidth
from .device import DeviceClock, Subject, describe_device, open_device
from .exactness import check_exactness
from .run import Check, GpuReport, Sizes, choose_sizes
from .slots import check_slots
from .step import check_step

_CHECKS: Final = {
    "exactness": check_exactness,
    "bandwidth": check_bandwidth,
    "slots": check_slots,
    "step": check_step,
}
_FED: Final = {"slots", "step"}


def run_checks(arguments: argparse.Namespace, only: Sequence[str]) -> GpuReport:
    """Run the checks named in ``only``.

    Raises ConfigError for a device that cannot be used and batches larger than the dataset,
    ResourceError when the device's memory does not suffice.
    """
    device = open_device(arguments.device)
    sizes = choose_sizes(arguments, device.type)
    workers = max(1, usable_cpus().count - 1)  # the trainer's own thread takes a core
    machine = describe_machine() | describe_device(device)
    checks: dict[str, Check] = {}
    progress = ProgressLine(sys.stderr)
    with ExitStack() as stack:
        endpoint = ""
        if _FED.intersection(only):
            endpoint = _start_feeder(stack, arguments.dataset, sizes, workers)
        subject = Subject(device, DeviceClock(device), sizes, endpoint, workers)
        progress.begin("checking", "checks", len(only))
        try:
            for name in only:
                checks[name] = _CHECKS[name](subject)
                progress.add(1)
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"{device} has too little memory for batches of {sizes.batch_size}: use a smaller "
                "--batch-size"
            ) from error
        progress.end()
    return GpuReport(
        bench="gpu",
        machine=machine,
        measured={
            "rounds": sizes.rounds,
            "batch": f"{sizes.batch_size} images",
            "step": f"{sizes.model} at {sizes.image_px} px, {sizes.steps} in a turn",
            "workers": workers,
        },
        results=[row for check in checks.values() for row in check.results],
        failures=[
            f"{name}: {check.sentence}"
            for name, check in checks.items()
            if check.verdict == "failed"
        ],
        checks=[
            {"name": name, "verdict": check.verdict, "sentence": check.sentence}
            for name, check in checks.items()
        ],
    )


def _start_feeder(stack: ExitStack, given: Path | None, sizes: Sizes, workers: int) -> str:
    """Start a daemon that ``stack`` ends, and return its endpoint.

    It has no decoded cache, which a real dataset would not fit in.
    """
    if given is None and sizes.images < sizes.batch_size:
        raise ConfigError(
            f"--images {sizes.images} are fewer than a batch of {sizes.batch_size}: make more"
        )
    path = stack.enter_context(dataset_or_synthetic(given, images=sizes.images))
    if (samples := load_manifest(path).samples) < sizes.batch_size:
        raise ConfigError(
            f"{path} has {samples} samples, fewer than a batch of {sizes.batch_size}: use a "
            "smaller --batch-size"
        )
    cores = sorted(os.sched_getaffinity(0))
    options = ["--decoded-bytes", "0"]
    daemon = running_daemon(path, workers=workers, cores=cores, options=options)
    return stack.enter_context(daemon).ipc
