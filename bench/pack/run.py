"""``feeder-bench pack``: packing the same images from each kind of source, on one core.

The images are written once as each kind, then packed in turns by the real command, with one worker,
in rounds of random order. The first round is not counted. Before each turn what the turn before has
written is flushed to the disk, and the source is read once, as some systems evict what was not read
for a minute: all come from the page cache. Other formats' writers take turns in the same rounds
where ``make peers`` has made their environments.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from feeder.errors import ConfigError
from feeder.pack.progress import ProgressLine

from ..machine import choose_core, describe_machine
from ..rivals.catalogue import default_folder
from ..rivals.process import RivalFailure
from ..rivals.setup import why_missing
from .kinds import FOLDER, KINDS, write_source
from .material import PackMaterial, prepare_material
from .report import OURS, PackContender, PackReport, build_results
from .turn import Turn, measure_size, pack_source, read_files, run_writer
from .writers import WRITERS, Writer

_SYNTHETIC_IMAGES: Final = 256
"""Few, because drawing an image takes longer than repeating one."""
_OTHERS: Final = "writer/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBenchOptions:
    """What is measured, how often, and where."""

    kinds: Sequence[str]
    writers: Sequence[Writer]
    environments: Path
    rounds: int
    core: int
    deadline_s: float
    """For a turn of another format's writer."""


def measure_packing(material: PackMaterial, options: PackBenchOptions) -> PackReport:
    """Measure all kinds and writers; ResourceError when ``feeder pack`` fails."""
    machine = describe_machine({"all": options.core})
    machine["images"] = {
        "packed": len(material.images),
        "distinct": material.distinct,
        "bytes each": round(material.size_bytes / len(material.images)),
    }
    race = _Race(material, options)
    turns = race.run()
    results = build_results(turns, images=len(material.images), source_bytes=race.source_bytes)
    return PackReport(bench="pack", machine=machine, results=results, contenders=race.notes(turns))


class _Race:
    """All contenders, from the writing of their sources to their turns."""

    def __init__(self, material: PackMaterial, options: PackBenchOptions) -> None:
        self._material = material
        self._options = options
        self._missing: dict[str, str] = {}
        self.source_bytes: dict[str, int] = {}
        """Of each kind, by the name of its row."""

    def run(self) -> dict[str, list[Turn]]:
        """Return the turns, one a round, of the contenders that did not fail."""
        contenders = self._prepare()
        turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        random = Random(0)
        for number in range(-1, self._options.rounds):
            progress = ProgressLine(sys.stderr)
            progress.begin(
                f"round {number + 1} of {self._options.rounds}," if number >= 0 else "warming up",
                "contenders",
                len(turns),
            )
            for name in random.sample([*turns], len(turns)):
                source, take_turn = contenders[name]
                os.sync()
                read_files(source)
                try:
                    turn = take_turn()
                except RivalFailure as failure:
                    self._missing[name] = str(failure)
                    del turns[name]
                else:
                    if number >= 0:
                        turns[name].append(turn)
                progress.add(1)
            progress.end()
        return turns

    def notes(self, turns: Mapping[str, Sequence[Turn]]) -> list[PackContender]:
        """Return the notes on each contender, whether it was measured or not."""
        works = {f"{OURS}{kind}": "" for kind in self._options.kinds}
        works |= {f"{_OTHERS}{writer.name}": writer.work for writer in self._options.writers}
        return [
            PackContender(
                name=name,
                work=work,
                versions=turns[name][0].versions if name in turns else {},
                missing=self._missing.get(name),
            )
            for name, work in works.items()
        ]

    def _prepare(self) -> dict[str, tuple[Path, Callable[[], Turn]]]:
        """Write the sources; return source and turn of all that can run, the folder's first."""
        material, options = self._material, self._options
        contenders: dict[str, tuple[Path, Callable[[], Turn]]] = {}
        destination = material.folder / "dataset"
        progress = ProgressLine(sys.stderr)
        progress.begin("writing", "kinds of source", len(options.kinds))
        for kind in options.kinds:
            name = f"{OURS}{kind}"
            try:
                source = write_source(kind, material)
            except ModuleNotFoundError as error:
                self._missing[name] = f"needs the package {error.name}, which is not installed"
            else:
                self.source_bytes[name] = measure_size(source)
                pack = partial(
                    pack_source,
                    source,
                    destination,
                    images=len(material.images),
                    core=options.core,
                )
                contenders[name] = source, pack
            progress.add(1)
        progress.end()
        listing = material.folder / "images.tsv"
        lines = [f"{image.path}\t{image.label}\n" for image in material.images]
        listing.write_text("".join(lines), encoding="utf-8")
        for writer in options.writers:
            name = f"{_OTHERS}{writer.name}"
            reason = why_missing(writer.environment, options.environments)
            if reason is not None:
                self._missing[name] = reason
                continue
            python = options.environments / writer.environment / "bin" / "python"
            write = partial(
                run_writer,
                writer,
                python,
                listing,
                material.folder / writer.name,
                core=options.core,
                deadline_s=options.deadline_s,
            )
            contenders[name] = material.source, write
        return contenders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this bench's own options."""
    names = ", ".join([*KINDS, *(writer.name for writer in WRITERS)])
    parser.add_argument(
        "--kinds",
        metavar="NAME,…",
        help=f"measure the folder and these: {names} (default: all)",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=default_folder(),
        metavar="DIR",
        help="where `make peers` has put the environments (default: .peers of the project)",
    )


def choose_contenders(named: str | None) -> tuple[list[str], list[Writer]]:
    """Return the kinds, the folder first, and writers that are named, or all."""
    if named is None:
        return [*KINDS], [*WRITERS]
    asked = named.split(",")
    known = [*KINDS, *(writer.name for writer in WRITERS)]
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"--kinds {name} is no kind and no writer: name some of {', '.join(known)}"
            )
    kinds = [kind for kind in KINDS if kind in asked or kind == FOLDER]
    return kinds, [writer for writer in WRITERS if writer.name in asked]


def run(arguments: argparse.Namespace) -> PackReport:
    """Do what the command line asks."""
    kinds, writers = choose_contenders(arguments.kinds)
    options = PackBenchOptions(
        kinds=kinds,
        writers=writers,
        environments=arguments.environments.absolute(),
        rounds=arguments.rounds,
        core=choose_core(arguments.core),
        deadline_s=arguments.deadline,
    )
    with prepare_material(
        arguments.dataset, images=arguments.images, distinct=_SYNTHETIC_IMAGES
    ) as material:
        return measure_packing(material, options)
