"""Conditions that hold a daemon back, made on purpose: real daemons, training loops, disks, links.

    python -m tests.diagnosis.conditions [--runs N] [--beside] [NAME …]

makes each condition N times and prints the verdict and how long it took to be named. Exits with 1
if any was named wrongly, later than NAMED_WITHIN_S, or not steadily from then on, or if an estimate
was off by more than ESTIMATE_OFF of what doing what it says gave. With --beside two busy loops run
beside all of it, and only estimates count. The conditions need the machine for themselves: two
cores, nothing else running.
"""

import argparse
import os
import shutil
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
from feeder.metrics.report import Verdict, VerdictKind
from tests.diagnosis.slow_link import slow_link
from tests.support.daemon import DEADLINE_S, Daemon
from tests.support.hanging_fs import hanging_folder
from tests.support.sources import REPOSITORY
from tests.support.synthetic_sets import pack_synthetic

IMAGES = 400
BATCH = 64
ESTIMATE_OFF = 0.2
NAMED_WITHIN_S = 3.0
WATCHED_S = 8.0
"""From a condition's beginning: it is named steadily if nothing else is until then."""

LOOK_S = 0.25


class Trainee:
    """A process of ``tests.diagnosis.trainee``; a context manager."""

    def __init__(self, endpoint: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.diagnosis.trainee",
                endpoint,
                "--parent",
                str(os.getpid()),
                "--batch-size",
                str(BATCH),
                *arguments,
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may end of an error that its condition makes
            text=True,
        )

    def read(self) -> int:
        """Images taken so far, with the next report; the first one is the first step."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the training loop ended with status {self._process.wait()}"
        return int(line)

    def measure(self, seconds: float) -> float:
        """Images a second over some time, counted here."""
        images, began_s = self.read(), time.monotonic()
        while time.monotonic() - began_s < seconds:
            later = self.read()
        return (later - images) / (time.monotonic() - began_s)

    def stop(self) -> None:
        """Stop the process, as Ctrl-Z does."""
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> "Trainee":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Scene:
    """Where a condition is made, and what came of it."""

    dataset: Path
    work: Path
    expected: VerdictKind
    loops: ExitStack = field(default_factory=ExitStack)
    """Ends the busy loops beside."""
    rates: list[float] = field(default_factory=list)
    """What doing what the verdict says gave, images/s."""
    verdict: Verdict | None = None
    named_s: float = float("inf")
    """From the condition's beginning until it was named and stayed so."""
    kinds: list[str] = field(default_factory=list)
    """The verdicts on the way, in short."""

    def socket(self) -> str:
        return f"ipc://{tempfile.mkdtemp(dir=self.work)}/node"

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.work))

    def copy(self) -> Path:
        return Path(shutil.copytree(self.dataset, self.folder() / "copy"))

    def watch(self, daemon: Daemon, watched_s: float = WATCHED_S) -> None:
        """Take the verdicts from now on, when the condition begins."""
        began_s = time.monotonic()
        kind = ""
        while time.monotonic() - began_s < watched_s:
            # A connection of its own each time: the requests of one are limited.
            verdict = request_report(daemon.endpoint, DEADLINE_S).verdict
            passed_s = time.monotonic() - began_s
            if verdict.kind != kind:
                kind = verdict.kind
                self.kinds.append(f"{passed_s:.1f} {kind}")
                self.named_s = passed_s if kind == self.expected else float("inf")
            if kind == self.expected or not self.is_named:
                self.verdict = verdict
            time.sleep(LOOK_S)

    def without_loops(self, trainee: Trainee) -> None:
        """If the verdict blames the busy loops, end them, and measure what that gives."""
        if self.verdict is not None and self.verdict.kind == "neighbour-bound":
            self.loops.close()
            trainee.measure(1.0)
            self.rates.append(trainee.measure(4.0))

    @property
    def is_named(self) -> bool:
        """Whether the verdict was the expected one."""
        return self.verdict is not None and self.verdict.kind == self.expected

    def measure(self, rate: Callable[[], float]) -> None:
        """Measure what doing what the verdict says gives, once all else has ended."""
        assert self.verdict is not None
        if self.verdict.estimate_images_a_s and self.verdict.kind != "neighbour-bound":
            self.rates.append(rate())


@contextmanager
def serving(scene: Scene, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Daemon]:
    """Run a daemon on the scene's dataset."""
    bound = () if "--bind" in arguments else ("--bind", scene.socket())
    data = () if "--data" in arguments else ("--data", f"d={scene.dataset}")
    with Daemon(*data, *bound, *arguments, prefix=prefix) as daemon:
        yield daemon


def full_rate(scene: Scene, *arguments: str) -> float:
    """Images/s that a daemon with these arguments gives to a training loop that only takes."""
    with serving(scene, *arguments) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(2.0)
        return trainee.measure(4.0)


def run_loops(scene: Scene) -> None:
    """Run as many busy loops as there are cores."""
    for _ in range(os.cpu_count() or 1):
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        scene.loops.callback(loop.wait)
        scene.loops.callback(loop.kill)


def paced(scene: Scene, part: float) -> None:
    """A training loop that takes a part of what the daemon could give."""
    rate = full_rate(scene)
    with (
        serving(scene) as daemon,
        Trainee(daemon.endpoint, "--step-s", str(BATCH / (part * rate))) as trainee,
    ):
        trainee.read()
        scene.watch(daemon)
        scene.without_loops(trainee)
    scene.measure(lambda: rate)


def healthy(scene: Scene) -> None:
    """A training loop that takes six tenths of what there is."""
    paced(scene, 0.6)


def slow_client(scene: Scene) -> None:
    """A training loop that takes a tenth of what there is."""
    paced(scene, 0.1)


def one_core(scene: Scene) -> None:
    """A daemon on one core."""
    pinned = ("taskset", "-c", "1")
    with serving(scene, prefix=pinned) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.read()
        scene.watch(daemon)
        scene.without_loops(trainee)
    scene.measure(lambda: full_rate(scene))


def few_workers(scene: Scene) -> None:
    """One worker on two cores."""
    with serving(scene, "--workers", "1") as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.read()
        scene.watch(daemon)
        scene.without_loops(trainee)
    scene.measure(lambda: full_rate(scene, "--workers", "2"))


def slow_storage(scene: Scene) -> None:
    """A disk that begins to need 10 ms for each read."""
    with (
        hanging_folder(scene.dataset, scene.folder()) as disk,
        serving(scene, "--data", f"d={disk.path}") as daemon,
        Trainee(daemon.endpoint) as trainee,
    ):
        rate = trainee.measure(4.0)
        disk.slow_down(0.01)
        scene.watch(daemon)
        scene.without_loops(trainee)
    scene.measure(lambda: rate)


def hanging_read(scene: Scene) -> None:
    """A file system that stops to answer."""
    with (
        hanging_folder(scene.dataset, scene.folder()) as disk,
        serving(scene, "--data", f"d={disk.path}", "--workers", "1") as daemon,
        Trainee(daemon.endpoint) as trainee,
    ):
        trainee.measure(3.0)
        disk.hang()
        scene.watch(daemon)
        disk.answer()


def tiny_cache(scene: Scene) -> None:
    """A decoded cache for some percent of the images."""
    with (
        serving(scene, "--decoded-bytes", "16MiB") as daemon,
        Trainee(daemon.endpoint) as trainee,
    ):
        trainee.read()
        scene.watch(daemon)
        scene.without_loops(trainee)
    scene.measure(lambda: full_rate(scene, "--decoded-bytes", "1GiB"))


def throttled_tcp(scene: Scene) -> None:
    """A link of 20 MB/s."""
    with (
        serving(scene, "--bind", "tcp://127.0.0.1:0") as daemon,
        slow_link(daemon.endpoint, 20e6) as (endpoint, _),
        Trainee(endpoint) as trainee,
    ):
        trainee.read()
        scene.watch(daemon)


def hung_network(scene: Scene) -> None:
    """A link on which no byte passes any more."""
    with (
        serving(scene, "--bind", "tcp://127.0.0.1:0") as daemon,
        slow_link(daemon.endpoint, 1e9) as (endpoint, hang),
        Trainee(endpoint) as trainee,
    ):
        trainee.measure(3.0)
        hang()
        scene.watch(daemon)


def stopped_client(scene: Scene) -> None:
    """A training loop that is stopped."""
    with serving(scene) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(3.0)
        trainee.stop()
        scene.watch(daemon)


def stopped_worker(scene: Scene) -> None:
    """One of two workers is stopped; it is replaced after three seconds."""
    with serving(scene) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(3.0)
        daemon.workers()[0].send_signal(signal.SIGSTOP)
        scene.watch(daemon, NAMED_WITHIN_S + 1.0)


def failing_batches(scene: Scene) -> None:
    """The dataset's folder is deleted, and its files with it."""
    copy = scene.copy()
    with (
        serving(scene, "--data", f"d={copy}") as daemon,
        Trainee(daemon.endpoint) as trainee,
    ):
        trainee.measure(3.0)
        for path in copy.iterdir():
            os.truncate(path, 0)  # what a worker has open stays otherwise
            path.unlink()
        scene.watch(daemon)


def replaced_dataset(scene: Scene) -> None:
    """Another dataset is copied to the folder of one, and its node process is killed."""
    copy = scene.copy()
    other = pack_synthetic(scene.folder(), images=IMAGES + 1)
    with serving(scene, "--data", f"d={copy}") as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(3.0)
        shutil.rmtree(copy)
        shutil.copytree(other, copy)
        daemon.node.kill()
        scene.watch(daemon)


def greedy_client(scene: Scene) -> None:
    """A client with one session beside one with eight."""
    with (
        serving(scene) as daemon,
        Trainee(daemon.endpoint, "--loaders", "8") as greedy,
    ):
        greedy.measure(2.0)
        with Trainee(daemon.endpoint) as trainee:
            trainee.read()
            scene.watch(daemon)


def busy_neighbour(scene: Scene) -> None:
    """As many busy loops as there are cores, beside a training loop that takes all."""
    with serving(scene) as daemon, Trainee(daemon.endpoint) as trainee:
        trainee.measure(3.0)
        run_loops(scene)
        scene.watch(daemon)
        scene.without_loops(trainee)


CONDITIONS: dict[str, tuple[Callable[[Scene], None], VerdictKind]] = {
    "healthy": (healthy, "healthy"),
    "slow client": (slow_client, "client-bound"),
    "one core": (one_core, "compute-bound"),
    "few workers": (few_workers, "compute-bound"),
    "slow storage": (slow_storage, "io-bound"),
    "hanging read": (hanging_read, "stalled-storage"),
    "tiny cache": (tiny_cache, "cache-bound"),
    "throttled tcp": (throttled_tcp, "network-bound"),
    "hung network": (hung_network, "silent-client"),
    "stopped client": (stopped_client, "silent-client"),
    "stopped worker": (stopped_worker, "silent-worker"),
    "failing batches": (failing_batches, "failing-batches"),
    "replaced dataset": (replaced_dataset, "failing-batches"),
    "greedy client": (greedy_client, "greedy-client"),
    "busy neighbour": (busy_neighbour, "neighbour-bound"),
}
"""Each condition, and the verdict that names it."""


def main(names: Sequence[str], runs: int, *, is_beside: bool) -> int:
    """Make the conditions and print what was found; return the exit status."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        dataset = pack_synthetic(Path(folder), images=IMAGES)
        for run in range(runs):
            for name in names or CONDITIONS:
                make, expected = CONDITIONS[name]
                scene = Scene(dataset, Path(folder), expected)
                with scene.loops:
                    if is_beside:
                        run_loops(scene)
                    make(scene)
                wrong += not _print(scene, f"run {run} {name}", is_beside=is_beside)
    sys.stdout.write(f"{wrong} wrong\n")
    return int(wrong > 0)


def _print(scene: Scene, name: str, *, is_beside: bool) -> bool:
    """Print what a scene came to; return whether it is right."""
    assert scene.verdict is not None
    estimate = scene.verdict.estimate_images_a_s
    ratios = [estimate / rate for rate in scene.rates if estimate]
    is_close = all(abs(ratio - 1) <= ESTIMATE_OFF for ratio in ratios)
    is_right = is_close and (is_beside or scene.named_s <= NAMED_WITHIN_S)
    rates = "".join(
        f" [estimate {estimate:.0f}, measured {rate:.0f}, ratio {estimate / rate:.2f}]"
        for rate in scene.rates
    )
    sys.stdout.write(
        f"{'ok   ' if is_right else 'WRONG'} {name}: named after {scene.named_s:.1f} s "
        f"({', '.join(scene.kinds)}): {scene.verdict.text}{rates}\n"
    )
    sys.stdout.flush()
    return is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    sys.exit(main(arguments.names, arguments.runs, is_beside=arguments.beside))
