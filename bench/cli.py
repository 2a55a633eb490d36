"""The ``feeder-bench`` command: runs one bench, prints its table, writes its JSON.

A process of its own begins in ``bench.__main__``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError
from feeder.process.program import run_guarded
from feeder.process.stop_signals import StopSignals

from . import compare
from .chaos import run as chaos
from .cluster import run as cluster
from .data import synthetic
from .gpu import run as gpu
from .micro import decode, likeness, loss, normalise, resize
from .pack import run as pack
from .plots import draw as plots
from .report import JudgedReport, Report
from .rivals import run as rivals
from .rivals import setup
from .stream import ablate, eyes, links
from .stream import run as stream

_Outcome = Report | str

_NUMBERS: Final = {
    "batch": "images in a batch, a multiple of 4",
    "batch-size": "images in a batch",
    "stream batch-size": "images in a batch, for --soak",
    "batches": "batches in a round",
    "stream batches": "batches of 256 images in a round",
    "calm": "seconds without faults before them, and after them",
    "clients": "clients at a time, at most",
    "chaos clients": "ranks, alternately over ipc and over tcp behind a proxy",
    "crops": "crops in a round",
    "deadline": "seconds that a contender has to start, and for a turn",
    "pack deadline": "seconds that another format's writer has",
    "every": "seconds from one fault to the next",
    "stream every": "seconds between two samples, for --soak",
    "feeders": "stand-ins on the list",
    "idle": "seconds to watch the idle daemon",
    "image-size": "side of an image in pixels",
    "images": "images to measure with, or to make",
    "normalise images": "images in a batch",
    "lease": "seconds of silence after which the daemon ends a session, for --soak",
    "minutes": "minutes of faults",
    "nodes": "feeders, of one node process with one worker each",
    "rate": "batches that the client takes in a second",
    "restart": "seconds between restarts of clients, for --soak",
    "rounds": "rounds to take the median of; with fewer than 5, all is noise",
    "seconds": "seconds a row",
    "steps": "training steps of each kind in a round",
}
"""What an option with a number is, by its name, or by bench and name."""

_SOAK: Final = {"batch_size": 128, "every": 5.0, "restart": 10.0, "lease": 5.0}
"""Options that `stream` has for --soak alone, with their defaults."""

_Option = Callable[[argparse.ArgumentParser], object]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="feeder-bench", description="Measure how fast batches are made and delivered here."
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")

    def add(
        name: str,
        run: Callable[[argparse.Namespace], _Outcome],
        what: str,
        options: Sequence[_Option] = (),
        **numbers: float,
    ) -> None:
        """Add a bench with ``options``, and with the defaults of those that _NUMBERS explains."""
        bench = benches.add_parser(name, help=what)
        bench.set_defaults(run=run)
        for option in options:
            option(bench)
        for key, default in numbers.items():
            option_name, is_whole = key.replace("_", "-"), isinstance(default, int)
            meaning = _NUMBERS.get(f"{name} {option_name}") or _NUMBERS[option_name]
            bench.add_argument(
                f"--{option_name}",
                type=_positive if is_whole else _time,
                default=default,
                metavar="N" if is_whole else "T",
                help=f"{meaning} (default: {default:g})",
            )

    what = "one core: each stage, and the whole sample"
    options = [_dataset, _core, _plot, decode.add_arguments]
    add("decode", decode.run, what, options, images=256, rounds=7)
    what = "the daemon and its clients, over ipc and tcp; --soak: for hours, as clients come and go"
    options = [_dataset, _core, _plot, _modes]
    sizes = {"images": 1024, "rounds": 5, "batches": 5, "clients": 4, "idle": 3.0}
    add("stream", stream.run, what, options, **sizes, **_SOAK)
    what = "what each optimisation is worth, one by one"
    add("ablate", ablate.run, what, [_dataset, _plot], images=512, rounds=9, batches=4)
    what = "what scrapes, status --watch and idle connections cost"
    add("eyes", eyes.run, what, [_dataset], images=512, rounds=15, batches=24, idle=30.0)
    what = "what a list of thousands of feeders costs a client"
    add("links", links.run, what, [_json], feeders=2048, seconds=20.0, rate=10.0)
    what = "is this device fed as promised? normalising, copies, a fed step"
    add("gpu", gpu.run, what, [_dataset, gpu.add_arguments])
    what = "break things at random; does a client notice?"
    options = [_dataset, _seed]
    sizes = {"images": 1024, "nodes": 2, "clients": 2, "batch_size": 64, "image_size": 224}
    add("chaos", chaos.run, what, options, minutes=2.0, calm=20.0, every=4.0, **sizes)
    what = "a model of many hosts: how many a job takes, and what a loss costs"
    add("cluster", cluster.run, what, [_dataset, cluster.add_arguments, _plot])
    what = "what a loader costs a training step; torch and numpy"
    add("loaders", _run_with_torch, what, [_dataset, _core], images=1024, rounds=5, steps=4)
    what = "a training step's memory and speed, by ways to need less memory"
    options = [_json, _core, _model]
    add("training-step", _run_with_torch, what, options, batch=16, image_size=224, rounds=5)
    what = "a loader's state, and how fast a resumed one begins"
    add("resume", _run_with_torch, what, [_dataset, _core], images=512, rounds=15)
    add("compare", compare.run, "what changed between two runs, with the noise", [_two_files])
    what = "Feeder and other loaders, doing the same work"
    options = [_source, _core, _plot, rivals.add_arguments]
    add("peers", rivals.run, what, options, images=4096, rounds=5, batches=8, deadline=180.0)
    add("peers-setup", setup.run, "make the other loaders' environments", [setup.add_arguments])
    what = "resizing alone: each version that this CPU runs"
    add("resize", resize.run, what, [_json, _core], crops=256, rounds=7)
    what = "normalising a batch on a CPU, beside copying it"
    add("normalise", normalise.run, what, [_json, _core], images=256, rounds=9)
    what = "how closely synthetic images decode like real ones"
    add("likeness", likeness.run, what, [_real_source, _json, _core], images=600, rounds=7)
    what = "packing with loss: size, speed and PSNR, by option"
    add("loss", loss.run, what, [_source, _core], images=512, rounds=7)
    what = "packing from each kind of source; others' writers"
    options = [_source, _core, pack.add_arguments]
    add("pack", pack.run, what, options, images=2000, rounds=5, deadline=600.0)
    what = "write synthetic ImageNet, as folders of JPEGs"
    add("synthetic", synthetic.run, what, [synthetic.add_arguments])
    return parser


def _run_with_torch(arguments: argparse.Namespace) -> Report:
    """Run a bench whose import takes seconds that no other bench needs."""
    from .micro import training_step
    from .stream import loaders, resume

    runs = {"loaders": loaders.run, "training-step": training_step.run, "resume": resume.run}
    return runs[arguments.bench](arguments)


def _dataset(
    parser: argparse.ArgumentParser, name: str = "DST", what: str = "packed dataset"
) -> None:
    parser.add_argument(
        "dataset",
        type=Path,
        nargs="?",
        metavar=name,
        help=f"{what} (default: synthetic ImageNet, made for the run)",
    )
    _json(parser)


def _source(parser: argparse.ArgumentParser) -> None:
    _dataset(parser, "SRC", "folder of classes with images")


def _real_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="SRC", help="folder of classes with images")


def _two_files(parser: argparse.ArgumentParser) -> None:
    for name in "A", "B":
        parser.add_argument(name, type=Path, metavar=f"{name}.json", help="what --json wrote")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")


def _plot(parser: argparse.ArgumentParser) -> None:
    what = "draw the results there: .png or .svg"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=what)


def _core(parser: argparse.ArgumentParser) -> None:
    what = "core that does the decoding (default: the first usable)"
    parser.add_argument("--core", type=int, metavar="C", help=what)


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="resnet50", metavar="NAME", help="a ResNet (resnet50)")


def _modes(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_mutually_exclusive_group()
    what = "count Python calls of a batch and a Hello, no times"
    modes.add_argument("--calls", action="store_true", help=what)
    what = "stream for so long while clients come and go: does it stay as it was?"
    modes.add_argument("--soak", type=_time, metavar="MINUTES", help=what)


def _seed(parser: argparse.ArgumentParser) -> None:
    what = "seed of the order of faults (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=what)


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
    if argv[:1] == ["soak"]:
        raise ConfigError("soak is a mode of stream: type `feeder-bench stream --soak MINUTES`")
    arguments = build_parser().parse_args(argv)
    if argv[:1] == ["stream"] and arguments.soak is None:
        for name, default in _SOAK.items():
            if getattr(arguments, name) != default:
                raise ConfigError(f"--{name.replace('_', '-')} is for --soak MINUTES: give both")
    with StopSignals() as signals:
        try:
            if getattr(arguments, "plot", None) is not None:
                plots.check_installed()
            outcome: _Outcome = arguments.run(arguments)
            try:
                text = outcome if isinstance(outcome, str) else outcome.to_text()
                print(text, end="", flush=True)
            finally:  # keep what may have taken hours to measure, even if printing fails
                if isinstance(outcome, Report):
                    if arguments.json is not None:
                        outcome.write_json(arguments.json)
                    if getattr(arguments, "plot", None) is not None:
                        plots.write_plot(outcome, arguments.plot)
        except KeyboardInterrupt:
            sys.stderr.write("feeder-bench: interrupted\n")
            return signals.exit_status
    failures = outcome.failures if isinstance(outcome, JudgedReport) else ()
    for reason in failures:
        sys.stderr.write(f"feeder-bench: failed: {reason}\n")
    return 1 if failures else 0
