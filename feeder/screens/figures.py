"""Numbers as text, as short as they can be: 8,412  31 %  1.2 GB  3 h 12 min."""

import unicodedata


def count(value: float) -> str:
    """Return a whole number with thousands separated: 1,281,167."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a number a second: 8,412 and 0.4."""
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a share: 31 %, and 0.4 % where a whole number would be 0."""
    value = 100 * share
    if 0 < value < 0.95:
        return "<0.1 %" if value < 0.05 else f"{value:.1f} %"
    return f"{value:.0f} %"


def size(size_bytes: float) -> str:
    """Return a number of bytes: 12.0 GB, 800 KB, 12 bytes."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} bytes"
    units = iter(("KB", "MB", "GB", "TB"))
    unit = next(units)
    size_bytes /= 1000
    while size_bytes >= 999.5 and unit != "TB":
        unit = next(units)
        size_bytes /= 1000
    return f"{size_bytes:.1f} {unit}" if size_bytes < 99.95 else f"{size_bytes:,.0f} {unit}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: 4.2 s, 3 min 20 s, 3 h 12 min, 12 d 4 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, "min", 60, "s", 1)
    if whole < 86_400:
        return _two(whole, "h", 3600, "min", 60)
    return _two(whole, "d", 86_400, "h", 3600)


def _two(seconds: int, unit: str, unit_s: int, smaller: str, smaller_s: int) -> str:
    rest = seconds % unit_s // smaller_s
    return f"{seconds // unit_s} {unit} {rest} {smaller}" if rest else f"{seconds // unit_s} {unit}"


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: 1 worker, 8 workers, 3 classes."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{count(number)} {noun}{ending}"


def printable(text: str) -> str:
    """Return a text from elsewhere without what moves the cursor or reorders a terminal's line."""
    return "".join(
        "?" if unicodedata.category(character) in _NOT_SHOWN else character for character in text
    )


_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
