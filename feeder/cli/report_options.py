"""The options of the commands that watch a daemon; imports nothing large."""

import argparse
from typing import Final

from feeder.cli.key_options import add_key_options
from feeder.errors import ConfigError

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5555"
DEADLINE_S: Final = 5.0
_INTERVAL_RANGE_S: Final = (0.1, 3600.0)


def add_source_options(parser: argparse.ArgumentParser, *, is_several: bool = False) -> None:
    """Add the endpoint (``endpoints`` of ``is_several``), the deadline and the keys."""
    text = f"any endpoint of the host's daemon (default: {DEFAULT_ENDPOINT})"
    if is_several:
        parser.add_argument(
            "endpoints",
            metavar="ENDPOINT",
            nargs="*",
            default=[DEFAULT_ENDPOINT],
            help=f"{text}; several: a line for each host",
        )
    else:
        parser.add_argument(
            "endpoint", metavar="ENDPOINT", nargs="?", default=DEFAULT_ENDPOINT, help=text
        )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEADLINE_S,
        metavar="S",
        help=f"seconds to wait for the reply (default: {DEADLINE_S:g})",
    )
    add_key_options(parser)


def check_timeout(arguments: argparse.Namespace) -> float:
    """Return the deadline; ConfigError if it is out of range."""
    if not 0 < arguments.timeout <= 3600:
        raise ConfigError(f"--timeout {arguments.timeout:g}: it must be above 0, up to 3600 s")
    return float(arguments.timeout)


def add_interval_option(parser: argparse.ArgumentParser, default_s: float) -> None:
    """Add --interval; None where it is not given."""
    parser.add_argument(
        "--interval",
        type=float,
        metavar="S",
        help=f"seconds between requests (default: {default_s:g})",
    )


def choose_interval(arguments: argparse.Namespace, default_s: float) -> float:
    """Return the seconds between requests; ConfigError if they are out of range."""
    interval_s = default_s if arguments.interval is None else float(arguments.interval)
    least, most = _INTERVAL_RANGE_S
    if not least <= interval_s <= most:
        raise ConfigError(f"--interval {interval_s:g}: it must be from {least:g} to {most:g} s")
    return interval_s
