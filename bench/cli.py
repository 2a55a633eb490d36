"""The ``feeder-bench`` command: runs one bench, prints its table, writes its JSON."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import compare, decode, plots, soak, stream
from bench.compare import Comparison
from bench.report import Report
from bench.soak import SoakReport
from feeder.errors import FeederError
from feeder.stop_signals import StopSignals


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="feeder-bench", description="Measure how fast batches are made and delivered here."
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    add = benches.add_parser("decode", help="one core: each stage, and the whole sample")
    _add_shared(add, images=256, rounds=7)
    add.set_defaults(run=decode.run)
    add = benches.add_parser("stream", help="the daemon and its clients, over ipc and tcp")
    _add_shared(add, images=1024, rounds=5)
    add.add_argument(
        "--batches",
        type=_positive,
        default=5,
        metavar="N",
        help="batches of 256 images in a round (default: 5)",
    )
    add.add_argument(
        "--idle", type=_seconds, default=3.0, metavar="S", help="seconds to watch the idle daemon"
    )
    add.add_argument(
        "--clients", type=_positive, default=4, metavar="N", help="clients at a time (default: 4)"
    )
    _add_plot(add)
    add.set_defaults(run=stream.run)
    add = benches.add_parser("soak", help="stream while clients come and go; does anything grow?")
    _add_dataset(add, images=1024)
    _add_soak(add)
    _add_plot(add)
    add.set_defaults(run=soak.run)
    add = benches.add_parser("compare", help="what changed between two runs, with the noise")
    add.add_argument("before", type=Path, metavar="A.json", help="what --json wrote before")
    add.add_argument("after", type=Path, metavar="B.json", help="what --json wrote after")
    add.set_defaults(run=compare.run)
    return parser


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results there, as PNG")


def _add_soak(parser: argparse.ArgumentParser) -> None:
    for option, default, what in (
        ("--every", 5.0, "seconds between two samples"),
        ("--restart", 10.0, "seconds between two ends of clients"),
        ("--lease", 5.0, "serve.lease_s of the daemon"),
    ):
        parser.add_argument(
            option,
            type=_seconds,
            default=default,
            metavar="S",
            help=f"{what} (default: {default:g})",
        )
    parser.add_argument("--minutes", type=_minutes, default=5.0, metavar="M", help="(default: 5)")
    for option, default, what in (
        ("--clients", 4, "clients at a time, in turns over ipc and tcp"),
        ("--batch-size", 128, "images in a batch"),
    ):
        parser.add_argument(
            option,
            type=_positive,
            default=default,
            metavar="N",
            help=f"{what} (default: {default})",
        )


def _add_shared(parser: argparse.ArgumentParser, *, images: int, rounds: int) -> None:
    _add_dataset(parser, images=images)
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=rounds,
        metavar="R",
        help=f"rounds to take the median of (default: {rounds})",
    )


def _add_dataset(parser: argparse.ArgumentParser, *, images: int) -> None:
    parser.add_argument(
        "dataset",
        type=Path,
        nargs="?",
        metavar="DST",
        help="packed dataset (default: synthetic ImageNet, made for the run)",
    )
    parser.add_argument(
        "--images",
        type=_positive,
        default=images,
        metavar="N",
        help=f"images to measure with, or to make (default: {images})",
    )
    parser.add_argument(
        "--core",
        type=int,
        metavar="C",
        help="core to pin samples' work to (default: the first usable)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10000")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one bench and return the exit status (as ``feeder`` has them)."""
    arguments = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], Report | Comparison] = arguments.run
    with StopSignals() as signals:
        try:
            plot: Path | None = getattr(arguments, "plot", None)
            if plot is not None:
                plots.check_installed()
            report = run(arguments)
            print(report.to_text(), end="")
            if isinstance(report, Report) and arguments.json is not None:
                report.write_json(arguments.json)
            if isinstance(report, Report) and plot is not None:
                plots.write_plot(report, plot)
            if isinstance(report, SoakReport) and report.failures:
                for reason in report.failures:
                    sys.stderr.write(f"feeder-bench: failed: {reason}\n")
                return 1
        except FeederError as error:
            sys.stderr.write(f"feeder-bench: error: {error}\n")
            return error.exit_status
        except KeyboardInterrupt:
            sys.stderr.write("feeder-bench: interrupted\n")
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
