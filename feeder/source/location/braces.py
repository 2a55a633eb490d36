"""Expands braces in a path as shells and WebDataset do: {000..146}, {a..f}, {train,val}, nested.

The steps of a range, {0..10..2}, count too. Braces that hold neither a range nor a comma stay as
they are.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import printable

EXPANDED_MAX: Final = 1_000_000
_DEPTH_MAX: Final = 16
_NUMBERS: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?(\d{1,18}))?", re.ASCII)
_LETTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d{1,18}))?", re.ASCII)
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def expand_braces(pattern: str) -> list[str]:
    """Return all texts that ``pattern`` stands for, in its order; duplicates are kept.

    Raises ConfigError for unbalanced braces and for over EXPANDED_MAX texts.
    """
    _check_balance(pattern)
    return _expand(pattern, pattern, 0)


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


def _expand(text: str, pattern: str, depth: int) -> list[str]:
    expanded = [""]
    at = 0
    while (start := text.find("{", at)) >= 0:
        end, commas = _find_end(text, start)
        inner = text[start + 1 : end]
        values: Sequence[str]
        if commas:
            bounds = itertools.pairwise([start, *commas, end])
            values = [
                value
                for left, right in bounds
                for value in _expand(text[left + 1 : right], pattern, depth + 1)
            ]
        else:
            values = _expand_range(inner, pattern) or [
                f"{{{value}}}" for value in _expand(inner, pattern, depth + 1)
            ]
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
    numbers = _NUMBERS.fullmatch(inner)
    letters = _LETTERS.fullmatch(inner)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        step = max(1, int(numbers[3] or 1))
        if abs(last - first) // step >= EXPANDED_MAX:
            raise _too_many(pattern)
        is_padded = any(
            each.lstrip("-").startswith("0") and each.lstrip("-") != "0"
            for each in numbers.group(1, 2)
        )
        width = max(len(numbers[1]), len(numbers[2])) if is_padded else 0
        return [f"{number:0{width}d}" for number in _range(first, last, step)]
    if letters:
        step = max(1, int(letters[3] or 1))
        first, last = _ALPHABET.index(letters[1]), _ALPHABET.index(letters[2])
        return [_ALPHABET[number] for number in _range(first, last, step)]
    return []


def _range(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _join(expanded: list[str], values: list[str], pattern: str) -> list[str]:
    if len(expanded) * len(values) > EXPANDED_MAX:
        raise _too_many(pattern)
    return [left + right for left in expanded for right in values]


def _too_many(pattern: str) -> ConfigError:
    return ConfigError(
        f"{printable(pattern)} stands for over {EXPANDED_MAX:,} files: give a smaller range"
    )
