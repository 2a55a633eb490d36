"""A row of a file of labels, and what every such file offers."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from feeder.plan.labels import LabelChoice, Uncertain
from feeder.source.label_files.split_column import SplitColumn


class BadCellError(ValueError):
    """Raised for a label without a meaning as its kind; the message is the reason."""


class FieldChoice(NamedTuple):
    """The user's choices about a file of labels; empty or None: found by looking."""

    image: str = ""
    """The column or field with the images' names."""
    label: str = ""
    """That of the labels; or several, with commas between them, and each a pattern with ``*``."""
    label_kind: LabelChoice | None = None
    uncertain: Uncertain | Literal[""] = ""


class LabelRow(NamedTuple):
    """What one row of a file of labels holds."""

    number: int
    """The line where it begins, or which entry of a JSON file it is; from 1."""
    file: str
    """As it is written; empty where there is none."""
    label: Sequence[Any]
    """Its cells or values, not yet interpreted."""
    fault: str
    """Why the row is unusable; empty where it is not."""
    confidence: str = ""
    """Of the label, where there is a column of it, as in tables with a row for each label."""
    split: str = ""
    """What ``LabelFile.split`` says about it."""


class LabelFile(Protocol):
    """A file of labels, of any format."""

    @property
    def unit(self) -> str:
        """What ``LabelRow.number`` counts: "line" or "entry"."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that the file names apart from its labels: those with a column each."""

    @property
    def split(self) -> SplitColumn | None:
        """The column that may hold the rows' splits."""

    @property
    def field(self) -> str:
        """Where labels are, for the summary: "column label"; empty where that has no name."""

    def rows(self) -> Iterator[LabelRow]:
        """Yield the rows in order, from the first on each call; DatasetError for a damaged file."""

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before the first ``read_label``."""

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row as it is there, a RawLabel; None where it has none.

        Raises BadCellError, and ConfigError where only an option can decide what a cell means.
        """
