"""Writes numbers as a reader expects them: separators, few digits, units."""

from collections.abc import Mapping
from typing import Final

_PREFIXES: Final = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def format_amount(value: float) -> str:
    """A number with three digits, or all of a whole part, e.g. 4,288 or 0.0625 or −1.5."""
    if value < 0:
        return f"−{format_amount(-value)}"
    if value and (value >= 1e9 or value < 1):
        return f"{value:.3g}"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 10 else 2}f}".rstrip("0").rstrip(".")


def format_compact(value: float) -> str:
    """A number for an axis, e.g. 250, 5,000, 20k or 1.5M."""
    for prefix, size in _PREFIXES:
        if value >= max(size, 10_000):
            return f"{format_amount(value / size)}{prefix}"
    return format_amount(value)


def format_share(part: float, whole: float) -> str:
    """``part`` of ``whole`` as a percentage, e.g. 12.5 % or < 0.01 %."""
    if not part or not whole:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "< 0.01 %"
    if part < whole and percent > 99.9:
        return "> 99.9 %"
    return f"{format_amount(round(percent, 2 if percent < 1 else 1))} %"


def format_column_share(part: float, whole: float) -> str:
    """The same with two decimals always, so that the numbers of a column are aligned."""
    percent = 100 * part / whole
    return "< 0.01 %" if 0 < percent < 0.005 else f"{percent:.2f} %"


def format_bytes(value: float) -> str:
    """A size, e.g. 109.3 MB or 1,290 GB."""
    for prefix, size in (("T", 1e12), *_PREFIXES):
        if value >= size:
            amount = value / size
            return f"{amount:,.1f} {prefix}B" if amount < 1000 else f"{amount:,.0f} {prefix}B"
    return f"{value:,.0f} B"


def plural(count: int, one: str, many: str = "") -> str:
    """E.g. "1 class" or "1,000 classes"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Names with their counts; those with equal counts by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
