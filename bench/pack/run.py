"""``feeder-bench pack``: packing the same images from each kind of source, on one core.

The images are written once as each kind, then packed in turns by the real command, with one worker,
in rounds of random order. The first round is not counted. Before each turn what the turn before has
written is flushed to the disk, and the source is read once, as some systems evict what was not read
for a minute: all come from the page cache. Other formats' writers take turns in the same rounds
where ``make peers`` has made their environments.

Feeder's time is the wall time of the command, from before its process is started until it has
ended: imports, the worker's start, listing, spilling and publishing included. It is split by when
lines arrive on its standard error.
"""

import argparse
import contextlib
import itertools
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, ResourceError

from ..daemon import feeder_command
from ..line_process import start_process
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, align, compare, format_number, single, summarise
from ..rivals.catalogue import SCRIPTS, interpreter
from ..rivals.process import RivalProcess, take_turns
from ..rivals.report import CPU_RATE
from ..rivals.setup import why_missing
from .sources import FOLDER, KINDS, prepare_material, write_source

PHASES: Final = ("list", "pack", "publish")
_BEGINNINGS: Final = ("found ", "packing ")  # of the lines that end listing and packing
_READ_BYTES: Final = 1 << 20
_SYNTHETIC_IMAGES: Final = 256  # few, because drawing an image takes longer than repeating one
_OURS: Final = "pack/"
_OTHERS: Final = "writer/"


class Writer(NamedTuple):
    name: str
    script: str | Path  # in SCRIPTS
    environment: str
    variant: str
    work: str  # on each image, in a few words


_SHRINKS: Final = "decodes; to 500 px; half as JPEG of quality 90, half as pixels"

WRITERS: Final = (
    Writer("ffcv-imagenet", "ffcv_writer.py", "ffcv", "imagenet", _SHRINKS),
    Writer("ffcv-jpg", "ffcv_writer.py", "ffcv", "jpg", "decodes; re-encodes at quality 90"),
    Writer("webdataset", "copying_writer.py", "webdataset", "webdataset", "copies the bytes"),
    Writer("mds", "copying_writer.py", "streaming", "mds", "copies the bytes"),
)
NAMES: Final = (*KINDS, *(writer.name for writer in WRITERS))


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    cpu_seconds: float  # of all processes of the command
    size_bytes: int = 0  # of what it has written
    phases: dict[str, float] = {}  # seconds, by PHASES; empty for other formats
    versions: dict[str, str] = {}


def pack_source(source: Path, destination: Path, *, images: int, core: int) -> Turn:
    """Run ``feeder pack`` and remove its dataset; ResourceError when it fails."""
    command = feeder_command("pack", str(source), str(destination), "--jobs", "1")
    busy_before_s = _children_busy_s()
    times_s = [time.perf_counter()] * 3  # of the start, then of the end of listing and of packing
    last = ""
    with pinned_to(core):
        process = start_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            last = line.decode(errors="replace").strip() or last
            for number, beginning in enumerate(_BEGINNINGS, 1):
                if last.startswith(beginning):
                    times_s[number] = time.perf_counter()
        status = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    times_s.append(time.perf_counter())
    if status:
        raise ResourceError(f"feeder pack {source} ended with status {status}: {last}")
    if (samples := load_manifest(destination).samples) != images:
        raise ResourceError(f"feeder pack {source} packed {samples} of {images} images")
    size_bytes = measure_size(destination)
    shutil.rmtree(destination)
    spans_s = [end_s - begin_s for begin_s, end_s in itertools.pairwise(times_s)]
    return Turn(
        seconds=times_s[-1] - times_s[0],
        cpu_seconds=_children_busy_s() - busy_before_s,
        size_bytes=size_bytes,
        phases=dict(zip(PHASES, spans_s, strict=True)),
    )


def run_writer(
    writer: Writer, python: str, listing: Path, out: Path, *, core: int, deadline_s: float
) -> Turn:
    """Run a writer and remove its output; RivalFailure with the reason when it fails."""
    work = {"folder": out, "variant": writer.variant}
    with RivalProcess(
        python,
        SCRIPTS / writer.script,
        listing,
        work,
        cores=frozenset({core}),
        log=out.with_suffix(".log"),
        deadline_s=deadline_s,
    ) as process:
        turn = process.await_reply("done", Turn)
    turn = msgspec.structs.replace(turn, size_bytes=measure_size(out))
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()
    return turn


def read_files(path: Path) -> None:
    """Read all files below a folder, so that they are in the page cache."""
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            while opened.read(_READ_BYTES):
                pass


def measure_size(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    return (each for each in (path, *path.rglob("*")) if each.is_file())


def _children_busy_s() -> float:
    """Return the CPU time of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContender:
    name: str
    work: str  # on each image, in a few words
    versions: Mapping[str, str]
    missing: str | None  # why it has no rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport(Report):
    contenders: Sequence[PackContender]

    def tables(self) -> Iterator[list[str]]:
        rates = ("", RATE, "min", "max", "ratio", "per CPU s", "ratio")
        phases = [f"{phase} s" for phase in PHASES]
        for prefix, more in ((_OURS, [*phases, "source MB"]), (_OTHERS, [])):
            heads = (*rates, *more, "MB", "ratio", "")
            contenders = [each for each in self.contenders if each.name.startswith(prefix)]
            rows = [heads, *(self._cells(each, len(heads)) for each in contenders)]
            if contenders:
                yield align(rows, left={0, len(heads) - 1})

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
    """Return the rows of all turns, the first contender's as baseline; sizes to its source's."""
    rates, cpu_rates = {}, {}
    for name, taken in turns.items():
        rates[name] = [images / turn.seconds for turn in taken]
        cpu_rates[f"{name}/cpu"] = [images / turn.cpu_seconds for turn in taken]
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
    kinds, writers = choose_contenders(arguments.kinds)
    core = choose_core(arguments.core)
    environments = arguments.environments.absolute()
    missing: dict[str, str] = {}
    acts: dict[str, _Act] = {}
    source_bytes: dict[str, int] = {}
    with prepare_material(
        arguments.dataset, images=arguments.images, distinct=_SYNTHETIC_IMAGES
    ) as material:
        images = len(material.images)
        machine = describe_machine({"all": core}) | {
            "images": {
                "packed": images,
                "distinct": material.distinct,
                "bytes each": round(measure_size(material.source) / images),
            }
        }
        for kind in kinds:
            name = f"{_OURS}{kind}"
            try:
                source = write_source(kind, material)
            except ModuleNotFoundError as error:
                missing[name] = f"needs the package {error.name}, which is not installed"
                continue
            source_bytes[name] = measure_size(source)
            dataset = material.folder / "dataset"
            acts[name] = source, partial(pack_source, source, dataset, images=images, core=core)
        listing = material.folder / "images.tsv"
        lines = [f"{path}\t{label}\n" for path, label in material.images]
        listing.write_text("".join(lines), encoding="utf-8")
        for writer in writers:
            name = f"{_OTHERS}{writer.name}"
            if reason := why_missing(writer.environment, environments):
                missing[name] = reason
                continue
            python = interpreter(writer.environment, environments)
            write = partial(run_writer, writer, python, listing, material.folder / writer.name)
            acts[name] = material.source, partial(write, core=core, deadline_s=arguments.deadline)
        turns = _race(acts, missing, arguments.rounds)
    works = {f"{_OURS}{kind}": "" for kind in kinds}
    works |= {f"{_OTHERS}{writer.name}": writer.work for writer in writers}
    contenders = [
        PackContender(
            name=name,
            work=work,
            versions=turns[name][0].versions if name in turns else {},
            missing=missing.get(name),
        )
        for name, work in works.items()
    ]
    results = build_results(turns, images=images, source_bytes=source_bytes)
    return PackReport(bench="pack", machine=machine, results=results, contenders=contenders)


_Act = tuple[Path, Callable[[], Turn]]  # what a contender reads, and its turn


def _race(acts: Mapping[str, _Act], missing: dict[str, str], rounds: int) -> dict[str, list[Turn]]:
    """Return the turns, one a round; for contenders that fail, add to ``missing`` why."""
    turns: dict[str, list[Turn]] = {name: [] for name in acts}

    def take_turn(name: str) -> None:
        source, act = acts[name]
        os.sync()
        read_files(source)
        turns[name].append(act())

    def give_up(name: str, reason: str) -> None:
        missing[name] = reason
        del turns[name]

    random = Random(0)
    for number in range(rounds + 1):
        verb = f"round {number} of {rounds}," if number else "warming up"
        take_turns(verb, random.sample([*turns], len(turns)), take_turn, give_up)
        if not number:
            for taken in turns.values():
                taken.clear()
    return turns
