"""The ``feeder-bench`` command: runs one bench, prints its table, writes its JSON.

A process of its own begins in ``bench.__main__``.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from feeder.errors import ConfigError
from feeder.jpeg.decoders import DECODERS
from feeder.process.program import run_guarded
from feeder.process.stop_signals import StopSignals

from . import compare
from .chaos import run as chaos
from .cluster import run as cluster
from .data import synthetic
from .data.synthetic_image import MAX_CLASSES
from .gpu import run as gpu
from .micro import decode, kernels, likeness, loss, order
from .pack import run as pack
from .plots import draw as plots
from .report import JudgedReport, Report
from .rivals import run as rivals
from .rivals import setup
from .rivals.catalogue import DEFAULT_FOLDER
from .store import run as store
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
    "classes": f"classes to make, {MAX_CLASSES} at most",
    "clients": "clients at a time, at most",
    "chaos clients": "ranks, alternately over ipc and over tcp behind a proxy",
    "crops": "crops in a round",
    "deadline": "seconds that a contender has to start, and for a turn",
    "pack deadline": "seconds that another format's writer has",
    "epochs": "epochs in which images meet others",
    "every": "seconds from one fault to the next",
    "stream every": "seconds between two samples, for --soak",
    "delay": "seconds that the store takes for each request",
    "feeders": "stand-ins on the list",
    "gib": "GiB of the synthetic dataset",
    "idle": "seconds to watch the idle daemon",
    "image-size": "side of an image in pixels",
    "images": "images to measure with, or to make",
    "normalise images": "images in a batch",
    "jobs": "processes",
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

_SOAK: Final = {"batch_size": 128, "every": 5.0, "restart": 10.0, "lease": 5.0}  # of that alone
_MOST: Final = 1e9

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "json": {"metavar": "FILE", "type": Path, "help": "write the results there too"},
    "plot": {"metavar": "FILE", "type": Path, "help": "draw the results there: .png or .svg"},
    "core": {
        "metavar": "C",
        "type": int,
        "help": "core that does the decoding (default: the first usable)",
    },
    "model": {"metavar": "NAME", "default": "resnet50", "help": "a ResNet (resnet50)"},
    "decoder": {
        "choices": DECODERS,
        "default": "own",
        "help": "decoder of the samples in rows that do not name one (default: own)",
    },
    "all": {"action": "store_true", "help": "print all rows, not only those of the conclusion"},
    "seed": {
        "metavar": "N",
        "type": int,
        "default": 0,
        "help": "seed of the order of faults, or of the images (default: 0)",
    },
    "cores": {
        "choices": ("one", "all", "both"),
        "default": "both",
        "help": "measure on one core, on all, or first on one and then on all (default: both)",
    },
    "only": {
        "metavar": "NAME,…",
        "help": "measure Feeder and these rivals, e.g. tfdata,dali (default: all)",
    },
    "kinds": {
        "metavar": "NAME,…",
        "help": f"measure the folder and these: {', '.join(pack.NAMES)} (default: all)",
    },
    "parts": {
        "metavar": "NAME,…",
        "help": f"measure these of {', '.join(store.PARTS)} (default: all)",
    },
    "store": {"action": "store_true", "help": "the dataset is in a store, which has faults, too"},
    "mix": {"action": "store_true", "help": "a weighted mix of its halves, several crops a sample"},
    "quick": {"action": "store_true", "help": "a quarter of the dataset, one round"},
    "environments": {
        "metavar": "DIR",
        "type": Path,
        "default": DEFAULT_FOLDER,
        "help": "where `make peers` has put the environments (default: .peers of the project)",
    },
}
"""The other options that a bench can have, by name, as argparse takes them."""

_INPUTS: Final[dict[str, dict[str, Any]]] = {
    "[DST]": {
        "nargs": "?",
        "help": "packed dataset (default: synthetic ImageNet, made for the run)",
    },
    "[SRC]": {
        "nargs": "?",
        "help": "folder of classes with images (default: synthetic ImageNet, made for the run)",
    },
    "SRC": {"help": "folder of classes with images"},
    "DST": {"help": "folder to make"},
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder-bench", description="Measure how fast batches are made and delivered here."
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")

    def add(
        name: str,
        run: Callable[[argparse.Namespace], _Outcome],
        takes: str,
        what: str,
        **numbers: float,
    ) -> argparse.ArgumentParser:
        """Add a bench that takes words of _INPUTS and _OPTIONS, and numbers with these defaults."""
        bench = benches.add_parser(name, help=what)
        bench.set_defaults(run=run)
        for word in takes.split():
            if word in _INPUTS:
                metavar = word.strip("[]")
                bench.add_argument("dataset", type=Path, metavar=metavar, **_INPUTS[word])
            else:
                bench.add_argument(f"--{word}", **_OPTIONS[word])
        for key, default in numbers.items():
            option, kind = key.replace("_", "-"), type(default)
            meaning = _NUMBERS.get(f"{name} {option}") or _NUMBERS[option]
            bench.add_argument(
                f"--{option}",
                type=partial(_number, kind),
                default=default,
                metavar="N" if kind is int else "T",
                help=f"{meaning} (default: {default:g})",
            )
        return bench

    what = "one core: each stage, and the whole sample"
    takes = "[DST] json core plot"
    add("decode", decode.run, f"{takes} decoder all", what, images=256, rounds=7)
    what = "the daemon and its clients, over ipc and tcp; --soak: for hours, as clients come and go"
    sizes = {"images": 1024, "rounds": 5, "batches": 5, "clients": 4, "idle": 3.0}
    _add_modes(add("stream", stream.run, takes, what, **sizes, **_SOAK))
    what = "a dataset in an object store: warm and cold cache, first batch, epochs"
    sizes = {"gib": 4.0, "rounds": 5, "delay": 0.0}
    add("store", store.run, "[DST] json core parts quick", what, **sizes)
    what = "what each optimisation is worth, one by one"
    add("ablate", ablate.run, "[DST] json plot", what, images=512, rounds=9, batches=4)
    what = "what scrapes, status --watch and idle connections cost"
    add("eyes", eyes.run, "[DST] json", what, images=512, rounds=15, batches=24, idle=30.0)
    what = "what a list of thousands of feeders costs a client"
    add("links", links.run, "json", what, feeders=2048, seconds=20.0, rate=10.0)
    what = "is this device fed as promised? normalising, copies, a fed step"
    gpu.add_arguments(add("gpu", gpu.run, "[DST] json", what))
    what = "break things at random; does a client notice?"
    sizes = {"images": 1024, "nodes": 2, "clients": 2, "batch_size": 64, "image_size": 224}
    times = {"minutes": 2.0, "calm": 20.0, "every": 4.0}
    add("chaos", chaos.run, "[DST] json seed store mix", what, **times, **sizes)
    what = "a model of many hosts: how many a job takes, and what a loss costs"
    cluster.add_arguments(add("cluster", cluster.run, "[DST] json plot", what))
    what = "what a loader costs a training step; torch and numpy"
    add("loaders", _run_with_torch, "[DST] json core", what, images=1024, rounds=5, steps=4)
    what = "a training step's memory and speed, by ways to need less memory"
    takes = "json core model"
    add("training-step", _run_with_torch, takes, what, batch=16, image_size=224, rounds=5)
    what = "a loader's state, and how fast a resumed one begins"
    add("resume", _run_with_torch, "[DST] json core", what, images=512, rounds=15)
    files = add("compare", compare.run, "", "what changed between two runs, with the noise")
    for name in "A", "B":
        files.add_argument(name, type=Path, metavar=f"{name}.json", help="what --json wrote")
    what = "Feeder and other loaders, doing the same work"
    sizes = {"images": 4096, "rounds": 5, "batches": 8, "deadline": 180.0}
    takes = "[SRC] json core plot cores only environments"
    add("peers", rivals.run, takes, what, **sizes)
    setup.add_arguments(add("peers-setup", setup.run, "", "make the other loaders' environments"))
    what = "the order of batches: how it mixes, what it holds, how evenly hosts own it"
    add("order", order.run, "json core", what, batch_size=256, epochs=8, rounds=7)
    what = "resizing alone: each version that this CPU runs"
    add("resize", kernels.run_resize, "json core", what, crops=256, rounds=7)
    what = "normalising a batch on a CPU, beside copying it"
    add("normalise", kernels.run_normalise, "json core", what, images=256, rounds=9)
    what = "how closely synthetic images decode like real ones"
    add("likeness", likeness.run, "SRC json core", what, images=600, rounds=7)
    what = "packing with loss: size, speed and PSNR, by option"
    add("loss", loss.run, "[SRC] json core", what, images=512, rounds=7)
    what = "packing from each kind of source; others' writers"
    sizes = {"images": 2000, "rounds": 5, "deadline": 600.0}
    add("pack", pack.run, "[SRC] json core kinds environments", what, **sizes)
    what = "write synthetic ImageNet, as folders of JPEGs"
    jobs = len(os.sched_getaffinity(0))
    add("synthetic", synthetic.run, "DST seed", what, images=1000, classes=10, jobs=jobs)
    return parser


def _run_with_torch(arguments: argparse.Namespace) -> Report:
    """Run a bench whose import takes seconds that no other bench needs."""
    from .micro import training_step
    from .stream import loaders

    runs = {
        "loaders": loaders.run,
        "resume": loaders.run_resume,
        "training-step": training_step.run,
    }
    return runs[arguments.bench](arguments)


def _add_modes(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_mutually_exclusive_group()
    what = "count Python calls of a batch and a Hello, no times"
    modes.add_argument("--calls", action="store_true", help=what)
    what = "whole epochs from a disk, with memory for a quarter of the dataset; no other rows"
    modes.add_argument("--cold", action="store_true", help=what)
    what = "stream for so long while clients come and go: does it stay as it was?"
    modes.add_argument("--soak", type=partial(_number, float), metavar="MINUTES", help=what)


def _number(kind: type[float], text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        whole = "whole " * (kind is int)
        raise argparse.ArgumentTypeError(f"{text!r} is no {whole}number") from None
    if not 0 < value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, and {_MOST:g} at most")
    return value


def main(argv: Sequence[str]) -> int:
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
