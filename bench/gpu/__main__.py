"""The process of ``python -m bench.gpu``: ``feeder-bench gpu``, once there is memory for torch."""

import sys

from feeder.process.program import run_program


def _run() -> int:
    from feeder.process.shortage import TORCH_BYTES, check_import_memory

    check_import_memory(TORCH_BYTES)
    from ..cli import run

    return run(["gpu", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run_program("feeder-bench gpu", _run))
