"""The ``feeder`` process: sets up its signals and streams, then runs ``feeder.cli.main``."""

import sys

from feeder.process.program import run_program


def start() -> int:
    """Run the command line and return the exit status."""
    return run_program("feeder", _run)


def _run() -> int:
    from feeder.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
