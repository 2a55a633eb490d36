"""Sizes of memory as text: "4 GiB", "1.5 GB".

Invariant: ``parse_size(format_size(n)) == n`` for every whole number of bytes.
"""

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BY_LOWER: Final = {name.lower(): factor for name, factor in _UNITS.items()}
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([a-z]{1,3})", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a number with a unit, rounded; ValueError if it is anything else.

    The case of a unit does not matter. One letter alone, as in "4G", stands for 1000 in one program
    and for 1024 in another, so it is refused.
    """
    found = _SIZE.fullmatch(text.strip())
    factor = None if found is None else _BY_LOWER.get(found[2].lower())
    if found is None or factor is None:
        raise ValueError(f"{text!r} is not a size such as 4 GiB or 1.5 GB")
    return round(Decimal(found[1]) * factor)


def format_size(size_bytes: int) -> str:
    """Return a number of bytes in the largest unit that gives it exactly, with one decimal."""
    for name, factor in sorted(_UNITS.items(), key=lambda unit: -unit[1]):
        if size_bytes >= factor and size_bytes * 10 % factor == 0:
            return f"{Decimal(size_bytes) / factor:f} {name}"
    return f"{size_bytes} B"
