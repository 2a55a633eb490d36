"""One turn: the whole command ``feeder pack --jobs 1``, or another format's writer, on one core.

Feeder's time is the wall time of the command, from before its process is started until it has
ended: imports, the worker's start, listing, spilling and publishing included. It is split by when
lines arrive on its standard error.
"""

import contextlib
import itertools
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from feeder.dataset.manifest import load_manifest
from feeder.errors import ResourceError

from ..daemon import feeder_command
from ..line_process import start_process
from ..machine import pinned_to
from ..rivals.catalogue import SCRIPTS
from ..rivals.process import RivalProcess

PHASES: Final = ("list", "pack", "publish")
_READ_BYTES: Final = 1 << 20
_BEGINNINGS: Final = ("found ", "packing ")
"""Of the lines that end listing and packing: the last such line counts."""


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
