"""The process of ``python -m bench.gpu``: sets up its signals and streams, then runs ``run``."""

import sys

from feeder.process.program import run_program


def start() -> int:
    """Run the command line and return the exit status."""
    return run_program("feeder-bench gpu", _run)


def _run() -> int:
    from feeder.process.shortage import TORCH_BYTES, check_import_memory

    check_import_memory(TORCH_BYTES)
    from .run import run_command

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
