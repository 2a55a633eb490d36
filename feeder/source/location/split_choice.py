"""Which split of a source is packed: one that --split chooses, or all of them with --all-splits.

    SRC/train, SRC/val              the folder, in the place of SRC
    train-000.tar, val-000.tar      the files that mention it
    rows with a column ``split``    its rows: the rows of each split are counted first

What looks like several splits is neither taken for classes nor mixed without one of the options.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from feeder.errors import ConfigError
from feeder.process.path_text import path_to_text, printable
from feeder.source.location.splits import find_splits, match_split, split_of

_SHOWN_MAX: Final = 6
_NONE: Final = "no split"


class SplitChoice(NamedTuple):
    """What the user chose, and what to do with what looks like splits."""

    split: str
    """Of --split; empty without it."""
    all_splits: bool
    location: str
    """The source's, for messages."""

    def choose_folder(self, folder: Path, names: Sequence[str]) -> tuple[str | None, str]:
        """Return which folder of ``names`` in ``folder`` is the source, None for all of them.

        A note comes with it, or "". Raises ConfigError for splits without a choice, and for a
        choice without splits.
        """
        splits = find_splits(names)
        shown = _show(folder)
        if not splits:
            if self.split:
                raise self.no_splits("the folders in it are not called so")
            return None, ""
        listed = _join(map(_show, splits))
        if self.split:
            name = match_split(self.split, names)
            if name is None:
                raise self._no_match(shown, map(_show, splits))
            return name, f"the split {_show(name)} is packed, of {listed} in {shown}"
        if self.all_splits:
            return None, f"{listed} may be splits, and are classes here (--all-splits)"
        example = _show(_example(splits))
        raise ConfigError(
            f"{shown} holds {listed}, by name no classes but splits: give one, as "
            f"{shown}/{example} or with feeder pack --split {example}; --all-splits takes them as "
            "classes"
        )

    def choose_files(self, paths: Sequence[str]) -> tuple[tuple[str, ...] | None, str]:
        """Return which of ``paths`` are the source, None for all of them, and a note or "".

        Raises ConfigError for files of several splits, or of one and of none, without a choice. No
        file need mention the split that was chosen: rows may.
        """
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        names = [path[len(folder) :].lstrip("/") for path in paths]
        files: dict[str, list[str]] = {}
        for name in names:
            files.setdefault(split_of(name) or _NONE, []).append(name)
        if list(files) == [_NONE] or (len(files) == 1 and not self.split):
            return None, ""
        described = [
            f"{len(group):,} of {split} ({printable(group[0])})" for split, group in files.items()
        ]
        if self.split:
            exact = [name for name in names if _begins_with(os.path.basename(name), self.split)]
            chosen = exact or files.get(split_of(self.split) or "", [])
            if not chosen:
                raise self._no_match(self.location, described)
            note = f"the split {printable(self.split)} is packed: {len(chosen):,} of {len(names):,}"
            return tuple(os.path.join(folder, name) for name in chosen), f"{note} files"
        if self.all_splits:
            return None, f"files of all splits are packed: {_join(described)} (--all-splits)"
        example = _example(split for split in files if split != _NONE)
        directory, _, _ = files[example][0].rpartition("/")
        pattern = printable(f"{directory}/*" if directory else f"*{example}*")
        raise ConfigError(
            f"{self.location} has files of several splits, or of none: {_join(described)}; give "
            f"those of one, as {printable(folder)}/{pattern} or with feeder pack --split {example};"
            " --all-splits takes all of them"
        )

    def choose_rows(self, counts: Mapping[str, int], where: str) -> tuple[str | None, str]:
        """Return the split to pack, None for the rows of all splits, and a note.

        ``counts`` has the rows of each split by its name, "" for none. Raises ConfigError, which
        begins with ``where``, for rows of several splits without a choice, and for another choice.
        """
        described = [f"{printable(split) or _NONE} ({n:,})" for split, n in counts.items()]
        listed = _join(described)
        if self.split:
            split = match_split(self.split, [name for name in counts if name])
            if split is None:
                raise self._no_match(where, described)
            rows = f"{counts[split]:,} of {sum(counts.values()):,} rows"
            return split, f"the split {printable(split)} is packed: {rows}, of {listed}"
        if len(counts) == 1:
            return None, f"{where} has rows of one split: {listed}"
        if self.all_splits:
            return None, f"rows of all splits are packed: {listed} (--all-splits)"
        example = printable(_example([name for name in counts if name]))
        raise ConfigError(
            f"{where} has rows of several splits, {listed}: choose one with feeder pack --split "
            f"{example}; --all-splits takes all of them"
        )

    def no_splits(self, why: str) -> ConfigError:
        """Return the error for a choice where nothing looks like a split."""
        return ConfigError(
            f"--split {printable(self.split)}: {self.location} has no splits, {why}: leave it out, "
            "or make a split with --val-fraction or --val-list"
        )

    def _no_match(self, where: str, splits: Iterable[str]) -> ConfigError:
        return ConfigError(
            f"--split {printable(self.split)} is not one of the splits of {where.rstrip(',')}: "
            f"choose one of {_join(splits)}"
        )


def _example(splits: Iterable[str]) -> str:
    """Return the split to name in a message: the training set, if there is one."""
    return min(splits, key=lambda name: split_of(name) != "train")


def _begins_with(name: str, start: str) -> bool:
    rest = name.lower().removeprefix(start.lower())
    return len(rest) < len(name) and not rest[:1].isalnum()


def _show(path: str | Path) -> str:
    return printable(path_to_text(path))


def _join(texts: Iterable[str]) -> str:
    *others, last = texts
    if len(others) >= _SHOWN_MAX:
        others, last = others[:_SHOWN_MAX], f"{len(others) - _SHOWN_MAX + 1:,} more"
    return f"{', '.join(others)} and {last}" if others else last
