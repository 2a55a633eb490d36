"""The kinds of values that configuration keys take, and the tables of weights.

In a file a value has its type: 4 is a number, "4" is not. On the command line all is text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from feeder.client.endpoints import Source
from feeder.errors import ConfigError
from feeder.host.placement import parse_pin
from feeder.node.endpoint import Endpoint, parse_endpoint
from feeder.wire.messages import MAX_ENDPOINTS, JobName, Name

WEIGHTS: Final = "weights"

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
_BY_LOWER: Final = {"b": 1, "": 1, **{name.lower(): factor for name, factor in _UNITS.items()}}
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([a-z]{0,3})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a configuration key's value."""

    allowed: str
    """The allowed values, for a message: "a whole number 1 .. 64"."""
    type: Any
    """What msgspec converts a value to."""
    check: Callable[[Any], Any] = lambda value: value
    """Takes a value of that type and returns the one to keep; ValueError if it is not allowed, or a
    more specific ConfigError."""
    is_path: bool = False
    """A relative one starts at the configuration file's folder or, on the command line, at the
    working directory."""


def whole_number(minimum: int, maximum: int, *, auto: bool = False) -> Kind:
    """An integer within inclusive bounds or, if enabled, the word "auto"."""
    number: Any = Annotated[int, Meta(ge=minimum, le=maximum)]
    allowed = f"a whole number {minimum} .. {maximum}"
    if auto:
        return Kind(f'{allowed}, or "auto"', number | Literal["auto"])
    return Kind(allowed, number)


def number(minimum: float, maximum: float) -> Kind:
    """A number within inclusive bounds, kept as float."""
    allowed = f"a number {minimum:g} .. {maximum:g}"
    return Kind(allowed, Annotated[float, Meta(ge=minimum, le=maximum)])


def size(minimum: int, maximum: int, *, zero: bool = False) -> Kind:
    """Bytes within inclusive bounds, as a number or with a unit, or "auto"; if enabled, also 0."""
    allowed = (
        f'a size {format_size(minimum)} .. {format_size(maximum)} such as "4 GiB", "1.5 GB" or '
        f'1048576 (bytes){", or 0" if zero else ""}, or "auto"'
    )

    def check(value: int | str) -> int | str:
        if value == "auto":
            return value
        size_bytes = parse_size(value) if isinstance(value, str) else value
        if not (minimum <= size_bytes <= maximum or (zero and size_bytes == 0)):
            raise ValueError
        return size_bytes

    return Kind(allowed, int | str, check)


def choice(words: Sequence[str]) -> Kind:
    """One of a few words."""
    allowed = "one of " + ", ".join(f'"{word}"' for word in words)
    return Kind(allowed, str, lambda word: words[words.index(word)])  # ValueError for another


def text(allowed: str, pattern: str, *, is_path: bool = False) -> Kind:
    """Text that has a pattern."""
    return Kind(allowed, Annotated[str, Meta(pattern=rf"^{pattern}\Z")], is_path=is_path)


def _check_endpoints(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(set(endpoints)) == len(endpoints) <= MAX_ENDPOINTS:
        raise ValueError
    for endpoint in endpoints:
        parse_endpoint(endpoint)  # raises a more specific ConfigError
    return endpoints


def _check_peers(peers: tuple[str, ...]) -> tuple[str, ...]:
    for text in peers:
        Source(text)  # raises a more specific ConfigError
    return peers


def _check_pin(value: str) -> str:
    try:
        parse_pin(value)
    except ConfigError as error:
        raise ValueError from error
    return value


def parse_metrics_address(value: str) -> Endpoint:
    """Parse a numeric address with a port, such as ``[::1]:9464``; ConfigError otherwise."""
    try:
        if value.count(":") > 1 and not value.startswith("["):
            raise ConfigError("the port could be a part of the address")
        return parse_endpoint(f"tcp://{value}")
    except ConfigError:
        raise ConfigError(
            f"metrics: {value!r} is not a numeric address with a port: write 127.0.0.1:9464, "
            '[::1]:9464, or "" for none'
        ) from None


def _check_metrics(value: str) -> str:
    if value:
        parse_metrics_address(value)
    return value


ENDPOINTS: Final = Kind(
    f'a list of different endpoints such as ["tcp://127.0.0.1:5555"], at most {MAX_ENDPOINTS}',
    tuple[str, ...],
    _check_endpoints,
)
PEERS: Final = Kind(
    'a list of what clients have as endpoints, such as ["file:///shared/feeders"]',
    tuple[str, ...],
    _check_peers,
)
PIN: Final = Kind('"auto", "off" or a list of CPUs such as "0-3,8"', str, _check_pin)
FEEDER_NAME: Final = text(
    'letters, digits and . _ -, 128 at most, or "" for the host\'s name', "[A-Za-z0-9._-]{0,128}"
)
METRICS_ADDRESS: Final = Kind(
    'an address such as "127.0.0.1:9464", or "" for none', str, _check_metrics
)
ABSOLUTE_FOLDER: Final = text("an absolute path", r"/[^\0]*")
FILE_PATH: Final = text('a path, or "" for none', r"[^\0]*", is_path=True)
DATASET: Final = text("the path of a dataset or source", r"[^\0]+", is_path=True)
_WEIGHT: Final = number(0.01, 100)


def parse_size(value: str) -> int:
    """Read a number of bytes with or without a unit, rounded; ValueError if it is anything else.

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
    problem = f"{client[:_SHOWN_CHARS]!r} in [{WEIGHTS}] is not a client: write a key's name, "
    _convert(client, Name, f'{problem}"user NUMBER" or "address ADDRESS"')
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'{WEIGHTS}.{client} must be a table of its jobs: [{WEIGHTS}."{client}"] with JOB = 3'
        )
    weights, where = {}, f"in [{WEIGHTS}.{client}] is not"
    for job, weight in value.items():
        name = f"{job[:_SHOWN_CHARS]!r} {where} a job's name: use 128 characters at most, no "
        _convert(job, JobName, f"{name}control characters")
        problem = f"the weight of job {job!r} {where} {_WEIGHT.allowed}"
        weights[job] = _convert(weight, _WEIGHT.type, problem)
    return weights


def _convert(value: object, kind: Any, problem: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ConfigError(problem) from None
