"""The captions of ``feeder preview``: a sample's labels as one line."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from feeder.plan.labels import LabelRows, LabelSpec

_SHOWN_MAX: Final = 8  # more names or numbers have no room under a picture


def name_labels(labels: LabelSpec, rows: LabelRows, classes: Sequence[str]) -> list[str]:
    """Return a caption for each of n label rows (n, *row_shape), none of them padding.

    It is the class, all classes or the numbers of the sample, empty where there are no labels.
    Raises IndexError for a class that does not exist.
    """
    match labels.kind:
        case "index":
            return [classes[number] for number in rows.tolist()]
        case "multi":
            return [_join([classes[at] for at in np.flatnonzero(row).tolist()]) for row in rows]
        case "float":
            return [_join([f"{value:g}" for value in row.tolist()]) for row in rows]
        case "none":
            return [""] * len(rows)


def _join(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN_MAX
    shown = ", ".join(texts[:_SHOWN_MAX])
    return f"{shown}, {more:,} more" if more > 0 else shown
