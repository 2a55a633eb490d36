"""The checkpoint file of the reference job, which is always whole.

The file is written beside its name, brought to disk and renamed: whatever kills the job, the name
holds the old checkpoint or the new one. Its content is compared with its checksums when it is read.
It is tensors, numbers and strings only, read with ``weights_only``: nothing in it is code.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises
from typing import Any, BinaryIO, Final
from zipfile import BadZipFile, ZipFile

import torch

from feeder.errors import ConfigError, ResourceError
from feeder.process.regular_file import open_regular_file

CHECKPOINT_VERSION: Final = 1  # raise it when entries change their meaning

_DAMAGE: Final = BadZipFile, zlib.error
_FOLDER: Final = 0x10  # a zip entry's attribute, MS-DOS's


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``content`` in one step; ResourceError when that fails."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            torch.save({"version": CHECKPOINT_VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # the latter is torch's word for a full disk
        unfinished.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise ResourceError(
            f"cannot write the checkpoint {path} ({reason}): make room or name another "
            "--checkpoint file"
        ) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what was saved, on the CPU.

    Raises ConfigError when it is no checkpoint of this job, ResourceError when it cannot be read.
    """
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise ResourceError(
            f"cannot read the checkpoint {path} ({error.strerror}): make it readable, or begin "
            "without --resume"
        ) from error
    with file:
        try:
            _check_sums(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except (*_DAMAGE, RuntimeError, ValueError, OSError, EOFError, UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{path} is no checkpoint ({reason}): name another one") from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != CHECKPOINT_VERSION:
        raise ConfigError(
            f"{path} is no checkpoint of version {CHECKPOINT_VERSION} of this job, but of "
            f"{version}: name another one, or go on with the version that saved it"
        )
    return dict(content)


def _check_sums(file: BinaryIO) -> None:
    """Raise one of _DAMAGE where a byte has changed: torch writes checksums, but reads none."""
    with ZipFile(file) as archive:
        damaged = archive.testzip()
        # Only zip's own headers have no checksum; this bit has torch read another record's bytes.
        folders = (each.filename for each in archive.infolist() if each.external_attr & _FOLDER)
        damaged = damaged or next(folders, None)
    if damaged is not None:
        raise BadZipFile(f"{damaged} is damaged")
    file.seek(0)
