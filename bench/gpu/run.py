"""``feeder-bench gpu``: does Feeder keep what it promises on this device?

    exactness   normalising against float64: every packing, type and level
    bandwidth   normalising against a copy on the device: 85 % or more
    slots       copying from a feeder's slots against copying from pinned memory: 90 % or more
    step        a training step fed by a feeder against one without: stalled for less than 1 %

It ends with status 1 when a check fails. On a CPU the checks run in a small form that shows that
they work; only exactness is judged there. A check that a CPU cannot judge never fails.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import usable_cpus
from feeder.pack.progress import ProgressLine
from feeder.process.shortage import TORCH_BYTES, check_import_memory

from ..daemon import running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import describe_machine
from ..report import JudgedReport, Result

CHECKS: Final = ("exactness", "bandwidth", "slots", "step")
_FED: Final = {"slots", "step"}


class Sizes(NamedTuple):
    batch_size: int
    images: int  # of the synthetic dataset
    rounds: int
    steps: int  # timed training steps of a turn
    model: Literal["resnet50", "small"]
    image_px: int  # side of the images that the model is trained on


_GPU: Final = Sizes(256, images=2048, rounds=9, steps=50, model="resnet50", image_px=224)
_CPU: Final = Sizes(32, images=256, rounds=5, steps=6, model="small", image_px=64)
"""A ResNet-50 would take a CPU minutes a round."""

_NUMBERS: Final = {
    "batch_size": "images in a batch",
    "images": "images of the synthetic dataset",
    "rounds": "rounds to take the median of",
    "steps": "training steps timed in a turn",
}


class Check(NamedTuple):
    verdict: str  # "passed", "failed" or "not judged on a CPU"
    sentence: str  # the figure, and by how much it misses the target
    results: Sequence[Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport(JudgedReport):
    """A report that begins with the verdict of each check."""

    checks: Sequence[Mapping[str, str]]  # each check's "name", "verdict" and "sentence"

    def conclude(self) -> list[str]:
        verdict = "failed" if self.failures else "passed"
        checks = (f"{each['name']}: {each['verdict']}; {each['sentence']}" for each in self.checks)
        return [f"feeder-bench gpu {verdict}", *checks]


def judge(is_met: bool, *, device_type: str) -> str:
    """Return the verdict on a target of speed, which is set for CUDA devices only."""
    if device_type != "cuda":
        return "not judged on a CPU"
    return "passed" if is_met else "failed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "cuda, cuda:N or cpu (default: cuda if any)"
    parser.add_argument("--device", metavar="NAME", help=what)
    what = f"some of {', '.join(CHECKS)} (default: all)"
    parser.add_argument("--only", metavar="NAME,…", help=what)
    for name, what in _NUMBERS.items():
        default = f"(default: {getattr(_GPU, name)}; on a CPU {getattr(_CPU, name)})"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, metavar="N", help=f"{what} {default}")


def run(arguments: argparse.Namespace) -> GpuReport:
    """Run the checks, with one daemon for those that need a feeder.

    Raises ConfigError for a device that cannot be used and batches larger than the dataset,
    ResourceError when the device's memory does not suffice.
    """
    only = arguments.only.split(",") if arguments.only else CHECKS
    for name in only:
        if name not in CHECKS:
            raise ConfigError(f"--only {name} is no check: name some of {', '.join(CHECKS)}")
    # Read when torch is loaded: by default its threads spin while they wait for each other, on the
    # cores that the daemon needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    check_import_memory(TORCH_BYTES)
    import torch

    from .copies import check_bandwidth, check_slots
    from .device import DeviceClock, Subject, describe_device, open_device
    from .exactness import check_exactness
    from .step import check_step

    device = open_device(arguments.device)
    sizes = _choose_sizes(arguments, device.type)
    workers = max(1, usable_cpus().count - 1)  # the trainer's own thread takes a core
    machine = describe_machine() | describe_device(device)
    perform = dict(
        zip(CHECKS, (check_exactness, check_bandwidth, check_slots, check_step), strict=True)
    )
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
                checks[name] = perform[name](subject)
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


def _choose_sizes(arguments: argparse.Namespace, device_type: str) -> Sizes:
    """Return the device's sizes, with those of the command line; ConfigError for one below 1."""
    numbers = {name: getattr(arguments, name) for name in _NUMBERS}
    given = {name: number for name, number in numbers.items() if number is not None}
    for name, number in given.items():
        if number < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {number} is not 1 or more")
    return (_CPU if device_type == "cpu" else _GPU)._replace(**given)


def _start_feeder(stack: ExitStack, given: Path | None, sizes: Sizes, workers: int) -> str:
    """Start a daemon without a decoded cache, as large datasets have none; return its endpoint."""
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
