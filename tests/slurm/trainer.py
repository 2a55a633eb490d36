"""A trainer of a Slurm job: takes batches as one of the job's ranks, and prints a digest of each.

    srun … python -m tests.slurm.trainer BATCHES [GATE]

After half of its batches it waits for the file GATE, so that a test can act in the middle.
"""

import itertools
import os
import sys
from pathlib import Path

from tests.slurm.cluster import JOB_DEADLINE_S
from tests.support.daemon import wait_until
from tests.support.lent_client import digest, make_numpy_loader


def main() -> None:
    batches, *gates = sys.argv[1:]
    environ = os.environ
    with make_numpy_loader(
        environ["FEEDER_ENDPOINTS"],
        server_key=environ["FEEDER_SERVER_KEY"],
        client_key=environ["FEEDER_CLIENT_KEY"],
        rank=int(environ["SLURM_PROCID"]),
        world_size=int(environ["SLURM_NTASKS"]),
    ) as loader:
        endless = (batch for _ in iter(int, 1) for batch in loader)
        for number, batch in enumerate(itertools.islice(endless, int(batches))):
            print("batch", loader.statistics().feeders, digest(batch), flush=True)  # noqa: T201
            for gate in gates if number == int(batches) // 2 else ():
                wait_until(Path(gate).exists, f"{gate} exists", JOB_DEADLINE_S)


if __name__ == "__main__":
    main()
