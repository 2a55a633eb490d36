"""What ``feeder-bench pack`` has the scripts ``*_writer.py`` do: write images in another format.

The bench runs SCRIPT LIST OUT VARIANT REPLY. LIST has path and label of each image, between tabs;
the script writes them to the file or folder OUT, and then into the file REPLY:

    {"versions": {…}, "seconds": …, "cpu_seconds": …}

Both times are of writing alone, without the imports, which take seconds.
"""

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocol import die_with_parent


@dataclass(frozen=True)
class Writing:
    """The work of every script."""

    paths: list[str]
    labels: list[int]
    out: Path
    variant: str


def serve_writing(write: Callable[[Writing], dict[str, str]]) -> None:
    """Call ``write``, which returns versions, with the work on the command line, and reply."""
    die_with_parent()
    listing, out, variant, reply = sys.argv[1:]
    rows = [line.split("\t") for line in Path(listing).read_text(encoding="utf-8").splitlines()]
    work = Writing(
        paths=[path for path, _ in rows],
        labels=[int(label) for _, label in rows],
        out=Path(out),
        variant=variant,
    )
    began_s, busy_before_s = time.perf_counter(), _busy_s()
    versions = write(work)
    for child in multiprocessing.active_children():
        child.join()  # its CPU time is counted then
    result = {
        "versions": versions,
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": _busy_s() - busy_before_s,
    }
    Path(reply).write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)  # the exit handlers of some libraries hang


def _busy_s() -> float:
    """Return the CPU time so far of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
