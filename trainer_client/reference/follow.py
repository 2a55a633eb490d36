"""Which checkpoints are evaluated offline: those that there are, and those still to come.

A run's folder has a summary when the run has ended, so what follows it ends then, too.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError
from trainer_client.reference.checkpoints.store import (
    CHECKPOINTS,
    list_checkpoints,
    position_of,
)
from trainer_client.reference.job import Place, broadcast_text
from trainer_client.reference.tracking.files import SUMMARY_FILE

POLL_S: Final = 1.0


def find_checkpoints(named: Sequence[Path]) -> list[Path]:
    """Return the files that are named and, of folders, their checkpoints after an epoch in order.

    A folder is that of a run, or of its checkpoints; it may be missing.
    """
    found: list[Path] = []
    for path in named:
        if path.is_dir():
            inside = list_checkpoints(_folder_of(path))
            complete = [each for each in inside if not position_of(each)[1]]
            found += sorted(complete, key=position_of)
        elif path.suffix:  # else a folder that does not exist yet
            found.append(path)
    return found


def _folder_of(path: Path) -> Path:
    """Return the folder of checkpoints of a run's folder, or the folder itself."""
    inside = path / CHECKPOINTS
    return inside if inside.is_dir() else path


def agreed_checkpoints(named: Sequence[Path], place: Place) -> list[Path]:
    """Return rank 0's ``find_checkpoints`` in all ranks: a training may add and remove some."""
    found = [str(path) for path in find_checkpoints(named)] if place.rank == 0 else []
    return [Path(text) for text in json.loads(broadcast_text(json.dumps(found), place))]


def follow(named: Sequence[Path], place: Place) -> Iterator[Path]:
    """Yield the checkpoints that there are, then new ones, until the run of the folder has ended.

    All ranks get the same ones. The folder may appear later. Raises ConfigError unless one is
    named.
    """
    if len(named) != 1 or named[0].is_file():
        raise ConfigError("--follow takes one folder: that of a run, or of its checkpoints")
    run = named[0].parent if named[0].name == CHECKPOINTS else named[0]
    seen: set[Path] = set()
    while True:
        # Looked for before the list, as the last checkpoint comes before the summary.
        has_ended = bool(broadcast_text("ended" if (run / SUMMARY_FILE).exists() else "", place))
        new = [path for path in agreed_checkpoints([run], place) if path not in seen]
        if not new:
            if has_ended:
                return
            time.sleep(POLL_S)
        seen |= {*new}
        yield from new
