"""Options and ways to end that several commands share; imports nothing large."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.pack.progress import ProgressLine
    from feeder.security.keys import ClientKeys

    Parser = argparse.ArgumentParser | argparse._ArgumentGroup

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5555"
DEADLINE_S: Final = 5.0

T = TypeVar("T")


def option(parser: "Parser", words: str, text: str, **more: Any) -> None:
    """Add an option: ``words`` are its name and metavar; without either and ``more`` a switch."""
    name, _, metavar = words.partition(" ")
    if metavar:
        more["metavar"] = metavar
    elif not more:
        more["action"] = "store_true"
    parser.add_argument(name, help=text, **more)


def add_key_options(parser: "Parser") -> None:
    """Add the options of commands that connect to a daemon, for ``read_keys``."""
    option(parser, "--server-key KEY", "the daemon's public key, or its file")
    option(parser, "--client-key FILE", "file of your secret key")


def read_keys(arguments: argparse.Namespace) -> "ClientKeys | None":
    from feeder.security.keys import read_client_keys

    return read_client_keys(arguments.server_key, arguments.client_key)


def add_timeout_option(parser: "Parser", what: str, default_s: float = DEADLINE_S) -> None:
    """Add --timeout, for ``check_timeout``."""
    text = f"{what} (default: {default_s:g})"
    option(parser, "--timeout S", text, type=float, default=default_s)


def check_timeout(arguments: argparse.Namespace) -> float:
    """The deadline; ConfigError if it is out of range."""
    if not 0 < arguments.timeout <= 3600:
        raise ConfigError(f"--timeout {arguments.timeout:g}: it must be above 0, up to 3600 s")
    return float(arguments.timeout)


def add_jobs_option(parser: "Parser") -> None:
    option(parser, "--jobs", "worker processes (default: usable cores)", type=int)


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
