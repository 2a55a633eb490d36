"""The column, or the field, of the split that a row belongs to: train, val, test.

    split, set, subset, partition, fold, phase, usage      holds splits if one value is called so
    is_train, is_test, is_valid, …                         yes or no
    any other                                              holds splits if all values are called so

Which column it may be is chosen by names and first values, before its values are known.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from feeder.source.location.splits import is_split, split_of

_NAMES: Final = frozenset(
    {"split", "splits", "splitname", "datasplit", "datasetsplit", "dataset", "set", "subset"}
    | {"partition", "fold", "phase", "usage"}
)
_FLAG: Final = re.compile(r"is[-_ ]?(.+)", re.IGNORECASE | re.DOTALL)
_YES: Final = frozenset({"1", "1.0", "true", "t", "yes", "y"})
_NO: Final = frozenset({"0", "0.0", "false", "f", "no", "n"})
_REST: Final = "rest"
"""The split of rows that are not of the one that a column of yes and no is about."""


class SplitColumn:
    """A column that may hold splits."""

    def __init__(self, name: str) -> None:
        self.name = name
        flag = _FLAG.fullmatch(name.strip())
        self._flag = (split_of(flag[1]) or "") if flag and is_split(flag[1]) else ""
        self.is_usual = bool(self._flag) or re.sub(r"[\W_]", "", name.lower()) in _NAMES
        """Whether a column of this name is expected to hold splits."""

    def read(self, cell: object) -> str:
        """Return the split that a cell names, as it is written; empty where it names none."""
        text = str(cell).strip() if isinstance(cell, (str, int, float)) else ""
        if self._flag and text.lower() in _YES:
            return self._flag
        return _REST if self._flag and text.lower() in _NO else text

    def holds_splits(self, values: Collection[str]) -> bool:
        """Return whether ``values``, which ``read`` returned, are splits."""
        if self.is_usual:
            return any(split_of(value) for value in values)
        return bool(values) and all(is_split(value) for value in values)


def choose_split_column(first: Mapping[str, object], taken: Iterable[str]) -> SplitColumn | None:
    """Return the column that may hold splits; ``first`` has the first row's values by column.

    The columns ``taken`` hold something else.
    """
    others = [SplitColumn(name) for name in first if name not in taken]
    usual = [column for column in others if column.is_usual]
    likely = [column for column in others if is_split(column.read(first[column.name]))]
    both = [column for column in usual if column in likely]
    return next(iter((*both, *likely, *usual)), None)
