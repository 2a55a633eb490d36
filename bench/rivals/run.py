"""``feeder-bench peers``: the same work by Feeder and by other widely used loaders.

Same files, RandomResizedCrop(0.08–1, 3/4–4/3) to 224 px, horizontal flips, bytes out, batches of
128. Each contender runs in its own process and virtual environment, on the cores given and with no
more threads than cores. All are started and warmed up first; then they take turns, beginning with a
different one in each round; none works outside its turn. A rival that is not installed or fails has
a row with the reason.

A small sample is repeated under different names until there are enough images for shuffling to
matter: as links for loaders that read files, packed repeatedly for us, so that no contender reads
from a smaller set. Files that not every contender can read (other formats, CMYK, broken files) are
left out and counted: the bench compares speed.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image

from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import format_cpulist

from ..data.material import choose_images, pack, source_or_synthetic
from ..machine import choose_core, describe_machine
from ..report import RATE, Result
from .catalogue import CONTENDERS, SCRIPTS, Contender, interpreter
from .process import Introduction, RivalFailure, RivalProcess, take_turns
from .report import ALL_CORES, CPU_RATE, ContenderNotes, RivalsReport, build_results
from .setup import why_missing

BATCH_SIZE: Final = 128
_SYNTHETIC_IMAGES: Final = 256  # few, because drawing an image takes longer than repeating one
_WARM_UP_BATCHES: Final = 8  # at least: those prefetched during the start must not count
_MEAN_TOLERANCE: Final = 30.0  # levels: batches of photographs differ by less, noise by more


class RivalMaterial(NamedTuple):
    """The images, all below ``folder``."""

    folder: Path
    listing: Path  # path, label, width and height of each image, between tabs
    dataset: Path  # the same images, packed
    images: int
    distinct: int
    left_out: int  # files of the source that not every contender can read
    mean_bytes: float


def run(arguments: argparse.Namespace) -> RivalsReport:
    """Measure all contenders; ResourceError when one of our own fails."""
    every = frozenset(os.sched_getaffinity(0))
    sets = {"": frozenset({choose_core(arguments.core)}), ALL_CORES: every}
    if arguments.cores == "one" or (arguments.cores == "both" and len(every) == 1):
        del sets[ALL_CORES]
    elif arguments.cores == "all":
        del sets[""]
    contenders = choose_contenders(arguments.only)
    with prepare_material(arguments.dataset, images=arguments.images) as material:
        machine = describe_machine() | {
            "cores_used": {
                "all cores" if suffix else "one core": format_cpulist(cores)
                for suffix, cores in sets.items()
            },
            "images": {
                "read": material.images,
                "distinct": material.distinct,
                "left out": material.left_out,
                "bytes each": round(material.mean_bytes),
            },
        }
        results: list[Result] = []
        notes: list[ContenderNotes] = []
        for suffix, cores in sets.items():
            rows = {
                f"{each.name}{suffix}": each for each in contenders if each.all_cores or not suffix
            }
            race = _Race(material, arguments, rows, cores)
            turns = race.run()
            notes += race.notes()
            for number, unit in enumerate((RATE, CPU_RATE)):
                rates = {name: [turn[number] for turn in taken] for name, taken in turns.items()}
                results += build_results(rates, race.notes(), unit=unit)
    measured = {"rounds": arguments.rounds, "batches": arguments.batches, "batch size": BATCH_SIZE}
    return RivalsReport(
        bench="peers", machine=machine, measured=measured, results=results, contenders=notes
    )


@dataclass(slots=True)
class _Race:
    """All contenders on one set of cores, from their start to their rates."""

    material: RivalMaterial
    arguments: argparse.Namespace
    contenders: Mapping[str, Contender]  # by their rows
    cores: frozenset[int]
    missing: dict[str, str] = field(default_factory=dict)
    introductions: dict[str, Introduction] = field(default_factory=dict)
    running: dict[str, RivalProcess] = field(default_factory=dict)

    def run(self) -> dict[str, list[tuple[float, float]]]:
        """Return the rates of each turn, one a round, of the contenders that did not fail."""
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in self.contenders}
        rounds = self.arguments.rounds
        images = self.arguments.batches * BATCH_SIZE
        with ExitStack() as processes:
            take_turns("starting", [*turns], partial(self._start, processes), self._give_up)
            warm_up = max(images, _WARM_UP_BATCHES * BATCH_SIZE)
            names, running = [*self.running], self.running
            take_turns("warming up", names, lambda n: running[n].take_turn(warm_up), self._give_up)
            for number in range(rounds):
                names = [*running]
                first = number % len(names)
                take_turns(
                    f"round {number + 1} of {rounds},",
                    names[first:] + names[:first],
                    lambda name: turns[name].append(running[name].take_turn(images)),
                    self._give_up,
                )
            for process in running.values():
                process.dismiss()  # all at once: some libraries take seconds to end
        return {name: turns[name] for name in running}

    def notes(self) -> list[ContenderNotes]:
        return [
            ContenderNotes(
                name=name,
                versions=self.introductions[name].versions if name in self.running else {},
                quality=contender.quality._asdict(),
                antialiased=contender.antialiased,
                ours=contender.environment is None,
                missing=self.missing.get(name),
            )
            for name, contender in self.contenders.items()
        ]

    def _give_up(self, name: str, reason: str) -> None:
        if self.contenders[name].environment is None:
            raise ResourceError(f"our own contender {name} {reason}: there is no baseline")
        self.missing[name] = reason
        if name in self.running:
            self.running.pop(name).close()

    def _start(self, processes: ExitStack, name: str) -> None:
        contender, folder = self.contenders[name], self.arguments.environments.absolute()
        environment, material = contender.environment, self.material
        if environment and (reason := why_missing(environment, folder)):
            raise RivalFailure(reason)
        process = RivalProcess(
            interpreter(environment, folder),
            SCRIPTS / contender.script,
            material.listing,
            {
                "folder": material.folder,
                "variant": contender.variant,
                "batch": BATCH_SIZE,
                "cores": len(self.cores),
                "dataset": material.dataset,
            },
            cores=self.cores,
            log=material.folder / f"{name.replace('/', '-')}.log",
            works_ahead=environment is not None,
            deadline_s=self.arguments.deadline,
        )
        self.running[name] = processes.enter_context(process)
        self.introductions[name] = introduction = process.introduce()
        ours = next(iter(self.introductions.values()))
        if abs(introduction.mean - ours.mean) > _MEAN_TOLERANCE:
            raise RivalFailure(
                f"does not deliver these images: its mean level is {introduction.mean:.0f}, ours "
                f"{ours.mean:.0f}"
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


@contextmanager
def prepare_material(source: Path | None, *, images: int) -> Iterator[RivalMaterial]:
    """Yield at least ``images`` images, of class folders or synthetic; DatasetError for none."""
    with (
        source_or_synthetic(source, images=min(images, _SYNTHETIC_IMAGES)) as given,
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as name,
    ):
        folder, what = Path(name), "JPEGs in class folders that every loader can read"
        chosen, _, left_out = choose_images(given, images, what, _readable_size)
        lines = []
        for number in range(-(-images // len(chosen)) * len(chosen)):
            path, label, (width, height) = chosen[number % len(chosen)]
            link = folder / "source" / f"{label:05}" / f"{number:07}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
            lines.append(f"{link}\t{label}\t{width}\t{height}\n")
        listing = folder / "images.tsv"
        listing.write_text("".join(lines), encoding="utf-8")
        yield RivalMaterial(
            folder=folder,
            listing=listing,
            dataset=pack(folder / "source", folder / "dataset"),
            images=len(lines),
            distinct=len(chosen),
            left_out=left_out,
            mean_bytes=sum(path.stat().st_size for path, *_ in chosen) / len(chosen),
        )


def _readable_size(path: Path) -> tuple[int, int] | None:
    """Return (width, height) of a whole RGB or grey JPEG, None for anything else."""
    try:
        with Image.open(path) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                return None
            image.load()
            return image.size
    except (OSError, SyntaxError, ValueError):  # Pillow's errors for files that are no images
        return None
