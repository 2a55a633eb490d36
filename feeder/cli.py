"""The ``feeder`` command: runs a subcommand, turns errors into one line and an exit status."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from feeder import __version__
from feeder.commands import keygen, pack, preview, serve, status, unpack, verify
from feeder.errors import FeederError
from feeder.text_streams import escape_unencodable

_COMMANDS = (pack, verify, unpack, serve, preview, status, keygen)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="feeder", description="Pack image datasets and serve ready training batches."
    )
    parser.add_argument("--version", action="version", version=f"feeder {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (0 success, 2 usage, else see feeder.errors)."""
    escape_unencodable()
    arguments = build_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except FeederError as error:
        sys.stderr.write(f"feeder: error: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("feeder: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output (head, say) has seen enough; nothing more can be written there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(main())
