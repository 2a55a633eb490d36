"""A CSV file to which rows are added over several processes, each row once by its key."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from trainer_client.reference.tracking.output_file import explain_errors, replace_file


class MergedRows:
    """Rows of one table in the order of their keys; the file is replaced with each new one."""

    def __init__(self, path: Path, key: str) -> None:
        """Take over the rows of ``path``, if it is a table with the column ``key``, of integers."""
        self._path = path
        self._key = key
        self._rows: dict[int, Mapping[str, object]] = {}
        with explain_errors(path):
            if path.exists():
                with path.open(encoding="utf-8", errors="replace", newline="") as file:
                    rows = [row for row in csv.DictReader(file) if (row.get(key) or "").isdecimal()]
                self._rows = {int(row[key]): row for row in rows}

    def add(self, row: Mapping[str, object]) -> None:
        """Add a row, in place of one with the same key; ResourceError when writing fails."""
        self._rows[int(str(row[self._key]))] = row
        text = io.StringIO()
        table = csv.DictWriter(text, [*row], lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(self._rows[key] for key in sorted(self._rows))
        replace_file(self._path, text.getvalue().encode())
