"""The files that every run writes into its folder, CSV and JSON.

    run.json       what was known before the first step; the same again after a resume
    steps.csv      a row for each logged step, the loss curve of a run
    epochs.csv     a row for each complete epoch
    summary.json   how the run ended, once it has ended

Whole files are replaced atomically: after a kill at any moment a file has its old content or its
new one. Rows of steps.csv are appended; on a resume, those after the checkpoint are removed, and
the job writes them again.

Invariant: after any kills and resumes, epochs.csv has every complete epoch once, in order, and
steps.csv every step at most once.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Final, TextIO

import msgspec

from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.regular_file import open_regular_file
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.tracker import Tracker

STEP_COLUMNS: Final = ("global_step", "epoch", "step", "loss", "lr", "images_per_s", "wait_share")
_TRAINED: Final = (
    "epoch",
    "steps",
    "images",
    "seconds",
    "images_per_s",
    "wait_share",
    "loss",
    "lr",
)
_EVALUATED: Final = ("val_images", "val_top1", "val_top5", "ema_top1", "ema_top5", "val_s")
EPOCH_COLUMNS: Final = (*_TRAINED, *_EVALUATED)
STEPS_FILE: Final = "steps.csv"
EPOCHS_FILE: Final = "epochs.csv"
SUMMARY_FILE: Final = "summary.json"
_UNFINISHED: Final = ".unfinished"  # of all processes, so that kills leave one file at most


def explain_errors(path: Path) -> AbstractContextManager[None]:
    """Raise OSErrors of the body as ResourceErrors, one line that names ``path``, with a remedy."""
    return explain_write_errors(str(path), "make room or name another --output folder")


def make_folder(path: Path) -> None:
    with explain_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically; ResourceError when that fails."""
    with explain_errors(path):
        write_output(path, content, suffix=_UNFINISHED)


def to_json(value: object) -> bytes:
    """Return a file's text; numbers that are not finite are null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


class RunFiles(Tracker):
    """Writes them into ``folder``, which ``begin`` creates where it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results: dict[int, EpochResult] = {}
        self._steps: TextIO | None = None

    def begin(self, run: RunInfo) -> None:
        make_folder(self._folder)
        summary, steps = self._folder / SUMMARY_FILE, self._folder / STEPS_FILE
        with explain_errors(summary):
            summary.unlink(missing_ok=True)  # of the run before; this one has not ended
        values = asdict(run)
        del values["first_step"], values["history"]  # which a resume changes
        replace_file(self._folder / "run.json", to_json(values))
        self._results = {result.epoch: result for result in run.history}
        self._write_epochs()
        kept = [row for row in _read_steps(self._folder) if int(row[0]) <= run.first_step]
        replace_file(steps, _to_csv(STEP_COLUMNS, kept))
        with explain_errors(steps):
            self._steps = steps.open("a", encoding="utf-8", buffering=1)

    def log_step(self, report: StepReport) -> None:
        assert self._steps is not None, "begun"
        numbers = [f"{value:.6g}" for value in (report.loss, report.lr, report.images_per_s)]
        row = [report.global_step, report.epoch, report.step, *numbers, f"{report.wait_share:.4f}"]
        with explain_errors(self._folder / STEPS_FILE):
            self._steps.write(",".join(map(str, row)) + "\n")

    def end_epoch(self, result: EpochResult) -> None:
        self._results[result.epoch] = result
        self._write_epochs()

    def end(self, outcome: Outcome) -> None:
        replace_file(self._folder / SUMMARY_FILE, to_json(outcome))

    def close(self) -> None:
        if self._steps is not None:
            with explain_errors(self._folder / STEPS_FILE):
                self._steps.close()

    def _write_epochs(self) -> None:
        rows = []
        for _, result in sorted(self._results.items()):
            values = {**asdict(result), "ema_top1": result.ema_top1, "ema_top5": result.ema_top5}
            values |= {"val_top1": result.top1, "val_top5": result.top5}
            row = [values[column] for column in EPOCH_COLUMNS]
            rows.append([f"{each:.6g}" if isinstance(each, float) else each for each in row])
        replace_file(self._folder / EPOCHS_FILE, _to_csv(EPOCH_COLUMNS, rows))


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """Return global step and loss of each row of steps.csv; none where there is no such file."""
    loss = STEP_COLUMNS.index("loss")
    return [(int(row[0]), float(row[loss])) for row in _read_steps(folder)]


def read_epochs(folder: Path) -> list[dict[str, float]]:
    """Return the values of each row of epochs.csv, without those that it does not have."""
    with explain_errors(folder / EPOCHS_FILE):
        text = (folder / EPOCHS_FILE).read_text("utf-8")
    rows = csv.DictReader(io.StringIO(text))
    return [{name: float(value) for name, value in row.items() if value} for row in rows]


def _read_steps(folder: Path) -> list[list[str]]:
    """Return the whole rows; ResourceError when the file cannot be read."""
    with explain_errors(folder / STEPS_FILE):
        try:
            text = (folder / STEPS_FILE).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
    lines = text.split("\n")[1:-1]  # without the header, and the last line if it is cut short
    return [row for row in (line.split(",") for line in lines) if _is_whole(row)]


def _is_whole(row: Sequence[str]) -> bool:
    """Whether a row has all columns; power loss can leave a file with zeros in it."""
    try:
        return row[0].isdecimal() and len([*map(float, row)]) == len(STEP_COLUMNS)
    except ValueError:
        return False


def merge_row(path: Path, key: str, row: Mapping[str, object]) -> None:
    """Add a row to a CSV file, in place of one with the same value in the column ``key``.

    Rows are in the order of their keys, integers; the file is replaced. ResourceError where it
    cannot be read, as it is no regular file, or be written.
    """
    rows: dict[int, Mapping[str, object]] = {}
    with explain_write_errors(str(path), "make room or name another --csv file"):
        if path.exists():
            content = open_regular_file(path)
            with io.TextIOWrapper(content, encoding="utf-8", errors="replace", newline="") as file:
                for before in csv.DictReader(file):
                    if (before.get(key) or "").isdecimal():
                        rows[int(before[key])] = before
        rows[int(str(row[key]))] = row
        values = [[each.get(name) for name in row] for _, each in sorted(rows.items())]
        write_output(path, _to_csv(row, values))


def _to_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()
