"""The report of ``feeder-bench pack``: every bench's JSON with the contenders added, and a table.

Rows of Feeder are ``pack/KIND``, those of other formats ``writer/NAME``:

    pack/KIND                     images/s of the command; ratio: to the folder's in the same round
    pack/KIND/cpu                 the same per second of CPU time
    pack/KIND/list, pack, publish seconds of the command
    pack/KIND/source, size        MB of the source; of the dataset, ratio: to the folder's source

    "contenders": [{"name", "work", "versions": {…}, "missing"}, …]

``missing`` is null, or why a contender has no rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..report import RATE, Report, Result, align, format_number, header_lines, single, summarise
from ..rivals.report import CPU_RATE
from .turn import PHASES, Turn

OURS: Final = "pack/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContender:
    """All about a contender except its measured rows."""

    name: str
    work: str
    """On each image, in a few words."""
    versions: Mapping[str, str]
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport(Report):
    """A report with the contenders' notes."""

    contenders: Sequence[PackContender]

    def to_text(self) -> str:
        """Return header and tables as text, with a newline at its end."""
        rows = {result.name: result for result in self.results}
        rates = ("", RATE, "min", "max", "ratio", "per CPU s", "ratio")
        ours: list[tuple[str, ...]] = [
            (*rates, *(f"{phase} s" for phase in PHASES), "source MB", "MB", "ratio", "")
        ]
        theirs: list[tuple[str, ...]] = [(*rates, "MB", "ratio", "")]
        for each in self.contenders:
            mine = each.name.startswith(OURS)
            table = ours if mine else theirs
            if each.missing is None:
                cells = [each.name, *_rate_cells(each.name, rows)]
                if mine:
                    cells += [f"{rows[f'{each.name}/{phase}'].value:.2f}" for phase in PHASES]
                    cells.append(format_number(rows[f"{each.name}/source"].value))
                size = rows[f"{each.name}/size"]
                cells += [format_number(size.value), _ratio_cell(size)]
                versions = [f"{name} {version}" for name, version in each.versions.items()]
                table.append((*cells, ": ".join([*versions, each.work] if each.work else versions)))
            else:
                blank = [""] * (len(table[0]) - 3)
                table.append((each.name, "—", *blank, each.missing))
        lines = [f"feeder-bench {self.bench}", *header_lines(self.machine), ""]
        lines += align(ours, left={0, len(ours[0]) - 1})
        if len(theirs) > 1:
            lines += ["", *align(theirs, left={0, len(theirs[0]) - 1})]
        return "\n".join(lines) + "\n"


def _rate_cells(name: str, rows: Mapping[str, Result]) -> list[str]:
    rate, cpu = rows[name], rows[f"{name}/cpu"]
    cells = [format_number(round(value)) for value in (rate.value, rate.min, rate.max)]
    return [*cells, _ratio_cell(rate), format_number(round(cpu.value)), _ratio_cell(cpu)]


def _ratio_cell(row: Result) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}"


def build_results(
    turns: Mapping[str, Sequence[Turn]], *, images: int, source_bytes: Mapping[str, int]
) -> list[Result]:
    """Return the rows, given each contender's turns, one a round; the first is the baseline.

    Sizes are compared with the baseline's source, the images' own bytes.
    """
    results: list[Result] = []
    baseline = next(iter(turns))
    source = single(f"{baseline}/source", "MB", source_bytes[baseline] / 1e6)
    for name, taken in turns.items():
        for suffix, unit in (("", RATE), ("/cpu", CPU_RATE)):
            values = _rates(taken, images, unit)
            base = None if name == baseline else f"{baseline}{suffix}"
            base_values = _rates(turns[baseline], images, unit)
            results.append(summarise(f"{name}{suffix}", unit, values, base, base_values))
        for phase in taken[0].phases:
            seconds = [turn.phases[phase] for turn in taken]
            results.append(summarise(f"{name}/{phase}", "s", seconds))
        if name in source_bytes:
            results.append(single(f"{name}/source", "MB", source_bytes[name] / 1e6))
        results.append(
            summarise(
                f"{name}/size",
                "MB",
                [turn.size_bytes / 1e6 for turn in taken],
                baseline=source.name,
                baseline_values=[source.value] * len(taken),
            )
        )
    return results


def _rates(turns: Sequence[Turn], images: int, unit: str) -> list[float]:
    return [images / (turn.seconds if unit == RATE else turn.cpu_seconds) for turn in turns]
