"""Which split of a source is packed: one that --split chooses, or all of them with --all-splits.

    SRC/train, SRC/val              the folder, in the place of SRC
    train-000.tar, val-000.tar      the files that mention it
    rows with a column ``split``    its rows: the rows of each split are counted first

What looks like several splits is neither taken for classes nor mixed without one of the options.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.source.location.splits import find_splits, match_split, split_of

_SHOWN_MAX: Final = 6
_NONE: Final = "no split"


class SplitChoice(NamedTuple):
    """What the user chose, and what to do with what looks like splits.

    The methods return what was chosen, None for all that there is, and a note or "". They raise
    ConfigError for several splits without a choice, and for a choice that is none of them.
    """

    split: str
    """Of --split; empty without it."""
    all_splits: bool
    location: str
    """The source's, for messages."""

    def choose_folder(self, folder: str, names: Sequence[str]) -> tuple[str | None, str]:
        """Choose one of the folders ``names`` in ``folder``."""
        splits = {name: printable(name) for name in find_splits(names)}
        if not splits:
            if self.split:
                raise self.no_splits("the folders in it are not called so")
            return None, ""
        where = printable(folder)
        match = match_split(self.split, names)
        return self._choose(where, "folders that are splits by name", splits, match)

    def choose_files(self, paths: Sequence[str]) -> tuple[tuple[str, ...] | None, str]:
        """Choose some of the files ``paths``; those of no split count as another one.

        No file need mention the split that was chosen: rows may.
        """
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        files: dict[str, list[str]] = {}
        for path in paths:
            files.setdefault(split_of(os.path.relpath(path, folder)) or _NONE, []).append(path)
        if list(files) == [_NONE] or (len(files) == 1 and not self.split):
            return None, ""
        splits = {
            split: f"{split} ({printable(os.path.relpath(group[0], folder))}, {len(group):,})"
            for split, group in files.items()
        }
        exact = [path for path in paths if _begins_with(os.path.basename(path), self.split)]
        chosen = exact or files.get(split_of(self.split) or "", [])
        match = self.split if chosen else None
        split, note = self._choose(self.location, "files of several splits", splits, match)
        return None if split is None else tuple(chosen), note

    def choose_rows(self, counts: Mapping[str, int], where: str) -> tuple[str | None, str]:
        """Choose rows, of which each split, by its name, has ``counts``; "" are those of none.

        Errors begin with ``where``.
        """
        splits = {split: f"{printable(split) or _NONE} ({n:,})" for split, n in counts.items()}
        if len(counts) == 1 and not self.split:
            return None, f"{where} has rows of one split: {_join(splits.values())}"
        match = match_split(self.split, [name for name in counts if name])
        return self._choose(where, "rows of several splits", splits, match)

    def _choose(
        self, where: str, what: str, splits: Mapping[str, str], match: str | None
    ) -> tuple[str | None, str]:
        """Return ``match``, which is what --split names of ``splits``, or None for all of them.

        ``splits`` are described by their names.
        """
        listed = _join(splits.values())
        if self.split and match is None:
            raise ConfigError(
                f"--split {printable(self.split)} is not one of the splits of "
                f"{where.rstrip(',')}: choose one of {listed}"
            )
        if match is not None:
            return match, f"the split {printable(match)} is packed, of {listed}"
        if self.all_splits:
            return None, f"{what} are packed together: {listed} (--all-splits)"
        example = min(splits, key=lambda name: (split_of(name) != "train", split_of(name) is None))
        raise ConfigError(
            f"{where} has {what}, {listed}: choose one with feeder pack --split "
            f"{printable(example)}; --all-splits takes all of them"
        )

    def no_splits(self, why: str) -> ConfigError:
        """Return the error for a choice where nothing looks like a split."""
        return ConfigError(
            f"--split {printable(self.split)}: {self.location} has no splits, {why}: leave it out, "
            "or make a split with --val-fraction or --val-list"
        )


def _begins_with(name: str, start: str) -> bool:
    rest = name.lower().removeprefix(start.lower())
    return len(rest) < len(name) and not rest[:1].isalnum()


def _join(texts: Iterable[str]) -> str:
    *others, last = texts
    if len(others) >= _SHOWN_MAX:
        others, last = others[:_SHOWN_MAX], f"{len(others) - _SHOWN_MAX + 1:,} more"
    return f"{', '.join(others)} and {last}" if others else last
