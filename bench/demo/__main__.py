"""The demo's process: sets up its signals and streams, then runs ``bench.demo.run``."""

import sys

from feeder.process.program import run_program


def _run() -> int:
    from .run import main

    return main()


if __name__ == "__main__":
    sys.exit(run_program("demo", _run))
