"""``feeder-bench gpu``: does Feeder keep what it promises on this device?

    exactness   normalising against float64: every packing, type and level
    bandwidth   normalising against a copy on the device: 85 % or more
    slots       copying from a feeder's slots against copying from pinned memory: 90 % or more
    step        a training step fed by a feeder against one without: stalled for less than 1 %

It ends with status 1 when a check fails. On a CPU the checks run in a small form that shows that
they work; only exactness is judged there. This module needs no torch.
"""

import argparse
import os
from dataclasses import dataclass, replace
from typing import Final

from feeder.errors import ConfigError

from .report import GpuReport

__all__ = ["add_arguments", "run"]

CHECKS: Final = ("exactness", "bandwidth", "slots", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    batch_size: int
    images: int
    """Of the synthetic dataset."""
    rounds: int
    steps: int
    """Timed training steps of a turn."""
    model: str
    """"resnet50" or "small"."""
    image_px: int
    """Side of the images that the model is trained on."""


_GPU: Final = Sizes(batch_size=256, images=2048, rounds=9, steps=50, model="resnet50", image_px=224)
_CPU: Final = Sizes(batch_size=32, images=256, rounds=5, steps=6, model="small", image_px=64)
"""A ResNet-50 would take a CPU minutes a round."""

_NUMBERS: Final = {
    "batch_size": "images in a batch",
    "images": "images of the synthetic dataset",
    "rounds": "rounds to take the median of",
    "steps": "training steps timed in a turn",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    what = "cuda, cuda:N or cpu (default: cuda if any)"
    parser.add_argument("--device", metavar="NAME", help=what)
    what = f"some of {', '.join(CHECKS)} (default: all)"
    parser.add_argument("--only", metavar="NAME,…", help=what)
    for name, what in _NUMBERS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            metavar="N",
            help=f"{what} (default: {getattr(_GPU, name)}; on a CPU {getattr(_CPU, name)})",
        )


def choose_sizes(arguments: argparse.Namespace, device_type: str) -> Sizes:
    """Return the device's sizes, with those of the command line; ConfigError for one below 1."""
    numbers = {name: getattr(arguments, name) for name in _NUMBERS}
    given = {name: number for name, number in numbers.items() if number is not None}
    for name, number in given.items():
        if number < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {number} is not 1 or more")
    return replace(_CPU if device_type == "cpu" else _GPU, **given)


def run(arguments: argparse.Namespace) -> GpuReport:
    """Do what the command line asks; ConfigError for a device that cannot be used."""
    only = arguments.only.split(",") if arguments.only else CHECKS
    for name in only:
        if name not in CHECKS:
            raise ConfigError(f"--only {name} is no check: name some of {', '.join(CHECKS)}")
    # Read when torch is loaded: by default its threads spin while they wait for each other, on the
    # cores that the daemon needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from .checks import run_checks

    return run_checks(arguments, only)
