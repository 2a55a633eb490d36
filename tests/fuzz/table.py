"""The results of a fuzz run as text."""

from collections.abc import Mapping

from tests.fuzz.runner import Tally

_HEAD = ("target", "inputs", "accepted", "rejected", "slowest", "peak memory", "kept", "failures")


def format_table(tallies: Mapping[str, Tally], took_s: float | None) -> str:
    """Return a row for each target and one with the totals."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    rows = [_HEAD, *(_row(name, tally) for name, tally in tallies.items()), _row("all", total)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    if took_s is not None:
        per_s = total.inputs / took_s
        lines.append(f"{total.inputs:,} inputs in {took_s / 60:.1f} minutes, {per_s:,.0f} a second")
    return "\n".join(lines)


def format_failures(tallies: Mapping[str, Tally]) -> str:
    """Return each finding with the process's output and the command that reproduces it."""
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    if not failures:
        return "no findings"
    parts = [
        f"FOUND: {failure.target}, seed {failure.seed}: {failure.what}\n"
        f"reproduce: {failure.reproducer}\n{failure.detail}\n"
        for failure in failures
    ]
    return "\n".join([*parts, f"{len(failures)} findings"])


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    return (
        name,
        f"{tally.inputs:,}",
        f"{tally.accepted:,}",
        f"{tally.rejected:,}",
        f"{tally.slowest_s * 1e3:.1f} ms",
        f"{tally.peak_bytes / 2**20:.1f} MiB",
        f"{tally.kept_bytes / 2**20:.1f} MiB",
        str(len(tally.failures)),
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
