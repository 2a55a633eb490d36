"""The command line of ``feeder-bench gpu``. Needs no torch."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from feeder.errors import ConfigError

CHECKS: Final = ("exactness", "bandwidth", "slots", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What is measured, and how much, without options."""

    batch_size: int
    images: int
    """Of the synthetic dataset."""
    rounds: int
    steps: int
    """Timed training steps of a turn."""
    model: str
    """Of ``bench.gpu.step``."""
    image_px: int
    """Side of the images that the model is trained on."""


DEFAULTS: Final = {
    "cuda": Defaults(
        batch_size=256, images=2048, rounds=9, steps=50, model="resnet50", image_px=224
    ),
    "cpu": Defaults(batch_size=32, images=256, rounds=5, steps=6, model="small", image_px=64),
}
"""By type of device. A ResNet-50 would take a CPU minutes a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """What is checked and where; None stands for the device's default."""

    dataset: Path | None
    device: str | None
    only: tuple[str, ...]
    batch_size: int | None
    images: int | None
    rounds: int | None
    steps: int | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the options of a command line; ConfigError for an unknown check."""
        only = CHECKS if arguments.only is None else tuple(arguments.only.split(","))
        for name in only:
            if name not in CHECKS:
                raise ConfigError(f"--only {name} is no check: name some of {', '.join(CHECKS)}")
        return cls(
            dataset=arguments.dataset,
            device=arguments.device,
            only=only,
            batch_size=arguments.batch_size,
            images=arguments.images,
            rounds=arguments.rounds,
            steps=arguments.steps,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``GpuOptions.of`` takes, and --json."""
    parser.add_argument(
        "dataset",
        type=Path,
        nargs="?",
        metavar="DST",
        help="packed dataset (default: synthetic ImageNet, made for the run)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cuda, cuda:N or cpu (default: cuda if any)"
    )
    parser.add_argument(
        "--only", metavar="NAME,…", help=f"some of {', '.join(CHECKS)} (default: all)"
    )
    for option, what in (
        ("batch-size", "images in a batch"),
        ("images", "images of the synthetic dataset"),
        ("rounds", "rounds to take the median of"),
        ("steps", "training steps timed in a turn"),
    ):
        cuda, cpu = (getattr(DEFAULTS[kind], option.replace("-", "_")) for kind in ("cuda", "cpu"))
        parser.add_argument(
            f"--{option}",
            type=_positive,
            metavar="N",
            help=f"{what} (default: {cuda}; on a CPU {cpu})",
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value
