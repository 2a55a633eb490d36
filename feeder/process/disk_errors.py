"""Turns the operating system's disk errors into one line with a remedy."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feeder.errors import ResourceError
from feeder.process.path_text import path_to_text, printable
from feeder.process.shortage import name_file


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether ``path`` is ``folder`` or would be below it, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@contextmanager
def explain_disk_errors(doing: str, folder: Path, remedy: str) -> Iterator[None]:
    """Raise OSErrors of the body as ResourceErrors: what failed, why, and what to do.

    ``doing`` is e.g. "packing into"; ``remedy`` is what to do once the cause is fixed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause, fix = "no space left on its disk", "make room"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cause, fix = f"not writable ({error.strerror})", "make it writable"
        else:
            name = name_file(error)
            at = f" at {printable(path_to_text(name))}" if name else ""
            cause, fix = f"{error.strerror}{at}", "fix that"
        raise ResourceError(f"{doing} {folder} failed: {cause}; {fix}, then {remedy}") from error
