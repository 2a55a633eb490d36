"""Patterns of several files: braces, as in shells and WebDataset.

{000..146}, {a..f}, {train,val}, nested, with the steps of a range, {0..10..2}. Braces that hold
neither a range nor a comma stay as they are.
"""

import itertools
import re
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import printable

EXPANDED_MAX: Final = 1_000_000
_RANGE: Final = re.compile(
    r"(?:(-?\d{1,18})\.\.(-?\d{1,18})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d{1,18}))?", re.ASCII
)
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def expand_braces(pattern: str) -> list[str]:
    """Return all texts that ``pattern`` stands for, in its order; duplicates are kept.

    Raises ConfigError for unbalanced braces and for over EXPANDED_MAX texts.
    """
    depths = list(itertools.accumulate((c == "{") - (c == "}") for c in pattern))
    if depths and (min(depths) < 0 or depths[-1]):
        raise ConfigError(
            f"the braces in {printable(pattern)} are unbalanced: write them as in "
            "shard-{000..146}.tar"
        )
    try:
        return _expand(pattern)
    except (OverflowError, RecursionError):
        raise ConfigError(
            f"{printable(pattern)} stands for over {EXPANDED_MAX:,} files: give a smaller range"
        ) from None


def _expand(text: str) -> list[str]:
    """Return the texts that a pattern of balanced braces stands for; OverflowError for too many."""
    start = text.find("{")
    if start < 0:
        return [text]
    depth = 0
    cuts = [start]  # the brace that opens, its own commas, and the one that closes
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if (text[at] == "," and depth == 1) or not depth:
            cuts.append(at)
        if not depth:
            break
    parts = [text[left + 1 : right] for left, right in itertools.pairwise(cuts)]
    if len(parts) > 1:
        values = list(itertools.chain(*map(_expand, parts)))
    else:
        values = _expand_range(parts[0]) or [f"{{{value}}}" for value in _expand(parts[0])]
    rests = _expand(text[cuts[-1] + 1 :])
    if len(values) * len(rests) > EXPANDED_MAX:
        raise OverflowError
    return [f"{text[:start]}{value}{rest}" for value in values for rest in rests]


def _expand_range(inner: str) -> list[str]:
    """Return the texts of a range; empty for what is none."""
    match = _RANGE.fullmatch(inner)
    if match is None:
        return []
    bounds = match.group(1, 2) if match[1] else match.group(3, 4)
    first, last = map(int if match[1] else _ALPHABET.index, bounds)
    step = max(1, int(match[5] or 1))
    if abs(last - first) // step >= EXPANDED_MAX:
        raise OverflowError
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if not match[1]:
        return [_ALPHABET[number] for number in numbers]
    is_padded = any(re.match(r"-?0\d", bound) for bound in bounds)
    width = max(map(len, bounds)) if is_padded else 0
    return [f"{number:0{width}d}" for number in numbers]
