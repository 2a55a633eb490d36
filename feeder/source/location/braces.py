"""Expands braces in a path as shells and WebDataset do: {000..146}, {a..f}, {train,val}, nested.

The steps of a range, {0..10..2}, count too. Braces that hold neither a range nor a comma stay as
they are.
"""

import itertools
import re
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import printable

EXPANDED_MAX: Final = 1_000_000
_DEPTH_MAX: Final = 16
_RANGE: Final = re.compile(
    r"(?:(-?\d{1,18})\.\.(-?\d{1,18})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d{1,18}))?", re.ASCII
)
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def expand_braces(pattern: str) -> list[str]:
    """Return all texts that ``pattern`` stands for, in its order; duplicates are kept.

    Raises ConfigError for unbalanced braces and for over EXPANDED_MAX texts.
    """
    _check_balance(pattern)
    return _expand(pattern, pattern)


def _check_balance(pattern: str) -> None:
    depth = 0
    for character in pattern:
        depth += (character == "{") - (character == "}")
        if not 0 <= depth <= _DEPTH_MAX:
            break
    if depth:
        raise ConfigError(
            f"the braces in {printable(pattern)} are "
            f"{'nested too deeply' if depth > _DEPTH_MAX else 'unbalanced'}: write them as in "
            "shard-{000..146}.tar"
        )


def _expand(text: str, pattern: str) -> list[str]:
    expanded = [""]
    at = 0
    while (start := text.find("{", at)) >= 0:
        end, commas = _find_end(text, start)
        inner = text[start + 1 : end]
        if commas:
            bounds = itertools.pairwise([start, *commas, end])
            parts = [_expand(text[left + 1 : right], pattern) for left, right in bounds]
            values = list(itertools.chain(*parts))
        else:
            values = _expand_range(inner, pattern)
            values = values or [f"{{{value}}}" for value in _expand(inner, pattern)]
        expanded = _join(expanded, [text[at:start] + value for value in values], pattern)
        at = end + 1
    return _join(expanded, [text[at:]], pattern)


def _find_end(text: str, start: int) -> tuple[int, list[int]]:
    """Return where the brace that opens at ``start`` closes, and its own commas."""
    depth = 0
    commas: list[int] = []
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                return at, commas
        elif text[at] == "," and depth == 1:
            commas.append(at)
    raise AssertionError("braces are balanced")


def _expand_range(inner: str, pattern: str) -> list[str]:
    """Return the texts of a range; empty for what is none."""
    match = _RANGE.fullmatch(inner)
    if match is None:
        return []
    bounds = match.group(1, 2) if match[1] else match.group(3, 4)
    first, last = map(int if match[1] else _ALPHABET.index, bounds)
    step = max(1, int(match[5] or 1))
    if abs(last - first) // step >= EXPANDED_MAX:
        raise _too_many(pattern)
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if not match[1]:
        return [_ALPHABET[number] for number in numbers]
    is_padded = any(re.match(r"-?0\d", bound) for bound in bounds)
    width = max(map(len, bounds)) if is_padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _join(expanded: list[str], values: list[str], pattern: str) -> list[str]:
    if len(expanded) * len(values) > EXPANDED_MAX:
        raise _too_many(pattern)
    return [left + right for left in expanded for right in values]


def _too_many(pattern: str) -> ConfigError:
    return ConfigError(
        f"{printable(pattern)} stands for over {EXPANDED_MAX:,} files: give a smaller range"
    )
