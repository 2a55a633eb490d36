"""Writing into a run's folder: whole files are replaced atomically, errors become one line.

A file is written under a temporary name, synced and renamed: after a kill at any moment it has its
old content or its new one.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from feeder.errors import ResourceError


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Raise OSError as ResourceError, one line that names ``path`` and the remedy."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write {path} ({error.strerror or error}): make room or name another "
            "--output folder"
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder and those above it where they are missing; ResourceError if that fails."""
    with explain_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically; ResourceError when that fails."""
    unfinished = path.with_name(path.name + ".unfinished")
    with explain_errors(path):
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
