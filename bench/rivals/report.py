"""The report of ``feeder-bench peers``: every bench's JSON with the contenders added, and a table.

The JSON has one more key than the other benches':

     "contenders": [{"name", "versions": {…}, "quality": {…}, "antialiased", "missing"}, …]

``missing`` is null, or why this contender has no rate: it is not installed, or it failed. Rows
called ``cpu/…`` are the same turns per second of CPU time, which a busy machine distorts less.
``ratio`` is, as in all benches, the row's rate over that of ``baseline`` in the same round, so a
rival's is below 1 where we are ahead; the table shows the inverse, "feeder is … ×".
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..report import RATE, Report, Result, header_lines, summarise
from .conclusion import ALL_CORES, conclude, is_on, short_name

CPU_RATE = "images/s of CPU time"

_COLUMNS: Final = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderNotes:
    """All about a contender except its rate."""

    name: str
    versions: Mapping[str, str]
    quality: Mapping[str, str]
    antialiased: bool
    ours: bool
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalsReport(Report):
    """A report with the contenders' notes."""

    contenders: Sequence[ContenderNotes]

    def to_text(self) -> str:
        """Return the conclusion, header, rates on each set of cores, and quality of the pixels."""
        rates = {result.name: result for result in self.results}
        lines = [
            line
            for sentence in self.conclusion()
            for line in textwrap.wrap(sentence, _COLUMNS, break_on_hyphens=False)
        ]
        lines += ["", "feeder-bench peers", *header_lines(self.machine)]
        for suffix, title in (("", "one core"), (ALL_CORES, "all cores")):
            notes = [each for each in self.contenders if is_on(each.name, suffix)]
            if notes:
                lines += ["", title, *_table(_rate_rows(notes, rates)), *self._summary(suffix)]
        lines += ["", "what their pixels are made of", *_table(self._quality_rows())]
        return "\n".join(lines) + "\n"

    def conclusion(self) -> list[str]:
        """Return a sentence for each set of cores, and what was measured."""
        return conclude(self, [each.name for each in self.contenders if each.missing is not None])

    def _summary(self, suffix: str) -> list[str]:
        """Return a line for each comparison with the fastest."""
        lines = []
        for result in self.results:
            if "-against-fastest" in result.name and is_on(result.name, suffix):
                kind = " that resizes antialiased, as we do" if "antialias" in result.name else ""
                lines.append(
                    f"  {result.name}: {result.ratio:.2f} × {result.baseline}, the fastest rival"
                    f"{kind}"
                )
        return lines

    def _quality_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("", "resizes", "decodes", "IDCT", "chroma", "source")]
        for each in self.contenders:
            if is_on(each.name, ""):
                rows.append((short_name(each.name), *each.quality.values()))
        return rows


def build_results(
    rates: Mapping[str, Sequence[float]],
    contenders: Sequence[ContenderNotes],
    *,
    unit: str = RATE,
) -> list[Result]:
    """Return the rows of one set of cores, given all rates by round; ours, the baseline, first.

    ``unit`` is RATE or CPU_RATE; the rows of the latter are ``cpu/…`` instead of ``peers/…``.
    """
    if unit == CPU_RATE:
        contenders = [replace(each, name=_cpu_name(each.name)) for each in contenders]
        rates = {_cpu_name(name): values for name, values in rates.items()}
    baseline_name = next(each.name for each in contenders if each.ours)
    baseline = summarise(baseline_name, unit, rates[baseline_name])
    rows = [baseline]
    for name, values in rates.items():
        if name != baseline_name:
            rows.append(
                summarise(
                    name, unit, values, baseline=baseline, baseline_values=rates[baseline_name]
                )
            )
    rivals = [each for each in contenders if not each.ours and each.name in rates]
    for label, names in (
        ("against-fastest", [each.name for each in rivals]),
        ("against-fastest-antialiased", [each.name for each in rivals if each.antialiased]),
    ):
        if names:
            rows.append(_against_fastest(label, baseline, rates, rows, names))
    return rows


def _against_fastest(
    label: str,
    baseline: Result,
    rates: Mapping[str, Sequence[float]],
    rows: Sequence[Result],
    names: Sequence[str],
) -> Result:
    fastest = max((row for row in rows if row.name in names), key=lambda row: row.value)
    stem = baseline.name.removesuffix(ALL_CORES)
    ours = summarise(
        f"{stem}-{label}{baseline.name.removeprefix(stem)}",
        baseline.unit,
        rates[baseline.name],
        baseline=fastest,
        baseline_values=rates[fastest.name],
    )
    return replace(ours, baseline=fastest.name)


def _rate_rows(
    contenders: Sequence[ContenderNotes], rates: Mapping[str, Result]
) -> list[tuple[str, ...]]:
    """Return the cells of the rates, fastest first, then the contenders without a rate."""
    baseline = next(each.name for each in contenders if each.ours)
    ahead = f"{short_name(baseline)} is"
    head = ("", RATE, "min", "max", ahead, "per CPU s", ahead, "versions")
    present = [each for each in contenders if each.missing is None]
    present.sort(key=lambda each: -rates[each.name].value)
    rows: list[tuple[str, ...]] = [head]
    for each in present:
        row = rates[each.name]
        cpu = rates[_cpu_name(each.name)]
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        numbers = (f"{value:,.0f}" for value in (row.value, row.min, row.max))
        cells = (*numbers, _times(row), f"{cpu.value:,.0f}", _times(cpu), versions)
        rows.append((short_name(each.name), *cells))
    rows += [
        (short_name(each.name), "—", "", "", "", "", "", each.missing)
        for each in contenders
        if each.missing is not None
    ]
    return rows


def _times(row: Result) -> str:
    return "" if row.ratio is None else f"{1 / row.ratio:.2f} ×"


_NUMERIC = (RATE, "min", "max", "per CPU s")


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = {column for column, cell in enumerate(rows[0]) if cell in _NUMERIC}
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cpu_name(name: str) -> str:
    return name.replace("peers/", "cpu/", 1)
