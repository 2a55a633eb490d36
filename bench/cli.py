"""The ``feeder-bench`` command: runs one bench, prints its table, writes its JSON.

A process of its own begins in ``bench.__main__``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from feeder.process.program import run_guarded
from feeder.process.stop_signals import StopSignals

from . import compare
from .chaos import run as chaos
from .cluster import run as cluster
from .compare import Comparison
from .data import synthetic
from .gpu import run as gpu
from .micro import decode, likeness, loss, normalise, resize
from .pack import run as pack
from .plots import draw as plots
from .report import JudgedReport, Report
from .rivals import run as rivals
from .rivals import setup
from .soak import run as soak
from .stream import ablate, eyes, links
from .stream import run as stream


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="feeder-bench", description="Measure how fast batches are made and delivered here."
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    add = benches.add_parser("decode", help="one core: each stage, and the whole sample")
    _add_shared(add, images=256, rounds=7)
    decode.add_arguments(add)
    _add_plot(add)
    add.set_defaults(run=decode.run)
    add = benches.add_parser("stream", help="the daemon and its clients, over ipc and tcp")
    _add_shared(add, images=1024, rounds=5)
    _add_number(add, "--batches", 5, "batches of 256 images in a round")
    _add_number(add, "--idle", 3.0, "seconds to watch the idle daemon")
    _add_number(add, "--clients", 4, "clients at a time, at most")
    add.add_argument(
        "--calls", action="store_true", help="count Python calls of a batch and a Hello, no times"
    )
    _add_plot(add)
    add.set_defaults(run=stream.run)
    add = benches.add_parser("ablate", help="what each optimisation is worth, one by one")
    _add_dataset(add, images=512)
    _add_number(add, "--rounds", 9, "rounds to take the median of; with fewer than 5, all is noise")
    _add_number(add, "--batches", 4, f"batches of {ablate.BATCH_SIZE} images in a round")
    _add_plot(add)
    add.set_defaults(run=ablate.run)
    add = benches.add_parser("eyes", help="what scrapes, status --watch and idle connections cost")
    _add_dataset(add, images=512)
    _add_number(add, "--rounds", 15, "rounds to take the median of")
    _add_number(add, "--batches", 24, f"batches of {eyes.BATCH_SIZE} images in a turn")
    _add_number(add, "--idle", 30.0, "seconds to watch the idle daemon")
    add.set_defaults(run=eyes.run)
    add = benches.add_parser("links", help="what a list of thousands of feeders costs a client")
    _add_number(add, "--feeders", 2048, "stand-ins on the list")
    _add_number(add, "--seconds", 20.0, "seconds a row")
    _add_number(add, "--rate", 10.0, "batches that the client takes in a second")
    _add_json(add)
    add.set_defaults(run=links.run)
    add = benches.add_parser(
        "soak", help="stream while clients come and go; does it stay as it was?"
    )
    _add_dataset(add, images=1024)
    _add_core(add)
    _add_number(add, "--minutes", 5.0, "minutes to stream")
    _add_number(add, "--every", 5.0, "seconds between two samples")
    _add_number(add, "--restart", 10.0, "seconds between restarts of clients")
    _add_number(add, "--lease", 5.0, "seconds of silence after which the daemon ends a session")
    _add_number(add, "--clients", 4, "clients at a time, alternately over ipc and tcp")
    _add_number(add, "--batch-size", 128, "images in a batch")
    _add_plot(add)
    add.set_defaults(run=soak.run)
    add = benches.add_parser(
        "gpu", help="is this device fed as promised? normalising, copies, a fed step"
    )
    gpu.add_arguments(add)
    add.set_defaults(run=gpu.run)
    add = benches.add_parser("chaos", help="break things at random; does a client notice?")
    _add_dataset(add, images=1024)
    _add_number(add, "--minutes", 2.0, "minutes of faults")
    _add_number(add, "--calm", 20.0, "seconds without faults before them, and after them")
    _add_number(add, "--every", 4.0, "seconds from one fault to the next")
    add.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the order of faults (default: 0)"
    )
    _add_number(add, "--nodes", 2, "feeders, of one node process with one worker each")
    _add_number(add, "--clients", 2, "ranks, alternately over ipc and over tcp behind a proxy")
    _add_number(add, "--batch-size", 64, "images in a batch")
    _add_number(add, "--image-size", 224, "side of an image in pixels")
    add.set_defaults(run=chaos.run)
    add = benches.add_parser(
        "cluster", help="a model of many hosts: how many a job takes, and what a loss costs"
    )
    cluster.add_arguments(add)
    _add_plot(add)
    add.set_defaults(run=cluster.run)
    add = benches.add_parser("loaders", help="what a loader costs a training step; torch and numpy")
    _add_shared(add, images=1024, rounds=5)
    _add_number(add, "--steps", 4, "training steps of each kind in a round")
    add.set_defaults(run=_run_loaders)
    add = benches.add_parser(
        "training-step", help="a training step's memory and speed, by ways to need less memory"
    )
    add.add_argument("--model", default="resnet50", metavar="NAME", help="a ResNet (resnet50)")
    _add_number(add, "--batch", 16, "images in a batch, a multiple of 4")
    _add_number(add, "--image-size", 224, "side of an image in pixels")
    _add_number(add, "--rounds", 5, "rounds to take the median of")
    _add_json(add)
    _add_core(add)
    add.set_defaults(run=_run_training_step)
    add = benches.add_parser("resume", help="a loader's state, and how fast a resumed one begins")
    _add_shared(add, images=512, rounds=15)
    add.set_defaults(run=_run_resume)
    add = benches.add_parser("compare", help="what changed between two runs, with the noise")
    add.add_argument("before", type=Path, metavar="A.json", help="what --json wrote before")
    add.add_argument("after", type=Path, metavar="B.json", help="what --json wrote after")
    add.set_defaults(run=compare.run)
    add = benches.add_parser("peers", help="Feeder and other loaders, doing the same work")
    _add_dataset(add, images=4096, name="SRC", what="folder of classes with JPEGs")
    _add_number(add, "--rounds", 5, "rounds to take the median of")
    _add_number(add, "--batches", 8, f"batches of {rivals.BATCH_SIZE} images in a turn")
    _add_number(add, "--deadline", 180.0, "seconds that a contender has to start, and for a turn")
    _add_core(add)
    rivals.add_arguments(add)
    _add_plot(add)
    add.set_defaults(run=rivals.run)
    add = benches.add_parser("peers-setup", help="make the other loaders' environments")
    setup.add_arguments(add)
    add.set_defaults(run=setup.run)
    add = benches.add_parser("resize", help="resizing alone: each version that this CPU runs")
    _add_number(add, "--crops", 256, "crops in a round")
    _add_number(add, "--rounds", 7, "rounds to take the median of")
    _add_json(add)
    _add_core(add)
    add.set_defaults(run=resize.run)
    add = benches.add_parser("normalise", help="normalising a batch on a CPU, beside copying it")
    _add_number(add, "--images", 256, "images in a batch")
    _add_number(add, "--rounds", 9, "rounds to take the median of")
    _add_json(add)
    _add_core(add)
    add.set_defaults(run=normalise.run)
    add = benches.add_parser("likeness", help="how closely synthetic images decode like real ones")
    add.add_argument("source", type=Path, metavar="SRC", help="folder of class folders")
    _add_number(add, "--images", 600, "images to measure with, at most")
    _add_number(add, "--rounds", 7, "rounds to take the median of")
    _add_json(add)
    _add_core(add)
    add.set_defaults(run=likeness.run)
    add = benches.add_parser("loss", help="packing with loss: size, speed and PSNR, by option")
    _add_dataset(add, images=512, name="SRC", what="folder of class folders")
    _add_number(add, "--rounds", 7, "rounds to take the median of")
    _add_core(add)
    add.set_defaults(run=loss.run)
    add = benches.add_parser("pack", help="packing from each kind of source; others' writers")
    _add_dataset(add, images=2000, name="SRC", what="folder of class folders")
    _add_number(add, "--rounds", 5, "rounds to take the median of")
    _add_number(add, "--deadline", 600.0, "seconds that another format's writer has")
    _add_core(add)
    pack.add_arguments(add)
    add.set_defaults(run=pack.run)
    add = benches.add_parser("synthetic", help="write synthetic ImageNet, as folders of JPEGs")
    synthetic.add_arguments(add)
    add.set_defaults(run=synthetic.run)
    return parser


def _run_loaders(arguments: argparse.Namespace) -> Report:
    from .stream import loaders  # with torch, as below

    return loaders.run(arguments)


def _run_training_step(arguments: argparse.Namespace) -> Report:
    from .micro import training_step  # with torch, as below

    return training_step.run(arguments)


def _run_resume(arguments: argparse.Namespace) -> Report:
    from .stream import resume  # with torch, which takes seconds that no other bench needs

    return resume.run(arguments)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the results there: .png or .svg"
    )


def _add_shared(parser: argparse.ArgumentParser, *, images: int, rounds: int) -> None:
    _add_dataset(parser, images=images)
    _add_number(parser, "--rounds", rounds, "rounds to take the median of")
    _add_core(parser)


def _add_dataset(
    parser: argparse.ArgumentParser, *, images: int, name: str = "DST", what: str = "packed dataset"
) -> None:
    parser.add_argument(
        "dataset",
        type=Path,
        nargs="?",
        metavar=name,
        help=f"{what} (default: synthetic ImageNet, made for the run)",
    )
    _add_number(parser, "--images", images, "images to measure with, or to make")
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")


def _add_core(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--core",
        type=int,
        metavar="C",
        help="core that does the decoding (default: the first usable)",
    )


def _add_number(
    parser: argparse.ArgumentParser, option: str, default: int | float, what: str
) -> None:
    """Add an option that takes whole numbers where its default is one, else times."""
    parser.add_argument(
        option,
        type=_positive if isinstance(default, int) else _time,
        default=default,
        metavar="N" if isinstance(default, int) else "T",
        help=f"{what} (default: {default:g})",
    )


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100000")
    return value


def main(argv: Sequence[str]) -> int:
    """Run one bench and return the exit status (as ``feeder`` has them)."""
    return run_guarded("feeder-bench", lambda: run(argv))


def run(argv: Sequence[str]) -> int:
    """Run one bench and return the exit status; raises what goes wrong."""
    arguments = build_parser().parse_args(argv)
    measure: Callable[[argparse.Namespace], Report | Comparison | str] = arguments.run
    with StopSignals() as signals:
        try:
            if getattr(arguments, "plot", None) is not None:
                plots.check_installed()
            report = measure(arguments)
            try:
                text = report if isinstance(report, str) else report.to_text()
                print(text, end="", flush=True)
            finally:  # keep what may have taken hours to measure, even if printing fails
                _write_files(report, arguments)
        except KeyboardInterrupt:
            sys.stderr.write("feeder-bench: interrupted\n")
            return signals.exit_status
    if isinstance(report, JudgedReport) and report.failures:
        for reason in report.failures:
            sys.stderr.write(f"feeder-bench: failed: {reason}\n")
        return 1
    return 0


def _write_files(report: Report | Comparison | str, arguments: argparse.Namespace) -> None:
    """Write the results and their picture to where the command line asks for them."""
    if not isinstance(report, Report):
        return
    if arguments.json is not None:
        report.write_json(arguments.json)
    if getattr(arguments, "plot", None) is not None:
        plots.write_plot(report, arguments.plot)
