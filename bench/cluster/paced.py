"""The product's daemon with workers of a fixed rate, so that a rate does not depend on the cores.

    python -m bench.cluster.paced PARENT_PID DATASET ENDPOINT WORKERS CHUNK_IMAGES
    python -m bench.cluster.paced CHANNEL_FD PARENT_PID             one of its workers

Supervisor and node processes are the product's. So are the workers, in all but that: chunks are
really read, decoded and written, and then a worker waits until CHUNK_TIME, from its environment,
has passed since the chunk before.
"""

import os
import sys
import time
from typing import Final

from feeder.process.child import die_with_parent
from feeder.wire.chunk_work import Fill, Filled
from feeder.worker import __main__ as worker
from feeder.worker import filler

CHUNK_TIME: Final = "FEEDER_BENCH_CHUNK_S"
_LATE_S: Final = 0.01
"""A chunk that begins so soon after the last one was due was waiting for it: the wait is made up,
or each chunk would take as much longer as the worker sleeps too long."""


class PacedFiller(filler.ChunkFiller):
    _due_s = 0.0

    def fill(self, chunk: Fill) -> Filled:
        began_s = time.monotonic()
        if began_s - self._due_s > _LATE_S:
            self._due_s = began_s
        self._due_s += float(os.environ[CHUNK_TIME])
        filled = super().fill(chunk)
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        return filled


def serve(dataset: str, endpoint: str, workers: str, chunk_images: str) -> int:
    from feeder.daemon.config import load_config
    from feeder.daemon.notify import Notifier
    from feeder.daemon.supervisor import Supervisor
    from feeder.process.log_lines import start_logging
    from feeder.process.stderr_relay import StderrRelay

    from ..daemon import DATASET_NAME

    StderrRelay()
    config = load_config(
        None,
        {
            "data": {DATASET_NAME: dataset},
            "serve.bind": (endpoint,),
            "serve.workers": workers,
            "serve.chunk_images": chunk_images,
            "serve.pin": "off",
        },
    )
    log = start_logging("info")
    Supervisor(config, Notifier({}), log, worker_module=f"{__package__}.paced").run()
    return 0


def main(arguments: list[str]) -> int:
    if len(arguments) == 2:
        vars(filler)["ChunkFiller"] = PacedFiller
        return worker.main(int(arguments[0]), int(arguments[1]))
    from feeder.process.program import run_program

    die_with_parent(int(arguments[0]))
    return run_program("feeder", lambda: serve(*arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
