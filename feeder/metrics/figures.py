"""Numbers as text, as short as they can be: 8,412  31 %  1.2 GB  3 h 12 min."""

from itertools import pairwise
from typing import Final

_TIMES: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def count(value: float) -> str:
    """Thousands are separated: 1,281,167."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A number a second: 8,412 and 0.4."""
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share from 0 to 1: 31 %, and 0.4 % where a whole number would be 0."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < value < 0.95 else f"{value:.0f} %"


def size(size_bytes: float) -> str:
    """12.0 GB, 800 KB, 12 bytes."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} bytes"
    size_bytes /= 1000
    units = ["KB", "MB", "GB", "TB"]
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        units.pop(0)
    return f"{size_bytes:,.{1 if size_bytes < 99.95 else 0}f} {units[0]}"


def megabytes(size_bytes: float) -> str:
    """A size for a sentence: 1.2 GB, 300 MB, 0.4 MB."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.{0 if size_bytes >= 1e6 else 1}f} MB"


def duration(seconds: float) -> str:
    """A time in its two largest units: 4.2 s, 3 min 20 s, 3 h 12 min, 12 d 4 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (unit_s, unit), (smaller_s, smaller) in pairwise(_TIMES):
        if whole >= unit_s:
            rest = whole % unit_s // smaller_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def plural(number: float, noun: str) -> str:
    """1 worker, 8 workers, 3 classes, 4 batches."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count(number)} {noun}{ending}"
