"""The files that every run writes into its folder, CSV and JSON.

    run.json       what was known before the first step; the same again after a resume
    steps.csv      a row for each logged step (``step_rows``)
    epochs.csv     a row for each complete epoch
    summary.json   how the run ended, once it has ended

Invariant: after any kills and resumes, epochs.csv has every complete epoch once, in order.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.output_file import (
    explain_errors,
    make_folder,
    replace_file,
)
from trainer_client.reference.tracking.step_rows import StepRows
from trainer_client.reference.tracking.tracker import Tracker

EPOCH_COLUMNS: Final = (
    *("epoch", "steps", "images", "seconds", "images_per_s", "wait_share", "loss", "lr"),
    *("val_images", "val_top1", "val_top5", "ema_top1", "ema_top5", "val_s"),
)
RUN_FILE: Final = "run.json"
STEPS_FILE: Final = "steps.csv"
EPOCHS_FILE: Final = "epochs.csv"
SUMMARY_FILE: Final = "summary.json"
_OF_THIS_PROCESS: Final = ("first_step", "history")  # fields of RunInfo that a resume changes


class RunFiles(Tracker):
    """Writes them; each method raises ResourceError where the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        """Write into ``folder``, which ``begin`` creates where it is missing."""
        self._folder = folder
        self._results: dict[int, EpochResult] = {}
        self._steps: StepRows | None = None

    def begin(self, run: RunInfo) -> None:
        """Write run.json, and the rows of the tables from before the step where the job starts."""
        make_folder(self._folder)
        summary = self._folder / SUMMARY_FILE
        with explain_errors(summary):
            summary.unlink(missing_ok=True)  # of the run before; this one has not ended
        _write_json(
            self._folder / RUN_FILE,
            {name: getattr(run, name) for name in _names(run) if name not in _OF_THIS_PROCESS},
        )
        self._results = {result.epoch: result for result in run.history}
        self._write_epochs()
        self._steps = StepRows(self._folder / STEPS_FILE, first_step=run.first_step)

    def log_step(self, report: StepReport) -> None:
        """Append a row to steps.csv."""
        if self._steps is not None:
            self._steps.append(report)

    def end_epoch(self, result: EpochResult) -> None:
        """Write epochs.csv with the new epoch."""
        self._results[result.epoch] = result
        self._write_epochs()

    def end(self, outcome: Outcome) -> None:
        """Write summary.json: the fields of ``outcome``."""
        values = {name: getattr(outcome, name) for name in _names(outcome)}
        _write_json(self._folder / SUMMARY_FILE, values)

    def close(self) -> None:
        """Close steps.csv. Idempotent."""
        if self._steps is not None:
            self._steps.close()

    def _write_epochs(self) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(EPOCH_COLUMNS)
        writer.writerows(_epoch_row(self._results[epoch]) for epoch in sorted(self._results))
        replace_file(self._folder / EPOCHS_FILE, text.getvalue().encode())


def _names(report: RunInfo | Outcome) -> list[str]:
    return [each.name for each in fields(report)]


def _epoch_row(result: EpochResult) -> list[object]:
    values = {
        **asdict(result),
        "val_top1": result.top1,
        "val_top5": result.top5,
        "ema_top1": result.ema_top1,
        "ema_top5": result.ema_top5,
    }
    chosen = (values[column] for column in EPOCH_COLUMNS)
    return [f"{value:.6g}" if isinstance(value, float) else value for value in chosen]


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    text = json.dumps(_to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    # Names that are not UTF-8 have lone surrogates, which this writes as JSON's own escapes.
    replace_file(path, text.encode(errors="backslashreplace") + b"\n")


def _to_json(value: object) -> object:
    """Return ``value`` as JSON has it: no other types of mappings, null for what is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _to_json(each) for key, each in value.items()}
        case None | bool() | int() | str():
            return value
        case Sequence():
            return [_to_json(each) for each in value]
        case _:
            return str(value)
