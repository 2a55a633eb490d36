"""The product's supervisor and node processes, with workers of a fixed rate.

python -m bench.cluster.paced_serve PARENT_PID DATASET ENDPOINT WORKERS CHUNK_IMAGES
"""

import sys

from feeder.daemon.config import load_config
from feeder.daemon.notify import Notifier
from feeder.daemon.supervisor import Supervisor
from feeder.process.child import die_with_parent
from feeder.process.log_lines import start_logging
from feeder.process.program import run_program
from feeder.process.stderr_relay import StderrRelay

from ..daemon import DATASET_NAME


def main(dataset: str, endpoint: str, workers: str, chunk_images: str) -> int:
    """Serve until SIGTERM."""
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
    worker = f"{__package__}.paced_worker"
    Supervisor(config, Notifier({}), log, worker_module=worker).run()
    return 0


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.exit(run_program("feeder", lambda: main(*sys.argv[2:])))
