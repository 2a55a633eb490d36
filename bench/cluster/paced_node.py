"""The product's node process with workers of a fixed rate.

python -m bench.cluster.paced_node CHANNEL_FD PARENT_PID
"""

import logging
import os
import sys

from feeder.node import worker_pool
from feeder.node.__main__ import main
from feeder.process.child import start_child

if __name__ == "__main__":
    vars(worker_pool)["start_child"] = lambda _: start_child(f"{__package__}.paced_worker")
    status = main(int(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    os._exit(status)  # as the product does: libzmq's threads may wait for a peer
