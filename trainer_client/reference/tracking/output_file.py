"""Writing into a run's folder: whole files are replaced atomically, errors become one line.

After a kill at any moment a file has its old content or its new one.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from feeder.process.output_file import explain_write_errors, write_output

_UNFINISHED: Final = ".unfinished"  # of all processes, so that kills leave one file at most


def explain_errors(path: Path) -> AbstractContextManager[None]:
    """Raise OSErrors of the body as ResourceErrors, one line that names ``path``, with a remedy."""
    return explain_write_errors(str(path), "make room or name another --output folder")


def make_folder(path: Path) -> None:
    """Create a folder and those above it where they are missing; ResourceError if that fails."""
    with explain_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically; ResourceError when that fails."""
    with explain_errors(path):
        write_output(path, content, suffix=_UNFINISHED)
