"""Seeded mutation of valid bytes and values into nearly valid ones."""

import random
from collections.abc import Sequence
from typing import Any

_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4096, 65_535, 65_536)
_NUMBERS += (2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
_EDITS = ("flip", "flip", "byte", "number", "number", "cut", "drop", "double", "token", "splice")

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 256, 65_535, 65_536, 2**20, 2**31, 2**32, 2**47, 2**48),
    *(2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "a", "x" * 129, "y" * 5000, "\0", "\n"),
    *("\x1b[31m", "\x7f", "\x9b", "é", "‮", "\N{LINE SEPARATOR}", "😀", "auto", "noise"),
    *([], {}, [[]], [0], [0, 0], [1, 0], [0.5, 0.5], [0] * 70, [[0, 0]] * 70, {"": {}}),
)


def nested(rng: random.Random) -> Any:
    """Return nested lists or maps, up to a few thousand deep."""
    depth, as_map = rng.choice((3, 60, 1100, 5000)), rng.random() < 0.5
    value: Any = rng.choice((None, 0, "x"))
    for _ in range(depth):
        value = {"a": value} if as_map else [value]
    return value


def mutate_bytes(
    rng: random.Random,
    data: bytes,
    *,
    others: Sequence[bytes] = (),
    tokens: Sequence[bytes] = (),
    edits_max: int = 4,
    size_max: int = 1 << 18,
) -> bytes:
    """Return ``data`` with one to ``edits_max`` edits.

    Pieces of ``others`` are spliced in; ``tokens`` are words of the format, inserted or written
    over other bytes.
    """
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, edits_max))):
        at = rng.randrange(len(out) + 1)
        size = min(1 << rng.randrange(10), len(out) - at)
        kind = rng.choice(_EDITS)
        if kind == "flip" and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == "byte" and at < len(out):
            out[at] = rng.choice(_BYTES) if rng.random() < 0.5 else rng.randrange(256)
        elif kind == "number":
            _set_number(rng, out, at)
        elif kind == "cut" and rng.random() < 0.5:
            del out[at:]
        elif kind == "drop":
            del out[at : at + min(size, 64)]
        elif kind == "double" and len(out) < size_max:
            out[at:at] = out[at : at + size] * rng.choice((1, 1, 2, 16))
        elif kind == "token" and tokens:
            token = rng.choice(tokens)
            out[at : at + (len(token) if rng.random() < 0.5 else 0)] = token
        elif kind == "splice" and others:
            other = rng.choice(others)
            out[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(out)


def _set_number(rng: random.Random, out: bytearray, at: int) -> None:
    """Write a number of 1 to 8 bytes in either byte order, or modify the present one."""
    width = rng.choice((1, 2, 2, 4, 4, 8))
    order = rng.choice(("little", "big"))
    if rng.random() < 0.4:
        number = int.from_bytes(out[at : at + width], order) + rng.choice((-8, -2, -1, 1, 2, 8))
    else:
        number = rng.choice(_NUMBERS)
    out[at : at + width] = (number % 256**width).to_bytes(width, order)


def mutate_value(rng: random.Random, value: Any, *, edits_max: int = 3) -> Any:
    """Return a copy of a value of maps, lists and scalars with one to ``edits_max`` edits."""
    for _ in range(rng.choice((1, 1, edits_max))):
        value = _edited(rng, value)
    return value


def _edited(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        copy = dict(value)
        key = rng.choice(list(copy))
        kind = rng.random()
        if kind < 0.8:
            copy[key] = _edited(rng, copy[key])
        elif kind < 0.9:
            del copy[key]
        else:
            copy[rng.choice(("", "type", "a\nb", f"{key}x", "x" * 200))] = _any_value(rng)
        return copy
    if isinstance(value, list | tuple) and value and rng.random() < 0.8:
        items = list(value)
        at = rng.randrange(len(items))
        kind = rng.random()
        if kind < 0.7:
            items[at] = _edited(rng, items[at])
        elif kind < 0.85:
            del items[at]
        else:
            items[at:at] = [items[at]] * rng.choice((1, 2, 64))
        return items
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, -(2**16), 2**32))
    return _any_value(rng)


def _any_value(rng: random.Random) -> Any:
    return nested(rng) if rng.random() < 0.03 else rng.choice(VALUES)
