"""The checkpoint file of the reference job, written atomically.

The file is written under a temporary name, synced and renamed: after a kill at any moment it holds
the old checkpoint or the new one. Reading verifies its checksums. It has tensors, numbers and
strings only and is read with ``weights_only``, so nothing in it runs as code.
"""

import errno
import io
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises
from typing import Any, BinaryIO, Final
from zipfile import BadZipFile, ZipFile

import torch

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import replace_file
from feeder.process.regular_file import open_regular_file

UNFINISHED: Final = ".unfinished"
"""Suffix of a file while it is written: of all processes, so that kills leave one at most."""
CHECKPOINT_VERSION: Final = 3  # increment when the meaning of an entry changes
DAMAGE: Final = (
    BadZipFile,
    zlib.error,
    UnpicklingError,
    RuntimeError,
    ValueError,
    OSError,
    EOFError,
)
"""What ``check_sums`` and torch.load raise when a zip archive is damaged or something else."""

_FOLDER: Final = 0x10  # MS-DOS attribute of a zip entry


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``content`` atomically; ResourceError when that fails."""
    try:
        with replace_file(path, suffix=UNFINISHED) as file:
            torch.save({"version": CHECKPOINT_VERSION, **content}, file)
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"cannot write the checkpoint {path} ({_explain(error, path, content)}): make room, or "
            "name another --checkpoint or --output"
        ) from error


def load_checkpoint(path: Path, *, instead: str = "name another one") -> dict[str, Any]:
    """Return the saved content, on the CPU.

    Raises ConfigError when it is no checkpoint of this job, with ``instead`` as the remedy, and
    ResourceError when it cannot be read.
    """
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise ResourceError(
            f"cannot read the checkpoint {path} ({error.strerror}): make it readable, or name "
            "another one"
        ) from error
    with file:
        try:
            check_sums(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except DAMAGE as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{path} is no checkpoint ({reason}): {instead}") from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != CHECKPOINT_VERSION:
        raise ConfigError(
            f"{path} is no checkpoint of version {CHECKPOINT_VERSION} of this job, but of "
            f"{version}: {instead}, or use the version that saved it"
        )
    return dict(content)


def check_sums(file: BinaryIO) -> None:
    """Raise one of DAMAGE if a byte has changed: torch writes checksums but checks none."""
    with ZipFile(file) as archive:
        damaged = archive.testzip()
        # Zip's own headers have no checksum, and this bit makes torch read another record's bytes.
        folders = (each.filename for each in archive.infolist() if each.external_attr & _FOLDER)
        damaged = damaged or next(folders, None)
    if damaged is not None:
        raise BadZipFile(f"{damaged} is damaged")
    file.seek(0)


def _explain(error: BaseException, path: Path, content: Mapping[str, Any]) -> str:
    """Return why a checkpoint cannot be written; where space ran out, how much it needs."""
    # torch's own error, about a position in the file, is raised while it handles that of the file.
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    if cause is None or cause.strerror is None:
        return str(error).partition("\n")[0]
    if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        return cause.strerror
    counter = _Counter()
    torch.save({"version": CHECKPOINT_VERSION, **content}, counter)
    needed, free = counter.size_bytes / 1e6, shutil.disk_usage(path.parent).free / 1e6
    return f"no space left on its disk: it needs {needed:,.1f} MB, {free:,.1f} MB are free"


class _Counter(io.BytesIO):
    """Counts what is written, and keeps none of it."""

    size_bytes = 0

    def write(self, data: Any, /) -> int:
        size_bytes = memoryview(data).nbytes
        self.size_bytes += size_bytes
        return size_bytes
