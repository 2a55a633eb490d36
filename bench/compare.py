"""``feeder-bench compare A.json B.json``: what changed between two runs of a bench, with the noise.

Differences in machine, cores or libraries come first, because they may explain all the others. Two
rows whose spreads overlap are "within noise", whatever their medians are. Where a row has no spread
in either file (it was counted or measured once), only the fact that it differs is reported.
"""

import argparse
from collections.abc import Mapping
from typing import Final

from feeder.errors import ConfigError

from .report import Result, align, format_number, read_report

_LOAD: Final = "load_before"  # listed separately, as it differs between any two runs


def run(arguments: argparse.Namespace) -> str:
    """Compare two files; DatasetError unless both are reports, ConfigError for two benches."""
    paths = arguments.A, arguments.B
    before, after = map(read_report, paths)
    if before.bench != after.bench:
        raise ConfigError(
            f"{paths[0]} is of `feeder-bench {before.bench}` and {paths[1]} of "
            f"`feeder-bench {after.bench}`: compare two runs of the same bench"
        )
    lines = [f"feeder-bench {before.bench}: A {paths[0]}, B {paths[1]}"]
    one, two = _flatten(before.machine), _flatten(after.machine)
    load = f"  load before: {one.pop(_LOAD, 'unknown')} → {two.pop(_LOAD, 'unknown')}"
    differences = [
        f"    {name.replace('_', ' ')}: {one.get(name, 'none')} → {two.get(name, 'none')}"
        for name in one | two
        if one.get(name) != two.get(name)
    ]
    if differences:
        lines += ["  differences between the machines, which may explain the rest:", *differences]
    else:
        lines.append("  same machine, cores and libraries")
    lines.append(load)
    rows_before = {row.name: row for row in before.results}
    rows_after = {row.name: row for row in after.results}
    table: list[tuple[str, ...]] = [("", "A", "B", "", "B/A", "", "ratio to baseline")]
    table += [
        _table_row(row, rows_after[name]) for name, row in rows_before.items() if name in rows_after
    ]
    if len(table) > 1:
        lines += ["", *align(table, left={0, 3, 5, 6})]
    for which, rows, others in (("A", rows_before, rows_after), ("B", rows_after, rows_before)):
        alone = [row for name, row in rows.items() if name not in others]
        if alone:
            lines += ["", f"only in {which}:"]
            lines += [f"  {row.name}  {_with_spread(row)} {row.unit}" for row in alone]
    return "\n".join(lines) + "\n"


def verdict_on(before: Result, after: Result) -> str:
    """Return the conclusion from two medians and their spreads, in a few words."""
    if before.unit != after.unit:
        return f"not comparable: {before.unit} and {after.unit}"
    if before.value == after.value:
        return "same"
    if before.min == before.max and after.min == after.max:
        return "differs, noise unknown"
    if before.min <= after.max and after.min <= before.max:
        return "within noise"
    return "higher" if after.value > before.value else "lower"


def _flatten(machine: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return {"libraries numpy": "2.1", …}: the text of each entry, by its path."""
    flat: dict[str, str] = {}
    for key, value in machine.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key} ")
        else:
            flat[prefix + key] = str(value)
    return flat


def _table_row(before: Result, after: Result) -> tuple[str, ...]:
    against = ""
    if before.ratio is not None and after.ratio is not None and before.baseline == after.baseline:
        against = f"{before.ratio:.2f} → {after.ratio:.2f} × {after.baseline}"
    return (
        before.name,
        _with_spread(before),
        _with_spread(after),
        after.unit,
        f"{after.value / before.value:.2f}" if before.value else "",
        verdict_on(before, after),
        against,
    )


def _with_spread(result: Result) -> str:
    if result.min == result.max:
        return format_number(result.value)
    low, high = format_number(result.min), format_number(result.max)
    return f"{format_number(result.value)} [{low}, {high}]"
