"""The checks that the examples on arrays have in common."""

import re
import subprocess
from pathlib import Path

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
    SIDE,
    Run,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    example_options,
    run_example,
)

_IMPORTS = """
import importlib.util, sys
import trainer_client
trainer_client.NumpyLoader
ours = {"feeder", "trainer_client", "numpy", "zmq", "msgspec"}
found = {name.partition(".")[0] for name in sys.modules}
print(importlib.util.find_spec("torch"), sorted(found & {"torch", "PIL", "psutil", sys.argv[1]}))
assert ours <= found
"""


class ArrayChecks:
    """Swap, two ranks, kill and resume, exact evaluation; subclasses say of which example."""

    python: Path
    script: str
    channels: int

    def run(self, folder: Path, *arguments: object, kill: tuple[int, int] | None = None) -> Run:
        """Run the example in ``folder``."""
        return run_example(self.python, self.script, *arguments, folder=folder, kill=kill)

    def test_it_trains_and_evaluates_exactly(self, served: Served, tmp_path: Path) -> None:
        run = self.run(tmp_path, *example_options(served), "--epochs", 2)
        check_trained(served, run, epochs=2)
        check_evaluated(served, run, times=2)
        counted = re.findall(r"^epoch (\d): .* accuracy \d+/(\d+)$", run.output, re.MULTILINE)
        assert counted == [("0", str(SAMPLES["val"])), ("1", str(SAMPLES["val"]))]
        assert run.shapes("train") == {(BATCH, SIDE, SIDE, self.channels)}
        last = SAMPLES["val"] % BATCH
        assert run.shapes("val") >= {(last, SIDE, SIDE, self.channels)}

    def test_two_ranks_share_each_epoch(self, served: Served, tmp_path: Path) -> None:
        for rank in range(2):
            share = ["--epochs", 2, "--rank", rank, "--world-size", 2]
            run = self.run(tmp_path / str(rank), *example_options(served), *share)
            for epoch in range(2):
                for key, ids in served.planned("train", epoch, rank, 2).items():
                    assert run.steps("train", rank)[key] == ids

    def test_killed_it_resumes_in_mid_epoch(self, served: Served, tmp_path: Path) -> None:
        options = [*example_options(served), "--epochs", 2, "--checkpoint-steps", 4]
        killed = self.run(tmp_path, *options, kill=(1, 10))
        resumed = self.run(tmp_path, *options)
        assert resumed.order()[0][0] == 1
        assert resumed.order()[0][1] in (4, 8), "from the last checkpoint"
        check_resumed(served, killed, resumed, epochs=2)
        check_evaluated(served, resumed, times=1)


def check_no_torch(python: Path, folder: Path, framework: str) -> None:
    """The client needs numpy, pyzmq and msgspec there, and imports neither torch nor more."""
    done = subprocess.run(
        [python, "-c", _IMPORTS, framework],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "None []\n"), done.stdout + done.stderr
