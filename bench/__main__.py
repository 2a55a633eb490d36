"""The ``feeder-bench`` process: sets up its signals and streams, then runs ``bench.cli``."""

import sys

from feeder.process.program import run_program


def start() -> int:
    """Run the command line and return the exit status."""
    return run_program("feeder-bench", _run)


def _run() -> int:
    from feeder.process.shortage import check_import_memory

    check_import_memory(250_000_000)  # numpy with a few threads
    from .cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
