"""The kinds of values that configuration keys take: what is allowed, in code and in words.

Each kind parses a value as TOML gives it (strictly: 4 is a number, "4" is not), and text as the
command line gives it (`from_text`). `parse` raises ValueError where the value is not allowed; the
caller names the key, and `allowed` says what would have been right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from feeder.errors import ConfigError
from feeder.host.placement_plan import parse_pin
from feeder.node.endpoint import parse_endpoint
from feeder.wire.messages import MAX_ENDPOINTS

AUTO = "auto"


class Kind(Protocol):
    """What a configuration key takes."""

    @property
    def allowed(self) -> str:
        """The allowed values, for a message: "a whole number 1 .. 64"."""

    def parse(self, value: object) -> object:
        """Return the value to keep; ValueError where it is not allowed."""

    def from_text(self, text: str) -> object:
        """Return what the command line's text means, still to be parsed."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer within bounds, both included; where so said, also 0 and the word "auto"."""

    minimum: int
    maximum: int
    auto: bool = False
    zero: bool = False

    @property
    def allowed(self) -> str:
        bounds = f"a whole number {self.minimum} .. {self.maximum}"
        return bounds + ", or 0" * self.zero + ', or "auto"' * self.auto

    def parse(self, value: object) -> object:
        if self.auto and value == AUTO:
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError
        if not self.minimum <= value <= self.maximum and not (self.zero and value == 0):
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        try:
            return int(text)
        except ValueError:
            return text


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds, both included; whole numbers become floats."""

    minimum: float
    maximum: float

    @property
    def allowed(self) -> str:
        return f"a number {self.minimum:g} .. {self.maximum:g}"

    def parse(self, value: object) -> object:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        if not self.minimum <= value <= self.maximum:  # NaN fails this too
            raise ValueError
        return float(value)

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(f'"{word}"' for word in self.words)

    def parse(self, value: object) -> object:
        if value not in self.words:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class PinList:
    """The argument of `--pin`, kept as text; `feeder.host.placement.parse_pin` reads it."""

    @property
    def allowed(self) -> str:
        return '"auto", "off" or a list of CPUs such as "0-3,8"'

    def parse(self, value: object) -> object:
        if not isinstance(value, str):
            raise ValueError
        try:
            parse_pin(value)
        except ConfigError:
            raise ValueError from None
        return value

    def from_text(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints to bind, 1 .. MAX_ENDPOINTS, none twice; kept as a tuple of text."""

    @property
    def allowed(self) -> str:
        example = '["tcp://127.0.0.1:5555"]'
        return f"a list of different endpoints such as {example}, at most {MAX_ENDPOINTS}"

    def parse(self, value: object) -> object:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError
        if not 1 <= len(value) <= MAX_ENDPOINTS:
            raise ValueError
        if not all(isinstance(item, str) for item in value) or len(set(value)) != len(value):
            raise ValueError
        for item in value:
            parse_endpoint(item)  # its ConfigError says more than we could
        return tuple(value)

    def from_text(self, text: str) -> object:
        return (text,)


@dataclass(frozen=True, slots=True)
class AbsoluteFolder:
    """A folder's absolute path, as text."""

    @property
    def allowed(self) -> str:
        return "an absolute path"

    def parse(self, value: object) -> object:
        if not isinstance(value, str) or not PurePosixPath(value).is_absolute() or "\0" in value:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class FilePath:
    """The path of a file or folder, as text; empty for none. A relative one begins at the file's
    folder, or at the working directory where the command line gives it."""

    @property
    def allowed(self) -> str:
        return 'a path, or "" for none'

    def parse(self, value: object) -> object:
        if not isinstance(value, str) or "\0" in value:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return text
