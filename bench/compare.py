"""``feeder-bench compare A.json B.json``: what changed between two runs of a bench, with the noise.

Differences in machine, cores or libraries come first, because they may explain all the others. Two
rows whose spreads overlap are "within noise", whatever their medians are. Where a row has no spread
in either file (it was counted or measured once), only the fact that it differs is reported.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError

from .report import Result, align, format_number, read_report

_LOAD: Final = "load_before"
"""Listed separately: it differs between any two runs, and shows how busy the machine was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row that both files have."""

    name: str
    before: Result
    after: Result

    @property
    def ratio(self) -> float | None:
        """B's median over A's; None where A's is zero."""
        return self.after.value / self.before.value if self.before.value else None

    @property
    def verdict(self) -> str:
        """The conclusion from the two medians and spreads, in a few words."""
        before, after = self.before, self.after
        if before.unit != after.unit:
            return f"not comparable: {before.unit} and {after.unit}"
        if before.value == after.value:
            return "same"
        if before.min == before.max and after.min == after.max:
            return "differs, noise unknown"
        if before.min <= after.max and after.min <= before.max:
            return "within noise"
        return "higher" if after.value > before.value else "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two runs of the same bench have in common and where they differ."""

    bench: str
    paths: tuple[Path, Path]
    machine: tuple[tuple[str, str, str], ...]
    """(what, in A, in B) of each difference except the load."""
    load: tuple[str, str]
    changes: tuple[Change, ...]
    only_before: tuple[Result, ...]
    only_after: tuple[Result, ...]

    def to_text(self) -> str:
        """Return the comparison as text, with a newline at its end."""
        lines = [f"feeder-bench {self.bench}: A {self.paths[0]}, B {self.paths[1]}"]
        if self.machine:
            lines.append("  differences between the machines, which may explain the rest:")
            lines += [f"    {what}: {before} → {after}" for what, before, after in self.machine]
        else:
            lines.append("  same machine, cores and libraries")
        lines.append(f"  load before: {self.load[0]} → {self.load[1]}")
        if self.changes:
            heads = ("", "A", "B", "", "B/A", "", "ratio to baseline")
            lines += ["", *align([heads, *map(_table_row, self.changes)], left={0, 3, 5, 6})]
        for which, results in (("A", self.only_before), ("B", self.only_after)):
            if results:
                lines += ["", f"only in {which}:"]
                lines += [f"  {each.name}  {_with_unit(each)}" for each in results]
        return "\n".join(lines) + "\n"


def compare(before_path: Path, after_path: Path) -> Comparison:
    """Compare two files; DatasetError unless both are reports, ConfigError for two benches."""
    before, after = read_report(before_path), read_report(after_path)
    if before.bench != after.bench:
        raise ConfigError(
            f"{before_path} is of `feeder-bench {before.bench}` and {after_path} of "
            f"`feeder-bench {after.bench}`: compare two runs of the same bench"
        )
    rows_before = {row.name: row for row in before.results}
    rows_after = {row.name: row for row in after.results}
    machines = _flatten(before.machine), _flatten(after.machine)
    loads = [machine.pop(_LOAD, "unknown") for machine in machines]
    return Comparison(
        bench=before.bench,
        paths=(before_path, after_path),
        machine=tuple(
            (name.replace("_", " "), machines[0].get(name, "none"), machines[1].get(name, "none"))
            for name in machines[0] | machines[1]
            if machines[0].get(name) != machines[1].get(name)
        ),
        load=(loads[0], loads[1]),
        changes=tuple(
            Change(name=name, before=row, after=rows_after[name])
            for name, row in rows_before.items()
            if name in rows_after
        ),
        only_before=tuple(row for name, row in rows_before.items() if name not in rows_after),
        only_after=tuple(row for name, row in rows_after.items() if name not in rows_before),
    )


def _flatten(machine: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return {"libraries numpy": "2.1", …}: the text of each entry, by its path."""
    flat: dict[str, str] = {}
    for key, value in machine.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key} ")
        else:
            flat[prefix + key] = str(value)
    return flat


def _table_row(change: Change) -> tuple[str, ...]:
    before, after, ratio = change.before, change.after, change.ratio
    against = ""
    if before.ratio is not None and after.ratio is not None and before.baseline == after.baseline:
        against = f"{before.ratio:.2f} → {after.ratio:.2f} × {after.baseline}"
    return (
        change.name,
        _with_spread(before),
        _with_spread(after),
        after.unit,
        f"{ratio:.2f}" if ratio is not None else "",
        change.verdict,
        against,
    )


def _with_spread(result: Result) -> str:
    if result.min == result.max:
        return format_number(result.value)
    low, high = format_number(result.min), format_number(result.max)
    return f"{format_number(result.value)} [{low}, {high}]"


def _with_unit(result: Result) -> str:
    return f"{_with_spread(result)} {result.unit}"


def run(arguments: argparse.Namespace) -> Comparison:
    """Do what the command line asks."""
    return compare(arguments.A, arguments.B)
