"""A CSV file to which rows are added over several processes, each row once by its key."""

import csv
import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.regular_file import open_regular_file


class MergedRows:
    """Rows of one table in the order of their keys; the file is replaced with each new one."""

    def __init__(self, path: Path, key: str) -> None:
        """Take over the rows of ``path``, if it is a table with the column ``key``, of integers.

        ResourceError where it is no regular file, which could not be read again.
        """
        self._path = path
        self._key = key
        self._rows: dict[int, Mapping[str, object]] = {}
        with self._explain_errors():
            if path.exists():
                with io.TextIOWrapper(
                    open_regular_file(path), encoding="utf-8", errors="replace", newline=""
                ) as file:
                    rows = [row for row in csv.DictReader(file) if (row.get(key) or "").isdecimal()]
                self._rows = {int(row[key]): row for row in rows}

    def add(self, row: Mapping[str, object]) -> None:
        """Add a row, in place of one with the same key; ResourceError when writing fails."""
        self._rows[int(str(row[self._key]))] = row
        text = io.StringIO()
        table = csv.DictWriter(text, [*row], lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(self._rows[key] for key in sorted(self._rows))
        with self._explain_errors():
            write_output(self._path, text.getvalue().encode())

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_write_errors(str(self._path), "make room or name another --csv file")
