"""``feeder-bench pack``: packing the same images from each kind of source, on one core.

The images are written once as each kind, then packed in turns by the real command, with one worker,
in rounds of random order. The first round is not counted. Before each turn what the turn before has
written is flushed to the disk, and the source is read once, as some systems evict what was not read
for a minute: all come from the page cache. Other formats' writers take turns in the same rounds
where ``make peers`` has made their environments.

    pack/KIND                     images/s of the command; ratio: to the folder's in the same round
    pack/KIND/cpu                 the same per second of CPU time
    pack/KIND/list, pack, publish seconds of the command
    pack/KIND/source, size        MB of the source; of the dataset, ratio: to the folder's source
    writer/NAME, /cpu, /size      the same of other formats
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
from ..report import RATE, Report, Result, align, compare, format_number, single, summarise
from ..rivals.catalogue import default_folder
from ..rivals.process import RivalFailure
from ..rivals.report import CPU_RATE
from ..rivals.setup import why_missing
from .sources import FOLDER, KINDS, PackMaterial, prepare_material, write_source
from .turn import PHASES, WRITERS, Turn, Writer, measure_size, pack_source, read_files, run_writer

_SYNTHETIC_IMAGES: Final = 256
"""Few, because drawing an image takes longer than repeating one."""
_OURS: Final = "pack/"
_OTHERS: Final = "writer/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContender:
    """All about a contender except its measured rows."""

    name: str
    work: str
    """On each image, in a few words."""
    versions: Mapping[str, str]
    missing: str | None
    """Why it has no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport(Report):
    """A report with the contenders' notes."""

    contenders: Sequence[PackContender]

    def to_text(self) -> str:
        """Return header and tables as text, with a newline at its end."""
        rates = ("", RATE, "min", "max", "ratio", "per CPU s", "ratio")
        ours: list[tuple[str, ...]] = [
            (*rates, *(f"{phase} s" for phase in PHASES), "source MB", "MB", "ratio", "")
        ]
        theirs: list[tuple[str, ...]] = [(*rates, "MB", "ratio", "")]
        for each in self.contenders:
            table = ours if each.name.startswith(_OURS) else theirs
            table.append(self._cells(each, len(table[0])))
        lines = [*self.header(), *align(ours, left={0, len(ours[0]) - 1})]
        if len(theirs) > 1:
            lines += ["", *align(theirs, left={0, len(theirs[0]) - 1})]
        return "\n".join(lines) + "\n"

    def _cells(self, contender: PackContender, columns: int) -> tuple[str, ...]:
        name = contender.name
        if contender.missing is not None:
            return (name, "—", *[""] * (columns - 3), contender.missing)
        rows = self.rows
        rate, cpu, size = rows[name], rows[f"{name}/cpu"], rows[f"{name}/size"]
        cells = [name, *(format_number(round(each)) for each in (rate.value, rate.min, rate.max))]
        cells += [_ratio_of(rate), format_number(round(cpu.value)), _ratio_of(cpu)]
        if name.startswith(_OURS):
            cells += [f"{rows[f'{name}/{phase}'].value:.2f}" for phase in PHASES]
            cells.append(format_number(rows[f"{name}/source"].value))
        versions = [f"{library} {version}" for library, version in contender.versions.items()]
        notes = [*versions, contender.work] if contender.work else versions
        return (*cells, format_number(size.value), _ratio_of(size), ": ".join(notes))


def _ratio_of(row: Result) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}"


def build_results(
    turns: Mapping[str, Sequence[Turn]], *, images: int, source_bytes: Mapping[str, int]
) -> list[Result]:
    """Return the rows, given each contender's turns, one a round; the first is the baseline.

    Sizes are compared with the baseline's source, the images' own bytes.
    """
    rates = {name: [images / turn.seconds for turn in taken] for name, taken in turns.items()}
    cpu_rates = {
        f"{name}/cpu": [images / turn.cpu_seconds for turn in taken]
        for name, taken in turns.items()
    }
    results = compare(rates, RATE) + compare(cpu_rates, CPU_RATE)
    source, source_mb = f"{_OURS}{FOLDER}/source", source_bytes[f"{_OURS}{FOLDER}"] / 1e6
    for name, taken in turns.items():
        for phase in taken[0].phases:
            seconds = [turn.phases[phase] for turn in taken]
            results.append(summarise(f"{name}/{phase}", "s", seconds))
        if name in source_bytes:
            results.append(single(f"{name}/source", "MB", source_bytes[name] / 1e6))
        sizes_mb = [turn.size_bytes / 1e6 for turn in taken]
        results.append(summarise(f"{name}/size", "MB", sizes_mb, source, [source_mb] * len(taken)))
    return results


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
    known = [*KINDS, *(writer.name for writer in WRITERS)]
    asked = known if named is None else [FOLDER, *named.split(",")]
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"--kinds {name} is no kind and no writer: name some of {', '.join(known)}"
            )
    writers = [writer for writer in WRITERS if writer.name in asked]
    return [kind for kind in KINDS if kind in asked], writers


def run(arguments: argparse.Namespace) -> PackReport:
    """Measure all kinds and writers; ResourceError when ``feeder pack`` fails."""
    kinds, writers = choose_contenders(arguments.kinds)
    core = choose_core(arguments.core)
    with prepare_material(
        arguments.dataset, images=arguments.images, distinct=_SYNTHETIC_IMAGES
    ) as material:
        machine = describe_machine({"all": core})
        images_bytes = measure_size(material.source)
        machine["images"] = {
            "packed": len(material.images),
            "distinct": material.distinct,
            "bytes each": round(images_bytes / len(material.images)),
        }
        race = _Race(material, core)
        for kind in kinds:
            race.add_kind(kind)
        for writer in writers:
            race.add_writer(writer, arguments.environments.absolute(), arguments.deadline)
        turns = race.run(arguments.rounds)
    results = build_results(turns, images=len(material.images), source_bytes=race.source_bytes)
    works = {f"{_OURS}{kind}": "" for kind in kinds}
    works |= {f"{_OTHERS}{writer.name}": writer.work for writer in writers}
    contenders = [
        PackContender(
            name=name,
            work=work,
            versions=turns[name][0].versions if name in turns else {},
            missing=race.missing.get(name),
        )
        for name, work in works.items()
    ]
    return PackReport(bench="pack", machine=machine, results=results, contenders=contenders)


class _Race:
    """All contenders that can run, the folder first, and why others cannot."""

    def __init__(self, material: PackMaterial, core: int) -> None:
        self._material = material
        self._core = core
        self._contenders: dict[str, tuple[Path, Callable[[], Turn]]] = {}
        """What is read, and the turn."""
        self.missing: dict[str, str] = {}
        self.source_bytes: dict[str, int] = {}
        """Of each kind, by the name of its row."""
        self._listing = material.folder / "images.tsv"
        lines = [f"{path}\t{label}\n" for path, label in material.images]
        self._listing.write_text("".join(lines), encoding="utf-8")

    def add_kind(self, kind: str) -> None:
        """Write the source of a kind."""
        name, material = f"{_OURS}{kind}", self._material
        try:
            source = write_source(kind, material)
        except ModuleNotFoundError as error:
            self.missing[name] = f"needs the package {error.name}, which is not installed"
            return
        self.source_bytes[name] = measure_size(source)
        images = len(material.images)
        self._contenders[name] = (
            source,
            partial(
                pack_source, source, material.folder / "dataset", images=images, core=self._core
            ),
        )

    def add_writer(self, writer: Writer, environments: Path, deadline_s: float) -> None:
        """Add another format's writer, if its environment is there."""
        name, folder = f"{_OTHERS}{writer.name}", self._material.folder
        if reason := why_missing(writer.environment, environments):
            self.missing[name] = reason
            return
        python = environments / writer.environment / "bin" / "python"
        write = partial(run_writer, writer, python, self._listing, folder / writer.name)
        self._contenders[name] = (
            self._material.source,
            partial(write, core=self._core, deadline_s=deadline_s),
        )

    def run(self, rounds: int) -> dict[str, list[Turn]]:
        """Return the turns, one a round, of the contenders that did not fail."""
        turns: dict[str, list[Turn]] = {name: [] for name in self._contenders}
        random = Random(0)
        for number in range(-1, rounds):
            progress = ProgressLine(sys.stderr)
            verb = f"round {number + 1} of {rounds}," if number >= 0 else "warming up"
            progress.begin(verb, "contenders", len(turns))
            for name in random.sample([*turns], len(turns)):
                source, take_turn = self._contenders[name]
                os.sync()
                read_files(source)
                try:
                    turn = take_turn()
                except RivalFailure as failure:
                    self.missing[name] = str(failure)
                    del turns[name]
                else:
                    if number >= 0:
                        turns[name].append(turn)
                progress.add(1)
            progress.end()
        return turns
