"""Shares of two jobs that take all they can get, on real daemons, with loaders as users have them.

    python -m tests.node.shares [--workers 1 2 4] [--over ipc tcp] [--seconds 5] [--images DATASET]

Light images against heavy ones, with the default window, by weights of 1:1, 3:1, 1:3, 100:1 and
1:100, and an attacker that opens sessions with ever new recipes; over ipc, where batches are lent,
and over tcp, where they are copied. Prints the shares of the workers' time from the fifth second
on, and exits with 1 if one is OFF or more points from its weight. The machine must do nothing else.
How shares are kept is tested with a simulated clock in tests/session.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, product
from pathlib import Path
from typing import Any, Final

from feeder.client.stats import request_report
from feeder.process.child import die_with_parent
from tests.support.daemon import DEADLINE_S, Daemon
from tests.support.sources import REPOSITORY
from tests.support.synthetic_sets import pack_synthetic
from trainer_client import NumpyLoader

OFF: Final = 5.0
"""Points, as docs/serving.md promises."""

SETTLED_S: Final = 5.0
HEAVY: Final = {"hue": 0.1, "saturation": 0.4}
CASES: Final = (
    *((weights, "plain") for weights in ((1, 1), (3, 1), (1, 3), (100, 1), (1, 100))),
    ((1, 1), "attack"),
)
"""The weights of the light and of the heavy job, and what the heavy one does."""


def main(workers: list[int], transports: list[str], seconds: float, dataset: Path | None) -> int:
    """Measure all cases and print them; return the exit status."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        packed = dataset or pack_synthetic(Path(name), images=400)
        for transport, number, ((light, heavy), how) in product(transports, workers, CASES):
            weights = {"light": light, "heavy": heavy}
            share, rate = measure(packed, number, transport, weights, how, seconds)
            due = 100 * light / (light + heavy)
            is_right = abs(share - due) < OFF
            wrong += not is_right
            sys.stdout.write(
                f"{'ok   ' if is_right else 'WRONG'} {transport}, {number} workers, "
                f"{light}:{heavy}, {how}: the light job has {share:.1f} % (due {due:.1f} %), "
                f"{rate:.0f} images/s\n"
            )
            sys.stdout.flush()
    return int(wrong > 0)


def measure(
    packed: Path, workers: int, transport: str, weights: dict[str, int], how: str, seconds: float
) -> tuple[float, float]:
    """Return the light job's share of the workers' time, in percent, and all images a second."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        config = Path(name, "feeder.toml")
        shares = "".join(f"{job} = {weight}\n" for job, weight in weights.items())
        client, endpoint = {
            "ipc": (f"user {os.getuid()}", f"ipc://{name}/n"),
            "tcp": ("address 127.0.0.1", "tcp://127.0.0.1:0"),
        }[transport]
        config.write_text(f'[weights."{client}"]\n{shares}')
        arguments = (
            "--data",
            f"d={packed}",
            "--bind",
            endpoint,
            "--workers",
            str(workers),
        )
        daemon = stack.enter_context(Daemon("--config", config, *arguments))
        stack.enter_context(running(daemon.endpoint, "light", {}, "plain"))
        stack.enter_context(running(daemon.endpoint, "heavy", HEAVY, how))
        time.sleep(SETTLED_S)
        before, began_s = read(daemon), time.monotonic()
        time.sleep(seconds)
        after, passed_s = read(daemon), time.monotonic() - began_s
    used = {job: after[job][0] - before[job][0] for job in weights}
    images = sum(after[job][1] - before[job][1] for job in weights)
    return 100 * used["light"] / sum(used.values()), images / passed_s


@contextmanager
def running(endpoint: str, job: str, recipe: dict[str, Any], how: str) -> Iterator[None]:
    """Run a training job that only takes batches, in a process of its own."""
    arguments = [endpoint, job, json.dumps(recipe), how]
    command = [sys.executable, "-m", __spec__.name, "--job", *arguments, str(os.getpid())]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        try:
            yield
        finally:
            process.kill()


def read(daemon: Daemon) -> dict[str, tuple[float, int]]:
    now = request_report(daemon.endpoint, DEADLINE_S).nodes[0].now
    assert now is not None
    return {job.name: (job.worker_s, job.images) for job in now.jobs}


def take_batches(endpoint: str, job: str, recipe: dict[str, Any], how: str) -> None:
    """Take batches as fast as they come, until this process is killed."""
    if how == "plain":
        take_some(endpoint, job, recipe, sys.maxsize)
    take_some(endpoint, job, {}, 8, image_size=32)  # so that its images are taken for cheap ones
    for session in count(1):
        take_some(endpoint, job, recipe | {"hue": 0.1 + session * 1e-6}, 8)


def take_some(
    endpoint: str, job: str, recipe: dict[str, Any], batches: int, *, image_size: int = 224
) -> None:
    """Take so many batches in a session."""
    options: dict[str, Any] = {"batch_size": 32, "image_size": image_size, "recipe": recipe}
    with NumpyLoader(endpoint, dataset="d", job=job, **options) as loader:
        while True:
            for _ in loader:
                batches -= 1
                if not batches:
                    return


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        _, _, address, name, fields, manner, parent = sys.argv
        die_with_parent(int(parent))
        take_batches(address, name, json.loads(fields), manner)
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--over", choices=("ipc", "tcp"), nargs="+", default=["ipc", "tcp"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--images", type=Path, help="a packed dataset; synthetic images without it")
    options = parser.parse_args()
    sys.exit(main(options.workers, options.over, options.seconds, options.images))
