"""The results of a bench: the JSON that every bench writes, and its table.

``bench/README.md`` ("Reading a row") describes both. Names and units stay the same from version to
version.
"""

import itertools
import json
import math
import re
import statistics
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from feeder.errors import DatasetError
from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.regular_file import read_regular

RATE: Final = "images/s"

FEWEST_ROUNDS: Final = 5
"""With fewer, even the least and the most of the rounds are not 90 % certain to hold the median."""

COLUMNS: Final = 79

_CONFIDENCE: Final = 0.9

_AGAINST: Final = re.compile("-against-[^/]*")

_BYTES_MAX: Final = 64 << 20  # of a report; a larger file is something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    value: float
    unit: str
    min: float
    max: float
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    """None, like ``ratio_high``, without a baseline and with fewer than FEWEST_ROUNDS rounds."""
    ratio_high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the ratio's noise; None where it is not known."""
        if self.ratio_low is None or self.ratio_high is None:
            return None
        return self.ratio_low, self.ratio_high

    @property
    def is_within_noise(self) -> bool:
        """Whether a difference from the baseline is not distinguishable from noise."""
        if self.interval is None:
            return self.ratio is not None
        low, high = self.interval
        return low <= 1 <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    bench: str
    machine: Mapping[str, object]
    results: Sequence[Result]
    measured: Mapping[str, object] = field(default_factory=dict)  # how much: rounds, images …

    @property
    def rows(self) -> dict[str, Result]:
        return {row.name: row for row in self.results}

    def write_json(self, path: Path) -> None:
        """Write the JSON to ``path``; ResourceError when that fails."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        with explain_write_errors(f"the results to {path}", "name another --json file"):
            write_output(path, text.encode())

    def conclude(self) -> list[str]:
        """Return what the rows mean, in sentences, the most important one first."""
        return []

    def tables(self) -> Iterator[list[str]]:
        """Yield the lines of each table that the text shows."""
        yield row_table(self.results)

    def to_text(self) -> str:
        """Return conclusion, header and tables as text, with a newline at its end."""
        lines = wrap(self.conclude())
        if lines:
            lines += [*wrap([self.describe_rounds()]), ""]
        lines.append(f"feeder-bench {self.bench}")
        for name, value in {**self.machine, **self.measured}.items():
            if isinstance(value, Mapping):
                value = [f"{key} {entry}" for key, entry in value.items()]
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            lines.append(f"  {name.replace('_', ' ')}: {shown}")
        for table in self.tables():
            lines += ["", *table]
        return "\n".join(lines) + "\n"

    def describe_rounds(self) -> str:
        """Return what a value is the median of, and where noise is shown; "" without rounds."""
        rounds = self.measured.get("rounds")
        if not isinstance(rounds, int):
            return ""
        if rounds == 1:
            return "Measured once: no spread is known, so use more --rounds to compare."
        noise = f"Noise is shown from {FEWEST_ROUNDS} rounds on."
        if rounds >= FEWEST_ROUNDS:
            noise = (
                "In brackets: the 90 % interval of the true median; if it holds 1, the difference "
                "is within the noise."
            )
        return f"Values are medians of {rounds} rounds; ratios are of the same rounds. {noise}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReport(Report):
    failures: Sequence[str]  # a line for each reason; empty when the run has passed


def read_report(path: Path) -> Report:
    """Return what ``write_json`` wrote; DatasetError where ``path`` holds something else."""
    try:
        return msgspec.json.decode(read_regular(path, _BYTES_MAX), type=Report)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"is not a bench's JSON ({error})"
    raise DatasetError(f"{path} {problem}: name a file that `feeder-bench … --json` wrote")


def summarise(
    name: str,
    unit: str,
    values: Sequence[float],
    baseline: str | None = None,
    baseline_values: Sequence[float] = (),
) -> Result:
    """Return the row of ``values``, one a round; ``baseline_values`` are of the same rounds."""
    ratio, low, high = None, None, None
    if baseline is not None:
        ratios = [value / base for value, base in zip(values, baseline_values, strict=True)]
        ratio = statistics.median(ratios)
        low, high = median_interval(ratios) or (None, None)
    return Result(
        name=name,
        value=statistics.median(values),
        unit=unit,
        min=min(values),
        max=max(values),
        baseline=baseline,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
    )


def compare(
    values: Mapping[str, Sequence[float]],
    unit: str,
    baselines: Mapping[str, str | None] | None = None,
) -> list[Result]:
    """Return a row for each name in ``baselines``, compared in each round with that baseline.

    A row NAME-against-OTHER has the values of NAME. Without ``baselines``, there is a row for each
    of ``values``, and the first is the baseline of the others.
    """
    if baselines is None:
        first, *others = values
        baselines = {first: None, **dict.fromkeys(others, first)}
    return [
        summarise(name, unit, values[_AGAINST.sub("", name)], base, values.get(base or "", ()))
        for name, base in baselines.items()
    ]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval that holds the true median with at least 90 % confidence.

    It is the narrowest one between the k-th least and the k-th greatest value that does: the sign
    test's interval, which assumes no distribution. Of 5 to 7 values it is the least and the most,
    of 9 the second of each, of 11 and 12 the third. None for fewer than FEWEST_ROUNDS values.
    """
    count = len(values)
    if count < FEWEST_ROUNDS:
        return None
    ordered = sorted(values)
    outside = 0
    beyond = 2 / 2**count  # the chance that the median is outside the interval that ends here
    while beyond <= 1 - _CONFIDENCE:
        outside += 1
        beyond += 2 * math.comb(count, outside) / 2**count
    return ordered[outside - 1], ordered[-outside]


def single(name: str, unit: str, value: float) -> Result:
    """Return the row of a value that was counted or measured once."""
    return Result(name=name, value=value, unit=unit, min=value, max=value)


def align(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table; columns not in ``left`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrap(sentences: Iterable[str], columns: int = COLUMNS) -> list[str]:
    """Return the lines of sentences, each beginning with a line of its own."""
    wrapped = (textwrap.wrap(each, columns, break_on_hyphens=False) for each in sentences)
    return [*itertools.chain.from_iterable(wrapped)]


def format_ratio(row: Result) -> str:
    """Return the ratio and, in brackets, the interval of its noise where that is known."""
    assert row.ratio is not None
    if row.interval is None:
        return f"{row.ratio:.2f}"
    low, high = row.interval
    return f"{row.ratio:.2f} ({low:.2f}–{high:.2f})"


def row_table(results: Sequence[Result]) -> list[str]:
    table: list[Sequence[str]] = [("", "value", "", "", "min", "max", "ratio", "", "")]
    for row in results:
        each = f"{1e6 / row.value:,.0f} µs" if row.unit == RATE and row.value > 0 else ""
        spread = (row.min, row.max) if row.min != row.max else ()
        least, most = map(format_number, spread) if spread else ("", "")
        ratio, base, noise = "", "", ""
        if row.ratio is not None:
            ratio, base = format_ratio(row), f"× {row.baseline}"
            noise = "within noise" * (row.interval is not None and row.is_within_noise)
        cells = (row.name, format_number(row.value), row.unit, each, least, most)
        table.append((*cells, ratio, base, noise))
    return align(table, left={0, 2, 6, 7, 8})


def format_number(value: float) -> str:
    """Return the number as tables show it: about three digits, or all before the point."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"
