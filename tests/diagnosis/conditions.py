"""Conditions that hold a daemon back, made on purpose: real daemons, training loops, disks, links.

    python -m tests.diagnosis.conditions [--runs N] [NAME …]

makes each condition N times, prints the verdict, and exits with 1 if any was named wrongly, or an
estimate was off by more than ESTIMATE_OFF. The conditions need the machine for themselves: two
cores, nothing else running.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from feeder.client.stats import request_report
from feeder.metrics.report import HostReport, Verdict
from tests.diagnosis.slow_link import slow_link
from tests.support.daemon import DEADLINE_S, Daemon, wait_until
from tests.support.hanging_fs import hanging_folder
from tests.support.sources import REPOSITORY
from tests.support.synthetic_sets import pack_synthetic

IMAGES = 400
BATCH = 64
ESTIMATE_OFF = 0.2
STEADY_READS = 4
"""A verdict counts once it was the same in so many reports, a second apart."""


class Trainee:
    """A process of ``tests.diagnosis.trainee``; a context manager."""

    def __init__(self, endpoint: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [
                *(*prefix, sys.executable, "-m", "tests.diagnosis.trainee", endpoint),
                *("--parent", str(os.getpid()), "--batch-size", str(BATCH), *arguments),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> int:
        """Return the images taken so far, with the next report."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the training loop ended with status {self._process.wait()}"
        return int(line)

    def measure(self, seconds: float) -> float:
        """Return the images a second over some time, counted here."""
        images, began_s = self.read(), time.monotonic()
        while time.monotonic() - began_s < seconds:
            later = self.read()
        return (later - images) / (time.monotonic() - began_s)

    def __enter__(self) -> "Trainee":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Scene:
    """Where a condition is made."""

    dataset: Path
    work: Path
    rates: list[float] = field(default_factory=list)
    """Rates that the condition measured, images/s, for tests of estimates."""

    def socket(self) -> str:
        """Return a new ipc endpoint."""
        return f"ipc://{tempfile.mkdtemp(dir=self.work)}/node"


def steady_verdict(endpoint: str, seconds: float = 60.0) -> Verdict:
    """Return the verdict once it is the same kind in STEADY_READS reports over a full interval."""
    kinds: list[str] = []
    give_up_s = time.monotonic() + seconds
    pause = _Pauses()
    while time.monotonic() < give_up_s:
        report = request_report(endpoint, DEADLINE_S)
        if spans(report) < 8:
            kinds.clear()
        kinds.append(report.verdict.kind)
        if len(kinds) >= STEADY_READS and len(set(kinds[-STEADY_READS:])) == 1:
            return report.verdict
        pause.wait(1.0)
    raise AssertionError(f"no steady verdict in {seconds:g} s: {kinds}")


def spans(report: HostReport) -> float:
    """Return the seconds of the report's rates; 0 while it has clients that are new."""
    clients = [client for node in report.nodes if node.now for client in node.now.clients]
    if not clients or any(client.clock_s < 12 for client in clients):
        return 0.0
    return min(
        node.now.clock_s - node.before.clock_s
        for node in report.nodes
        if node.now is not None and node.before is not None
    )


class _Pauses:
    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", str(seconds)], check=True, timeout=seconds + 5)


@contextmanager
def serving(scene: Scene, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Daemon]:
    """Run a daemon on the scene's dataset."""
    bound = () if "--bind" in arguments else ("--bind", scene.socket())
    with Daemon("--data", f"d={scene.dataset}", *bound, *arguments, prefix=prefix) as daemon:
        yield daemon


def full_rate(daemon: Daemon) -> float:
    """Return what the daemon gives to a training loop that only takes."""
    with Trainee(daemon.endpoint) as trainee:
        trainee.measure(1.0)
        return trainee.measure(4.0)


def paced(scene: Scene, part: float) -> Verdict:
    """Return the verdict on a training loop that takes a part of what the daemon could give."""
    with serving(scene) as daemon:
        step_s = BATCH / (part * full_rate(daemon))
        with Trainee(daemon.endpoint, "--step-s", str(step_s)):
            return steady_verdict(daemon.endpoint)


def healthy(scene: Scene) -> Verdict:
    """A training loop that takes six tenths of what there is."""
    return paced(scene, 0.6)


def slow_client(scene: Scene) -> Verdict:
    """A training loop that takes a tenth of what there is."""
    return paced(scene, 0.1)


def one_core(scene: Scene) -> Verdict:
    """A daemon on one core."""
    pinned = ("taskset", "-c", "1")
    with serving(scene, prefix=pinned) as daemon, Trainee(daemon.endpoint):
        return steady_verdict(daemon.endpoint)


def slow_storage(scene: Scene) -> Verdict:
    """A disk that needs 10 ms for each read."""
    with (
        hanging_folder(scene.dataset, Path(tempfile.mkdtemp(dir=scene.work)), read_s=0.01) as disk,
        Daemon("--data", f"d={disk.path}", "--bind", scene.socket()) as daemon,
        Trainee(daemon.endpoint),
    ):
        return steady_verdict(daemon.endpoint)


def tiny_cache(scene: Scene) -> Verdict:
    """A decoded cache for some percent of the images."""
    with serving(scene, "--decoded-bytes", "16MiB") as daemon, Trainee(daemon.endpoint):
        return steady_verdict(daemon.endpoint)


def throttled_tcp(scene: Scene) -> Verdict:
    """A link of 20 MB/s."""
    with (
        serving(scene, "--bind", "tcp://127.0.0.1:0") as daemon,
        slow_link(daemon.endpoint, 20e6) as endpoint,
        Trainee(endpoint),
    ):
        return steady_verdict(daemon.endpoint)


def stopped_worker(scene: Scene) -> Verdict:
    """One of two workers is stopped."""
    with serving(scene) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(12.0)
        daemon.workers()[0].send_signal(signal.SIGSTOP)
        found: list[Verdict] = []

        def is_named() -> bool:
            found[:] = [request_report(daemon.endpoint, DEADLINE_S).verdict]
            return found[0].kind == "silent-worker"

        with contextlib.suppress(AssertionError):
            wait_until(is_named, "the silent worker is named", 10.0)
        return found[0]


def greedy_client(scene: Scene) -> Verdict:
    """A client with eight sessions, and one with one."""
    with (
        serving(scene) as daemon,
        Trainee(daemon.endpoint, "--loaders", "8"),
        Trainee(daemon.endpoint),
    ):
        return steady_verdict(daemon.endpoint)


def busy_neighbour(scene: Scene) -> Verdict:
    """As many busy loops as there are cores."""
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(scene))
        stack.enter_context(Trainee(daemon.endpoint))
        for _ in range(os.cpu_count() or 1):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        return steady_verdict(daemon.endpoint)


def few_workers(scene: Scene) -> Verdict:
    """One worker on two cores: and what a second one really gives."""
    with serving(scene, "--workers", "1") as daemon, Trainee(daemon.endpoint):
        verdict = steady_verdict(daemon.endpoint)
    with serving(scene, "--workers", "2") as daemon:
        scene.rates.append(full_rate(daemon))
    return verdict


CONDITIONS: dict[str, tuple[Callable[[Scene], Verdict], str]] = {
    "healthy": (healthy, "healthy"),
    "slow client": (slow_client, "client-bound"),
    "one core": (one_core, "compute-bound"),
    "few workers": (few_workers, "compute-bound"),
    "slow storage": (slow_storage, "io-bound"),
    "tiny cache": (tiny_cache, "cache-bound"),
    "throttled tcp": (throttled_tcp, "network-bound"),
    "stopped worker": (stopped_worker, "silent-worker"),
    "greedy client": (greedy_client, "greedy-client"),
    "busy neighbour": (busy_neighbour, "neighbour-bound"),
}
"""Each condition, and the verdict that names it."""


def main(names: Sequence[str], runs: int) -> int:
    """Make the conditions and print what was found; return the exit status."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        dataset = pack_synthetic(Path(folder), images=IMAGES)
        for run in range(runs):
            for name in names or CONDITIONS:
                make, expected = CONDITIONS[name]
                scene = Scene(dataset, Path(folder))
                verdict = make(scene)
                off = [abs(verdict.estimate_images_a_s / rate - 1) for rate in scene.rates]
                is_right = verdict.kind == expected and all(o <= ESTIMATE_OFF for o in off)
                wrong += not is_right
                rates = "".join(
                    f" [estimate {verdict.estimate_images_a_s:.0f}, measured {rate:.0f}, "
                    f"ratio {verdict.estimate_images_a_s / rate:.2f}]"
                    for rate in scene.rates
                )
                mark = "ok   " if is_right else "WRONG"
                sys.stdout.write(f"{mark} run {run} {name}: {verdict.text}{rates}" + "\n")
                sys.stdout.flush()
    sys.stdout.write(f"{wrong} named wrongly\n")
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    sys.exit(main(arguments.names, arguments.runs))
