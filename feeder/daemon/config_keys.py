"""The kinds of values that configuration keys take.

A kind parses a value of TOML (strictly: 4 is a number, "4" is not), and reads text of the command
line (`from_text`). `parse` raises ValueError if the value is not allowed; the caller's message then
names the key and the `allowed` values.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from feeder.daemon.sizes import format_size, parse_size
from feeder.errors import ConfigError
from feeder.host.placement import parse_pin
from feeder.monitoring.access import parse_address
from feeder.node.endpoint import parse_endpoint
from feeder.wire.messages import MAX_ENDPOINTS

AUTO = "auto"

_FEEDER_NAME = re.compile(r"[A-Za-z0-9._-]{0,128}")


class Kind(Protocol):
    """The kind of a configuration key's value."""

    @property
    def allowed(self) -> str:
        """The allowed values, for a message: "a whole number 1 .. 64"."""

    def parse(self, value: object) -> object:
        """Return the value to keep; ValueError if it is not allowed."""

    def from_text(self, text: str) -> object:
        """Return the value of the command line's text, not yet parsed."""
        return text

    def to_toml(self, value: object) -> object:
        """Return a parsed value as a file has it, from which it is parsed to the same."""
        return value


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind):
    """An integer within inclusive bounds; if enabled, also 0 or the word "auto"."""

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
class Size(WholeNumber):
    """Bytes within inclusive bounds, as a whole number or as text with a unit: "4 GiB"."""

    @property
    def allowed(self) -> str:
        bounds = f"{format_size(self.minimum)} .. {format_size(self.maximum)}"
        words = ", or 0" * self.zero + ', or "auto"' * self.auto
        return f'a size {bounds} such as "4 GiB", "1.5 GB" or 1048576 (bytes){words}'

    def parse(self, value: object) -> object:
        is_size = isinstance(value, str) and not (self.auto and value == AUTO)
        return WholeNumber.parse(self, parse_size(str(value)) if is_size else value)

    def to_toml(self, value: object) -> object:
        shown = format_size(value) if isinstance(value, int) else ""
        return value if not shown or shown.endswith(" B") else shown


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number within inclusive bounds, kept as float."""

    minimum: float
    maximum: float

    @property
    def allowed(self) -> str:
        return f"a number {self.minimum:g} .. {self.maximum:g}"

    def parse(self, value: object) -> object:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        if not self.minimum <= value <= self.maximum:  # also true for NaN
            raise ValueError
        return float(value)

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(f'"{word}"' for word in self.words)

    def parse(self, value: object) -> object:
        if value not in self.words:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class PinList(Kind):
    """The argument of `--pin`, kept as text for `feeder.host.placement.parse_pin`."""

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


@dataclass(frozen=True, slots=True)
class FeederName(Kind):
    """A name for the daemon, of characters that lists, logs and labels take; empty for none."""

    @property
    def allowed(self) -> str:
        return 'letters, digits and . _ -, 128 at most, or "" for the host\'s name'

    def parse(self, value: object) -> object:
        if not isinstance(value, str) or not _FEEDER_NAME.fullmatch(value):
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Endpoints(Kind):
    """1 .. MAX_ENDPOINTS different endpoints to bind, kept as a tuple of text."""

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
            parse_endpoint(item)  # raises a more specific ConfigError
        return tuple(value)

    def from_text(self, text: str) -> object:
        return (text,)


@dataclass(frozen=True, slots=True)
class MetricsAddress(Kind):
    """An address for the metrics, kept as text for `parse_address`; empty for none."""

    @property
    def allowed(self) -> str:
        return 'an address such as "127.0.0.1:9464", or "" for none'

    def parse(self, value: object) -> object:
        if not isinstance(value, str):
            raise ValueError
        if value:
            parse_address(value)  # raises a more specific ConfigError
        return value


@dataclass(frozen=True, slots=True)
class AbsoluteFolder(Kind):
    """A folder's absolute path, as text."""

    @property
    def allowed(self) -> str:
        return "an absolute path"

    def parse(self, value: object) -> object:
        if not isinstance(value, str) or not PurePosixPath(value).is_absolute() or "\0" in value:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class FilePath(Kind):
    """The path of a file or folder, as text; empty for none. A relative one starts at the
    configuration file's folder or, on the command line, at the working directory."""

    @property
    def allowed(self) -> str:
        return 'a path, or "" for none'

    def parse(self, value: object) -> object:
        if not isinstance(value, str) or "\0" in value:
            raise ValueError
        return value
