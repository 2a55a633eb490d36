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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from feeder.client.stats import request_report
from feeder.metrics.report import Verdict, VerdictKind
from tests.diagnosis.slow_link import slow_link
from tests.disk_cache.web_store import serve_store
from tests.support.daemon import DEADLINE_S, Daemon
from tests.support.hanging_fs import HangingFolder, hanging_folder
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
        command = [sys.executable, "-m", "tests.diagnosis.trainee", endpoint]
        options = ("--parent", str(os.getpid()), "--batch-size", str(BATCH), *arguments)
        self._process = subprocess.Popen(
            [*command, *options],
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
    running: ExitStack = field(default_factory=ExitStack)
    """Ends the daemon, the training loops, disks and links."""
    loops: ExitStack = field(default_factory=ExitStack)
    """Ends the busy loops beside."""
    rates: list[float] = field(default_factory=list)
    """What doing what the verdict says gave, images/s."""
    verdict: Verdict | None = None
    named_s: float = float("inf")
    """From the condition's beginning until it was named and stayed so."""
    kinds: list[str] = field(default_factory=list)
    """The verdicts on the way, in short."""
    daemon: Daemon = field(init=False)
    trainee: Trainee = field(init=False)
    """The last one started."""

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.work))

    def copy(self) -> Path:
        return Path(shutil.copytree(self.dataset, self.folder() / "copy"))

    def serve(self, *arguments: str, prefix: Sequence[str] = ()) -> Daemon:
        """Start a daemon on the scene's dataset."""
        bound = () if "--bind" in arguments else ("--bind", f"ipc://{self.folder()}/node")
        data = () if "--data" in arguments else ("--data", f"d={self.dataset}")
        self.daemon = self.running.enter_context(Daemon(*data, *bound, *arguments, prefix=prefix))
        return self.daemon

    def train(self, seconds: float = 0.0, *arguments: str, endpoint: str = "") -> float:
        """Start a training loop; after its first step, measure for some time."""
        trainee = Trainee(endpoint or self.daemon.endpoint, *arguments)
        self.trainee = self.running.enter_context(trainee)
        return self.trainee.measure(seconds) if seconds else self.trainee.read()

    def disk(self) -> HangingFolder:
        return self.running.enter_context(hanging_folder(self.dataset, self.folder()))

    def link(self, bytes_a_s: float) -> tuple[str, Callable[[], None]]:
        """Serve behind a slow link: its endpoint, and what hangs it."""
        daemon = self.serve("--bind", "tcp://127.0.0.1:0")
        return self.running.enter_context(slow_link(daemon.endpoint, bytes_a_s))

    def serve_remote(self, bytes_a_s: float) -> None:
        """Serve the dataset from a web server behind a slow link, with a new disk cache."""
        store = self.running.enter_context(serve_store(self.dataset))
        endpoint, _ = self.running.enter_context(slow_link(store.url, bytes_a_s))
        url = endpoint.replace("tcp://", "http://")
        self.serve("--data", f"d={url}", "--disk-path", str(self.folder()))

    def full_rate(self, *arguments: str) -> float:
        """Images/s that a daemon with these arguments gives to a loop that only takes."""
        with ExitStack() as running:
            scene = Scene(self.dataset, self.work, self.expected, running)
            scene.serve(*arguments)
            scene.train(2.0)
            return scene.trainee.measure(4.0)

    def run_loops(self) -> None:
        """Run as many busy loops as there are cores."""
        for _ in range(os.cpu_count() or 1):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self.loops.callback(loop.wait)
            self.loops.callback(loop.kill)

    def watch(self, watched_s: float) -> None:
        """Take the verdicts from now on, when the condition begins."""
        began_s = time.monotonic()
        kind = ""
        while time.monotonic() - began_s < watched_s:
            # A connection of its own each time: the requests of one are limited.
            verdict = request_report(self.daemon.endpoint, DEADLINE_S).verdict
            passed_s = time.monotonic() - began_s
            if verdict.kind != kind:
                kind = verdict.kind
                self.kinds.append(f"{passed_s:.1f} {kind}")
                self.named_s = passed_s if kind == self.expected else float("inf")
            if kind == self.expected or self.verdict is None or self.verdict.kind != self.expected:
                self.verdict = verdict
            time.sleep(LOOK_S)

    def follow(self, advice: "Advice") -> None:
        """Measure what doing what the verdict says gives: no busy loops, or the advice alone."""
        assert self.verdict is not None
        if advice is not None and self.verdict.kind == "neighbour-bound":
            self.loops.close()
            self.trainee.measure(1.0)
            self.rates.append(self.trainee.measure(4.0))
        self.running.close()
        if (
            advice is not None
            and self.verdict.estimate_images_a_s
            and self.verdict.kind != "neighbour-bound"
        ):
            self.rates.append(advice())


Advice = Callable[[], float] | None
"""Gives the rate, images/s, of doing what the verdict should say."""


def paced(scene: Scene, part: float) -> Advice:
    """A training loop that takes a part of what the daemon could give."""
    rate = scene.full_rate()
    scene.serve()
    scene.train(0.0, "--step-s", str(BATCH / (part * rate)))
    return lambda: rate


def one_core(scene: Scene) -> Advice:
    """A daemon on one core."""
    scene.serve(prefix=("taskset", "-c", "1"))
    scene.train()
    return scene.full_rate


def few_workers(scene: Scene) -> Advice:
    """One worker on two cores."""
    scene.serve("--workers", "1")
    scene.train()
    return lambda: scene.full_rate("--workers", "2")


def slow_storage(scene: Scene) -> Advice:
    """A disk that begins to need 10 ms for each read."""
    disk = scene.disk()
    scene.serve("--data", f"d={disk.path}")
    rate = scene.train(4.0)
    disk.slow_down(0.01)
    return lambda: rate


def slow_store(scene: Scene) -> None:
    """A dataset in a store behind a link that is slower than the loop, in its first epoch."""
    scene.serve_remote(2e6)
    scene.train()


def hanging_read(scene: Scene) -> None:
    """A file system that stops to answer."""
    disk = scene.disk()
    scene.serve("--data", f"d={disk.path}", "--workers", "1")
    scene.train(3.0)
    disk.hang()
    scene.running.callback(disk.answer)


def tiny_cache(scene: Scene) -> Advice:
    """A decoded cache for some percent of the images."""
    scene.serve("--decoded-bytes", "16MiB")
    scene.train()
    return lambda: scene.full_rate("--decoded-bytes", "1GiB")


def throttled_tcp(scene: Scene) -> None:
    """A link of 20 MB/s."""
    endpoint, _ = scene.link(20e6)
    scene.train(endpoint=endpoint)


def hung_network(scene: Scene) -> None:
    """A link on which no byte passes any more."""
    endpoint, hang = scene.link(1e9)
    scene.train(3.0, endpoint=endpoint)
    hang()


def stopped_client(scene: Scene) -> None:
    """A training loop that is stopped."""
    scene.serve()
    scene.train(3.0)
    scene.trainee.stop()


def stopped_worker(scene: Scene) -> None:
    """One of two workers is stopped; it is replaced after three seconds."""
    scene.serve()
    scene.train(3.0)
    scene.daemon.workers()[0].send_signal(signal.SIGSTOP)


def failing_batches(scene: Scene) -> None:
    """The dataset's folder is deleted, and its files with it."""
    copy = scene.copy()
    scene.serve("--data", f"d={copy}")
    scene.train(3.0)
    for path in copy.iterdir():
        os.truncate(path, 0)  # what a worker has open stays otherwise
        path.unlink()


def replaced_dataset(scene: Scene) -> None:
    """Another dataset is copied to the folder of one, and its node process is killed."""
    copy = scene.copy()
    other = pack_synthetic(scene.folder(), images=IMAGES + 1)
    scene.serve("--data", f"d={copy}")
    scene.train(3.0)
    shutil.rmtree(copy)
    shutil.copytree(other, copy)
    scene.daemon.node.kill()


def greedy_client(scene: Scene) -> None:
    """A client with one session beside one with eight."""
    scene.serve()
    scene.train(2.0, "--loaders", "8")
    scene.train()


def busy_neighbour(scene: Scene) -> Advice:
    """As many busy loops as there are cores, beside a training loop that takes all."""
    scene.serve()
    scene.train(3.0)
    scene.run_loops()
    return scene.full_rate


CONDITIONS: dict[str, tuple[Callable[[Scene], Advice], VerdictKind, float]] = {
    "healthy": (lambda scene: paced(scene, 0.6), "healthy", WATCHED_S),
    "slow client": (lambda scene: paced(scene, 0.1), "client-bound", WATCHED_S),
    "one core": (one_core, "compute-bound", WATCHED_S),
    "few workers": (few_workers, "compute-bound", WATCHED_S),
    "slow storage": (slow_storage, "io-bound", WATCHED_S),
    "slow store": (slow_store, "store-bound", WATCHED_S),
    "hanging read": (hanging_read, "stalled-storage", WATCHED_S),
    "tiny cache": (tiny_cache, "cache-bound", WATCHED_S),
    "throttled tcp": (throttled_tcp, "network-bound", WATCHED_S),
    "hung network": (hung_network, "silent-client", WATCHED_S),
    "stopped client": (stopped_client, "silent-client", WATCHED_S),
    "stopped worker": (stopped_worker, "silent-worker", NAMED_WITHIN_S + 1.0),
    "failing batches": (failing_batches, "failing-batches", WATCHED_S),
    "replaced dataset": (replaced_dataset, "failing-batches", WATCHED_S),
    "greedy client": (greedy_client, "greedy-client", WATCHED_S),
    "busy neighbour": (busy_neighbour, "neighbour-bound", WATCHED_S),
}
"""What makes each condition, the verdict that names it, and how long it is watched.

A function returns where its condition begins, with the advice to follow where there is one.
"""


def main(names: Sequence[str], runs: int, *, is_beside: bool) -> int:
    """Make the conditions and print what was found; return the exit status."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        dataset = pack_synthetic(Path(folder), images=IMAGES)
        for run in range(runs):
            for name in names or CONDITIONS:
                make, expected, watched_s = CONDITIONS[name]
                scene = Scene(dataset, Path(folder), expected)
                with scene.loops, scene.running:
                    if is_beside:
                        scene.run_loops()
                    advice = make(scene)
                    scene.watch(watched_s)
                    scene.follow(advice)
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
