"""``feeder-bench peers``: the same work by Feeder and by other widely used loaders.

Same files, RandomResizedCrop(0.08–1, 3/4–4/3) to 224 px, horizontal flips, bytes out, batches of
128. Each contender runs in its own process and virtual environment, on the cores given and with no
more threads than cores. All are started and warmed up first; then they take turns, beginning with a
different one in each round; none works outside its turn. A rival that is not installed or fails has
a row with the reason.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import format_cpulist
from feeder.pack.progress import ProgressLine

from ..machine import choose_core, describe_machine
from ..report import Result
from .catalogue import CONTENDERS, Contender, default_folder, interpreter, variables
from .conclusion import ALL_CORES
from .material import RivalMaterial, prepare_material
from .process import Introduction, RivalFailure, RivalProcess, Turn
from .report import CPU_RATE, ContenderNotes, RivalsReport, build_results
from .setup import why_missing

BATCH_SIZE: Final = 128
_WARM_UP_BATCHES: Final = 8
"""At least: batches that a contender has prefetched during its start must not count."""
_MEAN_TOLERANCE: Final = 30.0
"""Levels: the means of two batches of 128 photographs differ by less; black or noise does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalsOptions:
    """The contenders, for how long they are measured, and where."""

    contenders: Sequence[Contender]
    folder: Path
    """Of the rivals' environments."""
    rounds: int
    batches: int
    """In a turn."""
    deadline_s: float
    """For a contender's start, and for each of its turns."""
    cores: Mapping[str, frozenset[int]]
    """The sets of cores to measure on, by the suffix of their rows: "" for one, ALL_CORES."""


def measure_rivals(material: RivalMaterial, options: RivalsOptions) -> RivalsReport:
    """Measure all contenders; ResourceError when one of our own fails."""
    machine = describe_machine()
    machine["cores_used"] = {
        name: format_cpulist(options.cores[suffix])
        for suffix, name in (("", "one core"), (ALL_CORES, "all cores"))
        if suffix in options.cores
    }
    machine["images"] = {
        "read": material.images,
        "distinct": material.distinct,
        "left out": material.left_out,
        "bytes each": round(material.mean_bytes),
    }
    results: list[Result] = []
    notes: list[ContenderNotes] = []
    for suffix, cores in options.cores.items():
        race = _Race(material, options, cores, suffix)
        turns = race.run()
        notes += race.notes()
        rates = {name: [turn.rate for turn in taken] for name, taken in turns.items()}
        results += build_results(rates, race.notes())
        rates = {name: [turn.cpu_rate for turn in taken] for name, taken in turns.items()}
        results += build_results(rates, race.notes(), unit=CPU_RATE)
    measured = {
        "rounds": options.rounds,
        "batches": options.batches,
        "batch size": BATCH_SIZE,
    }
    return RivalsReport(
        bench="peers", machine=machine, measured=measured, results=results, contenders=notes
    )


class _Race:
    """All contenders on one set of cores, from their start to their rates."""

    def __init__(
        self, material: RivalMaterial, options: RivalsOptions, cores: frozenset[int], suffix: str
    ) -> None:
        self._material = material
        self._options = options
        self._cores = cores
        self._contenders = {
            f"{contender.name}{suffix}": contender
            for contender in options.contenders
            if contender.all_cores or not suffix
        }
        self._missing: dict[str, str] = {}
        self._introductions: dict[str, Introduction] = {}
        self._running: dict[str, RivalProcess] = {}

    def run(self) -> dict[str, list[Turn]]:
        """Return the turns, one a round, of the contenders that did not fail."""
        turns: dict[str, list[Turn]] = {name: [] for name in self._contenders}
        with ExitStack() as processes:
            self._each("starting", lambda name: self._start(name, processes))
            images = self._options.batches * BATCH_SIZE
            warm_up = max(images, _WARM_UP_BATCHES * BATCH_SIZE)
            self._each("warming up", lambda name: self._turn(name, warm_up))
            for number in range(self._options.rounds):
                self._each(
                    f"round {number + 1} of {self._options.rounds},",
                    lambda name: turns[name].append(self._turn(name, images)),
                    first=number,
                )
            for process in self._running.values():
                process.dismiss()  # all at once: some libraries take seconds to end
        return {name: taken for name, taken in turns.items() if name in self._running}

    def notes(self) -> list[ContenderNotes]:
        """Return the notes on each contender, whether it was measured or not."""
        return [
            ContenderNotes(
                name=name,
                versions=self._introductions[name].versions if name in self._running else {},
                quality=asdict(contender.quality),
                antialiased=contender.antialiased,
                ours=contender.environment is None,
                missing=self._missing.get(name),
            )
            for name, contender in self._contenders.items()
        ]

    def _each(self, verb: str, act: Callable[[str], object], *, first: int = 0) -> None:
        """Call ``act`` with each remaining contender in turn, beginning with number ``first``."""
        names = [name for name in self._contenders if name not in self._missing]
        progress = ProgressLine(sys.stderr)
        progress.begin(verb, "contenders", len(names))
        for step in range(len(names)):
            name = names[(first + step) % len(names)]
            try:
                act(name)
            except RivalFailure as failure:
                self._give_up(name, str(failure))
            progress.add(1)
        progress.end()

    def _give_up(self, name: str, reason: str) -> None:
        if self._contenders[name].environment is None:
            raise ResourceError(f"our own contender {name} {reason}: there is no baseline")
        self._missing[name] = reason
        if name in self._running:
            self._running.pop(name).close()

    def _start(self, name: str, processes: ExitStack) -> None:
        contender = self._contenders[name]
        if contender.environment is not None:
            reason = why_missing(contender.environment, self._options.folder)
            if reason is not None:
                raise RivalFailure(reason)
        python = interpreter(contender, self._options.folder, sys.executable)
        material = self._material
        command = [str(python), str(contender.script), str(material.listing), str(material.folder)]
        command += [str(BATCH_SIZE), str(len(self._cores)), contender.variant]
        process = RivalProcess(
            [*command, str(material.dataset)],
            cores=self._cores,
            variables=variables(len(self._cores)),
            log=material.folder / f"{name.replace('/', '-')}.log",
            works_ahead=contender.works_ahead,
            deadline_s=self._options.deadline_s,
        )
        self._running[name] = processes.enter_context(process)
        self._introductions[name] = introduction = process.introduce()
        ours = next(iter(self._introductions.values()))
        if abs(introduction.mean - ours.mean) > _MEAN_TOLERANCE:
            raise RivalFailure(
                f"does not deliver these images: its mean level is {introduction.mean:.0f}, ours "
                f"{ours.mean:.0f}"
            )

    def _turn(self, name: str, images: int) -> Turn:
        return self._running[name].take_turn(images)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    parser.add_argument(
        "--cores",
        choices=("one", "all", "both"),
        default="both",
        help="measure on one core, on all, or first on one and then on all (default: both)",
    )
    parser.add_argument(
        "--only",
        metavar="NAME,…",
        help="measure Feeder and these rivals, e.g. tfdata,dali (default: all)",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=default_folder(),
        metavar="DIR",
        help="where `make peers` has put the environments (default: .peers of the project)",
    )


def choose_contenders(only: str | None) -> list[Contender]:
    """Return our own contenders and the named rivals, or all; ConfigError for an unknown name."""
    named = {contender.name.removeprefix("peers/"): contender for contender in CONTENDERS}
    if only is None:
        return list(CONTENDERS)
    asked = only.split(",")
    for name in asked:
        if name not in named:
            raise ConfigError(f"--only {name} is no contender: name some of {', '.join(named)}")
    return [each for name, each in named.items() if name in asked or each.environment is None]


def run(arguments: argparse.Namespace) -> RivalsReport:
    """Do what the command line asks."""
    one = frozenset({choose_core(arguments.core)})
    every = frozenset(os.sched_getaffinity(0))
    cores = {"": one, ALL_CORES: every}
    if arguments.cores == "one" or (arguments.cores == "both" and len(every) == 1):
        del cores[ALL_CORES]
    elif arguments.cores == "all":
        del cores[""]
    options = RivalsOptions(
        contenders=choose_contenders(arguments.only),
        folder=arguments.environments.absolute(),
        rounds=arguments.rounds,
        batches=arguments.batches,
        deadline_s=arguments.deadline,
        cores=cores,
    )
    with prepare_material(arguments.dataset, images=arguments.images) as material:
        return measure_rivals(material, options)
