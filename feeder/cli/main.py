"""The ``feeder`` command: runs a subcommand, turns errors into one line and an exit status.

The process starts in ``feeder.__main__``.
"""

import argparse
import os
from collections.abc import Sequence

from feeder import __version__
from feeder.cli import (
    cache,
    cluster,
    datasets,
    doctor,
    keygen,
    pack,
    preview,
    select,
    serve,
    status,
)
from feeder.process.child import SINGLE_THREADS
from feeder.process.program import run_guarded
from feeder.process.shortage import check_import_memory

_COMMANDS = (
    pack.add_parser,
    datasets.add_parsers,
    select.add_parsers,
    serve.add_parser,
    cache.add_parser,
    cluster.add_parser,
    preview.add_parser,
    status.add_parsers,
    doctor.add_parser,
    keygen.add_parser,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder", description="Pack image datasets and serve ready training batches."
    )
    parser.add_argument("--version", action="version", version=f"feeder {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_commands in _COMMANDS:
        add_commands(subparsers)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit status (0 success, 2 usage, else see feeder.errors)."""
    return run_guarded("feeder", lambda: run(argv))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status; errors propagate."""
    arguments = build_parser().parse_args(argv)
    if arguments.command != "keygen":  # the only command without numpy
        os.environ.update(SINGLE_THREADS)
        check_import_memory()
    exit_status: int = arguments.run(arguments)
    return exit_status
