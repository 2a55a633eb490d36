"""One turn: the whole command ``feeder pack --jobs 1``, or another format's writer, on one core.

Feeder's time is the wall time of the command, from before its process is started until it has
ended: imports, the worker's start, listing, spilling and publishing included. It is split by when
lines arrive on its standard error.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from feeder.dataset.manifest import load_manifest
from feeder.errors import ResourceError
from feeder.process.child import child_environment

from ..daemon import feeder_command
from ..line_process import start_process
from ..machine import pinned_to
from ..rivals.catalogue import SCRIPTS, variables
from ..rivals.process import RivalFailure, last_line

PHASES: Final = ("list", "pack", "publish")
_READ_BYTES: Final = 1 << 20
_LISTED: Final = "found "
_PACKING: Final = "packing "
"""Beginnings of the lines that end listing and packing: of the last such line."""


class Writer(NamedTuple):
    """A writer of another format, in an environment of ``feeder-bench peers``."""

    name: str
    script: Path
    environment: str
    variant: str
    work: str
    """On each image, in a few words."""


_FFCV: Final = SCRIPTS / "ffcv_writer.py"
_COPYING: Final = SCRIPTS / "copying_writer.py"
_SHRINKS: Final = "decodes; to 500 px; half as JPEG of quality 90, half as pixels"

WRITERS: Final = (
    Writer("ffcv-imagenet", _FFCV, "ffcv", "imagenet", _SHRINKS),
    Writer("ffcv-jpg", _FFCV, "ffcv", "jpg", "decodes; re-encodes at quality 90"),
    Writer("webdataset", _COPYING, "webdataset", "webdataset", "copies the bytes"),
    Writer("mds", _COPYING, "streaming", "mds", "copies the bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The times and the result of one turn."""

    seconds: float
    cpu_seconds: float
    """Of all processes of the command."""
    size_bytes: int
    """Of what it has written."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds, by PHASES; empty for other formats."""
    versions: dict[str, str] = field(default_factory=dict)


def pack_source(source: Path, destination: Path, *, images: int, core: int) -> Turn:
    """Run ``feeder pack`` and remove its dataset; ResourceError when it fails."""
    command = feeder_command("pack", str(source), str(destination), "--jobs", "1")
    busy_before_s = _children_busy_s()
    began_s = time.perf_counter()
    ends_s = {}
    last = ""
    with _started(command, core, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            last = line.decode(errors="replace").strip() or last
            for beginning in (_LISTED, _PACKING):
                if last.startswith(beginning):
                    ends_s[beginning] = time.perf_counter()
        status = process.wait()
    ended_s = time.perf_counter()
    if status or len(ends_s) < 2:
        raise ResourceError(f"feeder pack {source} ended with status {status}: {last}")
    if (samples := load_manifest(destination).samples) != images:
        raise ResourceError(f"feeder pack {source} packed {samples} of {images} images")
    listed_s = ends_s[_LISTED] - began_s
    packed_s = ends_s[_PACKING] - ends_s[_LISTED]
    published_s = ended_s - ends_s[_PACKING]
    size_bytes = measure_size(destination)
    shutil.rmtree(destination)
    return Turn(
        seconds=ended_s - began_s,
        cpu_seconds=_children_busy_s() - busy_before_s,
        size_bytes=size_bytes,
        phases=dict(zip(PHASES, (listed_s, packed_s, published_s), strict=True)),
    )


def run_writer(
    writer: Writer, python: Path, listing: Path, out: Path, *, core: int, deadline_s: float
) -> Turn:
    """Run a writer and remove its output; RivalFailure with the reason when it fails."""
    reply, log = out.with_suffix(".json"), out.with_suffix(".log")
    command = [str(part) for part in (python, writer.script, listing, out, writer.variant, reply)]
    try:
        with (
            log.open("wb") as printed,
            _started(
                command, core, environment=variables(1), stdout=printed, stderr=subprocess.STDOUT
            ) as process,
        ):
            status = process.wait(deadline_s)
    except OSError as error:
        raise RivalFailure(f"cannot start {python}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise RivalFailure(f"did not end within {deadline_s:g} s") from None
    if status:
        end = last_line(log.read_text("utf-8", "replace"), before=": ")
        raise RivalFailure(f"ended with status {status}{end}")
    try:
        answer = json.loads(reply.read_text("utf-8"))
        turn = Turn(
            seconds=float(answer["seconds"]),
            cpu_seconds=float(answer["cpu_seconds"]),
            size_bytes=measure_size(out),
            versions={str(name): str(value) for name, value in answer["versions"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RivalFailure("sent no valid reply") from None
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()
    reply.unlink()
    return turn


def read_files(path: Path) -> None:
    """Read all files below a folder, so that they are in the page cache."""
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            while opened.read(_READ_BYTES):
                pass


def measure_size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    return (each for each in (path, *path.rglob("*")) if each.is_file())


@contextlib.contextmanager
def _started(
    command: Sequence[str], core: int, *, environment: dict[str, str] | None = None, **options: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    with pinned_to(core):
        process = start_process(command, env=environment or child_environment(), **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _children_busy_s() -> float:
    """Return the CPU time of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
