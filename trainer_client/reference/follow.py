"""Which checkpoints are evaluated offline: those that there are, and those still to come.

A run's folder has a summary when the run has ended, so what follows it ends then, too.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client.reference.checkpoints.store import list_checkpoints, name_at, position_of
from trainer_client.reference.job import Place
from trainer_client.reference.run_folder import SUMMARY

POLL_S: Final = 1.0


def find_checkpoints(named: Sequence[Path]) -> list[Path]:
    """Return the checkpoints that are named, and those in folders that are: by epoch and step."""
    found: list[Path] = []
    for path in named:
        if path.is_dir():
            inside = list_checkpoints(_folder_of(path))
            found += sorted(inside, key=position_of)
        else:
            found.append(path)
    return found


def _folder_of(path: Path) -> Path:
    """Return the folder of checkpoints of a run's folder, or the folder itself."""
    inside = path / "checkpoints"
    return inside if inside.is_dir() else path


def follow(named: Sequence[Path], place: Place) -> Iterator[Path]:
    """Yield the checkpoints that there are, then new ones, until the run of the folder has ended.

    All ranks get the same ones, which rank 0 finds. Raises ConfigError unless one folder is named.
    """
    if len(named) != 1 or not named[0].is_dir():
        raise ConfigError("--follow takes one folder: that of a run, or of its checkpoints")
    run = named[0]
    seen: set[Path] = set()
    while True:
        has_ended = (run / SUMMARY).exists() or (run.parent / SUMMARY).exists()  # before the list
        new = [each for each in find_checkpoints([run]) if each not in seen]
        if not _agree(bool(new), place) and _agree(has_ended, place):
            return
        for path in _agreed_paths(new, _folder_of(run), place):
            seen.add(path)
            yield path
        if not new:
            time.sleep(POLL_S)


def _agree(flag: bool, place: Place) -> bool:
    """Return rank 0's flag in all ranks."""
    if place.ranks == 1:
        return flag
    votes = torch.tensor([int(flag)], device=place.device)
    dist.broadcast(votes, 0)
    return bool(votes.item())


def _agreed_paths(paths: list[Path], folder: Path, place: Place) -> list[Path]:
    """Return rank 0's checkpoints in all ranks: their positions name them."""
    if place.ranks == 1:
        return paths
    count = torch.tensor([len(paths)], device=place.device)
    dist.broadcast(count, 0)
    positions = torch.zeros((int(count.item()), 2), dtype=torch.int64, device=place.device)
    if place.rank == 0 and paths:
        positions.copy_(torch.tensor([position_of(path) for path in paths]))
    dist.broadcast(positions, 0)
    return [folder / name_at(epoch, step) for epoch, step in positions.tolist()]
