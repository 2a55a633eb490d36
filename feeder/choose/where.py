"""The expressions of ``feeder select --where``: conditions on what a dataset's index knows.

    condition   any ("or" any)…          any    all ("and" all)…       all    "not" all | test
    test        "(" condition ")" | FLAG | amount ("<" | "<=" | ">" | ">=" | "==" | "!=") amount
    amount      factor ("*" | "/" factor)…                factor    NUMBER | FIELD

Fields are ``width`` and ``height`` in pixels and ``bytes``, the size as packed. Flags are the kinds
of odd sources that the manifest counts, such as ``cmyk`` or ``wrong-suffix``. Amounts are computed
as float64. Invariant: an expression that parses is true or false of every record.
"""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import Oddity
from feeder.errors import ConfigError
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.path_text import printable

Condition: TypeAlias = Callable[[NDArray[np.void]], NDArray[np.bool_]]
"""Whether it holds for each of n records of dtype RECORD."""
_Amount: TypeAlias = Callable[[NDArray[np.void]], Any]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z][A-Za-z0-9_-]*)"
    r"|(?P<sign><=|>=|==|!=|[<>*/()]))"
)
_FIELDS: Final = {"width": "width", "height": "height", "bytes": "blob_bytes"}
_FLAGS: Final = {kind: flag for flag in Oddity for kind in flag.kinds()}
_COMPARISONS: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_KEYWORDS: Final = ("and", "or", "not")
_CHARACTERS_MAX: Final = 1000
_DEPTH_MAX: Final = 64


def parse_where(text: str) -> Condition:
    """Return the condition; ConfigError, with the place, for what is none."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _CHARACTERS_MAX:
            raise self._error(f"it has {len(text)} characters, {_CHARACTERS_MAX} are allowed", 0)
        self._tokens = [*self._split()]
        self._next = 0
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._any()
        kind, token, at = self._tokens[self._next]
        if kind != "end":
            raise self._error(f"{token!r} is not expected there", at)
        return condition

    def _split(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error(f"{text[at]!r} has no meaning", at)
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            at = match.end()
        yield "end", "the end", len(text)

    def _error(self, problem: str, at: int) -> ConfigError:
        shown = printable(self._text[:80]) + "…" * (len(self._text) > 80)
        return ConfigError(f"--where {shown}: {problem} (character {at + 1})")

    def _take(self, *tokens: str) -> str | None:
        """Return the next token and go on if it is one of these, else None."""
        token = self._tokens[self._next][1]
        if token not in tokens:
            return None
        self._next += 1
        return token

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return lambda records: np.logical_or.reduce([part(records) for part in parts])

    def _all(self) -> Condition:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return lambda records: np.logical_and.reduce([part(records) for part in parts])

    def _not(self) -> Condition:
        is_negated = False
        while self._take("not"):
            is_negated = not is_negated
        condition = self._test()
        return (lambda records: ~condition(records)) if is_negated else condition

    def _test(self) -> Condition:
        if self._take("("):
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise self._error("parentheses are nested too deeply", self._tokens[self._next][2])
            condition = self._any()
            self._depth -= 1
            _, token, at = self._tokens[self._next]
            if not self._take(")"):
                raise self._error(f"a ) is missing before {token!r}", at)
            return condition
        word = self._tokens[self._next][1]
        if word in _FLAGS:
            self._next += 1
            flag = np.uint32(_FLAGS[word])
            return lambda records: (records["flags"] & flag) != 0
        left = self._amount()
        _, token, at = self._tokens[self._next]
        sign = self._take(*_COMPARISONS)
        if sign is None:
            raise self._error(f"one of {' '.join(_COMPARISONS)} is missing before {token!r}", at)
        right, compare = self._amount(), _COMPARISONS[sign]
        return lambda records: np.broadcast_to(compare(left(records), right(records)), len(records))

    def _amount(self) -> _Amount:
        amount = self._factor()
        while sign := self._take("*", "/"):
            amount = _combine(np.multiply if sign == "*" else np.divide, amount, self._factor())
        return amount

    def _factor(self) -> _Amount:
        kind, token, at = self._tokens[self._next]
        if kind == "number":
            self._next += 1
            value = np.float64(token)
            return lambda _: value
        if kind != "word" or token in _KEYWORDS:
            raise self._error(f"a number or a field is missing before {token!r}", at)
        if token in _FLAGS:
            raise self._error(f"{token} is a flag, which cannot be compared", at)
        if token not in _FIELDS:
            known = [*_FIELDS, *_FLAGS]
            hint = hint_at_nearest(token, known, f"; known are {', '.join(known)}", str)
            raise self._error(f"there is no field or flag {token!r}{hint}", at)
        self._next += 1
        field = _FIELDS[token]
        return lambda records: records[field].astype(np.float64)


def _combine(function: "np.ufunc", left: _Amount, right: _Amount) -> _Amount:
    def combined(records: NDArray[np.void]) -> Any:
        with np.errstate(all="ignore"):  # x / 0 is infinite or NaN, which compares as such
            return function(left(records), right(records))

    return combined
