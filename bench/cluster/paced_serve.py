"""``feeder serve`` with workers of a fixed rate.

python -m bench.cluster.paced_serve PARENT_PID serve …
"""

import sys

from feeder.cli.main import run
from feeder.daemon import node_process
from feeder.process.child import die_with_parent, start_child
from feeder.process.program import run_program

if __name__ == "__main__":
    die_with_parent(int(sys.argv.pop(1)))
    vars(node_process)["start_child"] = lambda _: start_child(f"{__package__}.paced_node")
    sys.exit(run_program("feeder", lambda: run(sys.argv[1:])))
