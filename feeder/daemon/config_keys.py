"""The kinds of values that configuration keys take, and the tables of weights.

A kind parses a value of TOML (strictly: 4 is a number, "4" is not), and reads text of the command
line. Its ``parse`` raises ValueError if the value is not allowed; the caller's message then names
the key and the allowed values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from feeder.errors import ConfigError
from feeder.host.placement import parse_pin
from feeder.monitoring.access import parse_address
from feeder.node.endpoint import parse_endpoint
from feeder.wire.messages import MAX_ENDPOINTS, JobName, Name

AUTO: Final = "auto"
WEIGHTS: Final = "weights"

_FEEDER_NAME: Final = re.compile(r"[A-Za-z0-9._-]{0,128}")
_SHOWN_CHARS: Final = 80

_UNITS: Final = {
    "TiB": 2**40,
    "TB": 10**12,
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
}
_BY_LOWER: Final = {"b": 1, **{name.lower(): factor for name, factor in _UNITS.items()}}
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([a-z]{1,3})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a configuration key's value."""

    allowed: str
    """The allowed values, for a message: "a whole number 1 .. 64"."""
    parse: Callable[[Any], object]
    """Checks a value and gives the one to keep; ValueError if it is not allowed."""
    from_text: Callable[[str], object] = str
    """The value of the command line's text, not yet parsed; ValueError if it has none."""
    is_path: bool = False
    """A relative one starts at the configuration file's folder or, on the command line, at the
    working directory."""


def whole_number(minimum: int, maximum: int, *, auto: bool = False) -> Kind:
    """An integer within inclusive bounds or, if enabled, the word "auto"."""

    def parse(value: Any) -> object:
        is_number = type(value) is int and minimum <= value <= maximum  # True is none
        if not is_number and not (auto and value == AUTO):
            raise ValueError
        return value

    words = ', or "auto"' if auto else ""
    return Kind(f"a whole number {minimum} .. {maximum}{words}", parse, int)


def size(minimum: int, maximum: int, *, zero: bool = False) -> Kind:
    """Bytes within inclusive bounds, as a whole number or as text with a unit ("4 GiB"), or "auto";
    if enabled, also 0."""
    allowed = (
        f'a size {format_size(minimum)} .. {format_size(maximum)} such as "4 GiB", "1.5 GB" or '
        f'1048576 (bytes){", or 0" if zero else ""}, or "auto"'
    )

    def parse(value: Any) -> object:
        if value == AUTO:
            return AUTO
        count = parse_size(value) if isinstance(value, str) else value
        if type(count) is not int or not (minimum <= count <= maximum or (zero and count == 0)):
            raise ValueError
        return count

    return Kind(allowed, parse, int)


def number(minimum: float, maximum: float) -> Kind:
    """A number within inclusive bounds, kept as float."""

    def parse(value: Any) -> float:
        if type(value) not in (int, float) or not minimum <= value <= maximum:  # NaN neither
            raise ValueError
        return float(value)

    return Kind(f"a number {minimum:g} .. {maximum:g}", parse, float)


def text(allowed: str, accepts: Callable[[str], object], *, is_path: bool = False) -> Kind:
    """Text that ``accepts`` takes; it may raise a more specific ConfigError."""

    def parse(value: Any) -> object:
        if not isinstance(value, str) or not accepts(value):
            raise ValueError
        return value

    return Kind(allowed, parse, is_path=is_path)


def choice(words: Sequence[str]) -> Kind:
    """One of a few words."""
    return text("one of " + ", ".join(f'"{word}"' for word in words), lambda word: word in words)


def _parse_endpoints(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError
    if not 1 <= len(set(value)) == len(value) <= MAX_ENDPOINTS:
        raise ValueError
    for item in value:
        parse_endpoint(item)  # raises a more specific ConfigError
    return tuple(value)


def _is_pin(value: str) -> bool:
    try:
        parse_pin(value)
    except ConfigError:
        return False
    return True


ENDPOINTS: Final = Kind(
    f'a list of different endpoints such as ["tcp://127.0.0.1:5555"], at most {MAX_ENDPOINTS}',
    _parse_endpoints,
)
PIN: Final = text('"auto", "off" or a list of CPUs such as "0-3,8"', _is_pin)
FEEDER_NAME: Final = text(
    'letters, digits and . _ -, 128 at most, or "" for the host\'s name', _FEEDER_NAME.fullmatch
)
METRICS_ADDRESS: Final = text(
    'an address such as "127.0.0.1:9464", or "" for none',
    lambda value: not value or parse_address(value),
)
ABSOLUTE_FOLDER: Final = text(
    "an absolute path", lambda value: PurePosixPath(value).is_absolute() and "\0" not in value
)
FILE_PATH: Final = text('a path, or "" for none', lambda value: "\0" not in value, is_path=True)
DATASET: Final = text(
    "the path of a dataset or source", lambda value: value and "\0" not in value, is_path=True
)
_WEIGHT: Final = number(0.01, 100)


def parse_size(value: str) -> int:
    """Read a number of bytes with a unit, rounded; ValueError if it is anything else.

    The case of a unit does not matter. One letter alone, as in "4G", stands for 1000 in one program
    and for 1024 in another, so it is refused.
    """
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2].lower() not in _BY_LOWER:
        raise ValueError(f"{value!r} is not a size such as 4 GiB or 1.5 GB")
    return round(Decimal(match[1]) * _BY_LOWER[match[2].lower()])


def format_size(size_bytes: int) -> str | int:
    """A number of bytes in the largest unit that gives it exactly, with one decimal; else as it is.

    Invariant: a size is parsed from it to the same number.
    """
    for name, factor in _UNITS.items():
        if size_bytes >= factor and size_bytes * 10 % factor == 0:
            return f"{Decimal(size_bytes) / factor:f} {name}"
    return size_bytes


def parse_weights(client: str, value: object) -> Mapping[str, float]:
    """Parse the table [weights.CLIENT]: JOB = the job's weight, 1 if it is not listed.

    CLIENT is what limits apply to: the name of a key, over ipc "user 1000", over plain tcp
    "address 10.1.2.3". JOB is the name that a job gives, "" for the sessions that give none.
    ConfigError, without the file's name, if it is invalid.
    """
    if not _is_name(client, Name):
        raise ConfigError(
            f"{client[:_SHOWN_CHARS]!r} in [{WEIGHTS}] is not a client: write a key's name, "
            '"user NUMBER" or "address ADDRESS"'
        )
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'{WEIGHTS}.{client} must be a table of its jobs: [{WEIGHTS}."{client}"] with JOB = 3'
        )
    weights: dict[str, float] = {}
    for job, weight in value.items():
        if not _is_name(job, JobName):
            raise ConfigError(
                f"{job[:_SHOWN_CHARS]!r} in [{WEIGHTS}.{client}] is not a job's name: use 128 "
                "characters at most, no control characters"
            )
        try:
            weights[job] = float(_WEIGHT.parse(weight))  # type: ignore[arg-type]
        except ValueError:
            raise ConfigError(
                f"the weight of job {job!r} in [{WEIGHTS}.{client}] is not {_WEIGHT.allowed}"
            ) from None
    return weights


def _is_name(value: str, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
