"""``steps.csv``: a row for each logged step, the loss curve of a run.

Rows are appended. On a resume, rows of steps after the checkpoint are removed, and the job writes
them again, so every step has at most one row. A row that a kill cut short is removed, too.
"""

from pathlib import Path
from typing import Final, TextIO

from trainer_client.reference.results import StepReport
from trainer_client.reference.tracking.output_file import explain_errors, replace_file

STEP_COLUMNS: Final = ("global_step", "epoch", "step", "loss", "lr", "images_per_s", "wait_share")
_LOSS: Final = STEP_COLUMNS.index("loss")


class StepRows:
    """The open file."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        """Keep the rows of the steps up to ``first_step``, which the job took before."""
        self._path = path
        kept = [",".join(STEP_COLUMNS), *(line for step, line in _read(path) if step <= first_step)]
        replace_file(path, "".join(f"{line}\n" for line in kept).encode())
        with explain_errors(path):
            self._file: TextIO = path.open("a", encoding="utf-8")

    def append(self, report: StepReport) -> None:
        """Write a row; ResourceError when that fails."""
        row = (
            *(report.global_step, report.epoch, report.step),
            *(f"{value:.6g}" for value in (report.loss, report.lr, report.images_per_s)),
            f"{report.wait_share:.4f}",
        )
        with explain_errors(self._path):
            self._file.write(",".join(map(str, row)) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file. Idempotent."""
        with explain_errors(self._path):
            self._file.close()


def read_losses(path: Path) -> list[tuple[int, float]]:
    """Return global step and loss of each row; none where there is no such file."""
    return [(step, float(line.split(",")[_LOSS])) for step, line in _read(path)]


def _read(path: Path) -> list[tuple[int, str]]:
    """Return global step and text of each whole row; ResourceError when it cannot be read."""
    with explain_errors(path):
        try:
            text = path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
    rows = text.split("\n")[1:-1]  # without the header, and the last line if it is cut short
    return [(int(row.partition(",")[0]), row) for row in rows if _is_whole(row)]


def _is_whole(row: str) -> bool:
    """Return whether a row has all columns; power loss can leave a file with zeros in it."""
    step, *numbers = row.split(",")
    try:
        return step.isdecimal() and len([*map(float, numbers)]) == len(STEP_COLUMNS) - 1
    except ValueError:
        return False
