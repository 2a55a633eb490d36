"""``feeder-bench gpu``: does Feeder keep what it promises on this device?

    exactness   normalising against float64: every packing, type and level
    bandwidth   normalising against a copy on the device: 85 % or more
    slots       copying from a feeder's slots against copying from pinned memory: 90 % or more
    step        a training step fed by a feeder against one without: stalled for less than 1 %

It ends with status 1 when a check fails. On a CPU the checks run in a small form that shows that
they work; only exactness is judged there. A check that a CPU cannot judge never fails. This module
needs no torch.
"""

import argparse
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from feeder.errors import ConfigError

from ..report import COLUMNS, JudgedReport, Result

Verdict = Literal["passed", "failed", "not judged on a CPU"]

CHECKS: Final = ("exactness", "bandwidth", "slots", "step")


class Sizes(NamedTuple):
    """How much is measured."""

    batch_size: int
    images: int
    """Of the synthetic dataset."""
    rounds: int
    steps: int
    """Timed training steps of a turn."""
    model: Literal["resnet50", "small"]
    image_px: int
    """Side of the images that the model is trained on."""


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
    """The result of one check."""

    verdict: Verdict
    sentence: str
    """The figure, and by how much it misses the target."""
    results: Sequence[Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport(JudgedReport):
    """A report that begins with the verdict of each check."""

    checks: Sequence[Mapping[str, str]]
    """Each check's "name", "verdict" and "sentence"."""

    def to_text(self) -> str:
        """Return the conclusion, header and table as text, with a newline at its end."""
        head, _, rest = JudgedReport.to_text(self).partition("\n")
        names: dict[str, list[str]] = {"failed": [], "passed": []}
        for check in self.checks:
            names.setdefault(check["verdict"], []).append(check["name"])
        verdicts = [f"{', '.join(those)} {verdict}" for verdict, those in names.items() if those]
        verdict = "failed" if self.failures else "passed"
        lines = textwrap.wrap(f"{head} {verdict}: {'; '.join(verdicts)}", COLUMNS)
        for check in self.checks:
            text = f"{check['name']}: {check['verdict']}; {check['sentence']}"
            lines += textwrap.wrap(text, COLUMNS, initial_indent="  ", subsequent_indent="    ")
        return "\n".join([*lines, "", rest])


def judge(is_met: bool, *, device_type: str) -> Verdict:
    """Return the verdict on a target of speed, which is set for CUDA devices only."""
    if device_type != "cuda":
        return "not judged on a CPU"
    return "passed" if is_met else "failed"


def judge_share(share: float, target: float, of: str, *, device_type: str) -> tuple[Verdict, str]:
    """Return the verdict on a share that should be at least ``target``, and the share in words."""
    verdict = judge(share >= target, device_type=device_type)
    text = f"{100 * share:.0f} % of {of} (target: {100 * target:.0f} %)"
    if verdict == "failed":
        text += f", {100 * (target - share):.1f} points too little"
    return verdict, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    what = "cuda, cuda:N or cpu (default: cuda if any)"
    parser.add_argument("--device", metavar="NAME", help=what)
    what = f"some of {', '.join(CHECKS)} (default: all)"
    parser.add_argument("--only", metavar="NAME,…", help=what)
    for name, what in _NUMBERS.items():
        default = f"(default: {getattr(_GPU, name)}; on a CPU {getattr(_CPU, name)})"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, metavar="N", help=f"{what} {default}")


def choose_sizes(arguments: argparse.Namespace, device_type: str) -> Sizes:
    """Return the device's sizes, with those of the command line; ConfigError for one below 1."""
    numbers = {name: getattr(arguments, name) for name in _NUMBERS}
    given = {name: number for name, number in numbers.items() if number is not None}
    for name, number in given.items():
        if number < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {number} is not 1 or more")
    return (_CPU if device_type == "cpu" else _GPU)._replace(**given)


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
