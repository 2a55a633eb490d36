"""The report of ``feeder-bench peers``: every bench's JSON with the contenders added, and a table.

The JSON has one more key than the other benches':

     "contenders": [{"name", "versions": {…}, "quality": {…}, "antialiased", "ours", "missing"}, …]

``missing`` is null, or why this contender has no rate: it is not installed, or it failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..report import RATE, Report, Result, align, compare, format_ratio, row_table
from .catalogue import CONTENDERS

CPU_RATE: Final = "images/s of CPU time"
ALL_CORES: Final = "/all-cores"  # the end of the names of rows that were measured on all cores
CORES: Final = {"": "one core", ALL_CORES: "all cores"}

_WORDS: Final = {contender.name: contender.words for contender in CONTENDERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderNotes:
    name: str
    versions: Mapping[str, str]
    quality: Mapping[str, str]
    antialiased: bool
    ours: bool
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalsReport(Report):
    contenders: Sequence[ContenderNotes]

    def tables(self) -> Iterator[list[str]]:
        for suffix, title in CORES.items():
            notes = [each for each in self.contenders if is_on(each.name, suffix)]
            if notes:
                yield [title, *align(self._rate_rows(notes), left={0, 4, 6, 7})]
                yield row_table(self.against_fastest(suffix))
        heads = ("", "resizes", "decodes", "IDCT", "chroma", "source")
        alone = [each for each in self.contenders if is_on(each.name, "")]
        rows = [heads, *((short_name(each.name), *each.quality.values()) for each in alone)]
        yield ["what their pixels are made of", *align(rows, left=range(6))]

    def conclude(self) -> list[str]:
        """Return a sentence for each set of cores, and one on contenders that have no rate."""
        sentences = []
        for suffix, cores in CORES.items():
            rows = [row for row in self.against_fastest(suffix) if row.unit == RATE]
            if len({row.baseline for row in rows}) == 1:
                rows = rows[:1]
            if rows:
                sentences.append(f"On {cores}, Feeder is {', and '.join(map(_describe, rows))}.")
        sentences = sentences or ["No other loader was measured."]
        missing = [words_of(each.name) for each in self.contenders if each.missing is not None]
        if missing:
            names = ", ".join(dict.fromkeys(missing))
            sentences.append(f"Not measured, for the reasons in the table: {names}.")
        return sentences

    def against_fastest(self, suffix: str) -> list[Result]:
        """Return Feeder's rows against the fastest, and the fastest antialiased, on these cores."""
        rows = (row for row in self.results if is_on(row.name, suffix))
        return [row for row in rows if "-against-fastest" in row.name]

    def _rate_rows(self, contenders: Sequence[ContenderNotes]) -> list[tuple[str, ...]]:
        """Return the cells of the rates, fastest first, then the contenders without a rate."""
        rates = self.rows
        baseline = next(each.name for each in contenders if each.ours)
        ahead = f"{short_name(baseline)} is"
        rows: list[tuple[str, ...]] = [
            ("", RATE, "min", "max", ahead, "per CPU s", ahead, "versions")
        ]
        present = [each for each in contenders if each.missing is None]
        for each in sorted(present, key=lambda each: -rates[each.name].value):
            row, cpu = rates[each.name], rates[_cpu_name(each.name)]
            versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
            numbers = (f"{value:,.0f}" for value in (row.value, row.min, row.max))
            cells = (*numbers, _times(row), f"{cpu.value:,.0f}", _times(cpu), versions)
            rows.append((short_name(each.name), *cells))
        for each in contenders:
            if each.missing is not None:
                rows.append((short_name(each.name), "—", "", "", "", "", "", each.missing))
        return rows


def build_results(
    rates: Mapping[str, Sequence[float]],
    contenders: Sequence[ContenderNotes],
    *,
    unit: str = RATE,
) -> list[Result]:
    """Return the rows of one set of cores, ours first; those of CPU_RATE are ``cpu/…``."""
    label = _cpu_name if unit == CPU_RATE else str
    values = {label(name): row for name, row in rates.items()}
    base = label(next(each.name for each in contenders if each.ours))
    results = compare({base: values[base]} | values, unit)
    rows = {row.name: row for row in results}
    stem = base.removesuffix(ALL_CORES)
    for which, only_antialiased in (("", False), ("-antialiased", True)):
        rivals = [
            rows[label(each.name)]
            for each in contenders
            if not each.ours and each.name in rates and (each.antialiased or not only_antialiased)
        ]
        if rivals:
            fastest = max(rivals, key=lambda row: row.value)
            name = f"{stem}-against-fastest{which}{base.removeprefix(stem)}"
            results += compare(values, unit, {name: fastest.name})
    return results


def _describe(row: Result) -> str:
    """Return how Feeder compares with the baseline, and of what that is the first."""
    what = "with the same resizing" if "antialias" in row.name else "other loader"
    rival, times = f"{words_of(row.baseline or '')}, the fastest {what}", format_ratio(row)
    if row.interval is not None and row.is_within_noise:
        return f"as fast as {rival}, within the noise: {times} times"
    return f"{times} times as fast as {rival}"


def words_of(name: str) -> str:
    return _WORDS.get(name.removesuffix(ALL_CORES), short_name(name))


def is_on(name: str, suffix: str) -> bool:
    """Return whether row ``name`` is of the set of cores with ``suffix`` ("" or ALL_CORES)."""
    return name.endswith(ALL_CORES) == bool(suffix)


def short_name(name: str) -> str:
    return name.removeprefix("peers/").removesuffix(ALL_CORES)


def _cpu_name(name: str) -> str:
    return name.replace("peers/", "cpu/", 1)


def _times(row: Result) -> str:
    return "" if row.ratio is None else f"{1 / row.ratio:.2f} ×"
