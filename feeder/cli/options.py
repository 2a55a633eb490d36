"""Options and ways to end that several commands share; imports nothing large."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.pack.progress import ProgressLine
    from feeder.security.keys import ClientKeys

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5555"
DEADLINE_S: Final = 5.0

T = TypeVar("T")


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that connect to a daemon, for ``read_keys``."""
    parser.add_argument("--server-key", metavar="KEY", help="the daemon's public key, or its file")
    parser.add_argument("--client-key", metavar="FILE", help="file of your secret key")


def read_keys(arguments: argparse.Namespace) -> "ClientKeys | None":
    """The keys that the options name; ConfigError."""
    from feeder.security.keys import read_client_keys

    return read_client_keys(arguments.server_key, arguments.client_key)


def add_timeout_option(
    parser: argparse.ArgumentParser, what: str, default_s: float = DEADLINE_S
) -> None:
    """Add --timeout, for ``check_timeout``."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=default_s,
        metavar="S",
        help=f"{what} (default: {default_s:g})",
    )


def check_timeout(arguments: argparse.Namespace) -> float:
    """The deadline; ConfigError if it is out of range."""
    if not 0 < arguments.timeout <= 3600:
        raise ConfigError(f"--timeout {arguments.timeout:g}: it must be above 0, up to 3600 s")
    return float(arguments.timeout)


def add_jobs_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add --jobs of commands that work in several processes."""
    parser.add_argument("--jobs", type=int, help="worker processes (default: usable cores)")


def perform(work: "Callable[[ProgressLine], T]", describe_stop: Callable[[str], str]) -> T:
    """Call ``work`` with a progress line and return its result; SystemExit if a signal stops it.

    ``describe_stop`` completes the line "stopped", given the name of the signal.
    """
    from feeder.pack.progress import ProgressLine
    from feeder.process.stop_signals import StopSignals

    with StopSignals() as signals:
        try:
            return work(ProgressLine(sys.stderr))
        except KeyboardInterrupt:
            sys.stderr.write(f"feeder: stopped{describe_stop(signals.name)}\n")
            raise SystemExit(signals.exit_status) from None


def describe_resumable(signal: str) -> str:
    """For ``perform``: the same command goes on where it was."""
    return f" by {signal}: finished shards are kept, run the same command again to resume"
