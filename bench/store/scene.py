"""What ``feeder-bench store`` measures with: a dataset, the store that has it too, and daemons.

A daemon has one worker and, with a warm cache, one core, so that whatever costs CPU time shows.
What fetches may use both cores: hosts have more than they decode on. The other core is the rest of
the world's, too: nginx, the proxy that limits the rate, and the client.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from feeder.dataset.manifest import load_manifest
from feeder.errors import PeerError
from feeder.plan.recipe import Recipe
from feeder.process.child import child_environment, python_command

from ..daemon import Daemon, feeder_command, free_port, running_daemon
from ..fetcher import BatchFetcher
from ..line_process import LineProcess, start_process, stop_process
from ..loopback_store import BUCKET, LoopbackStore
from ..machine import pinned_to

NAME: Final = "dataset"
BATCH_SIZE: Final = 32  # as in stream --cold: small windows have room for it
IMAGE_SIZE: Final = 112  # decoding is cheap, so the way of the bytes counts for more
USUAL_BATCH_SIZE: Final = 256
WINDOWS: Final = 8  # of the working set, in the dataset
FEEDERS: Final = 4  # of a fleet

_UNCACHED: Final = ("--decoded-bytes", "0", "--lease-s", "3600")  # all is decoded, and waits
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A proxy that gives all connections together ``rate`` bytes a second."""

    rate: float
    process: LineProcess
    endpoint: str

    def busy_s(self) -> float:
        self.process.write_line("")
        return float(self.process.next_line(_TIMEOUT_S))


class Scene:
    """The dataset in ``path``, also in ``store``; caches are made below ``folder``."""

    def __init__(
        self, path: Path, store: LoopbackStore, folder: Path, *, core: int, other: int
    ) -> None:
        self.path, self.store = path, store
        self.core, self.other = core, other
        self._layout = load_manifest(path).layout
        self.size_bytes = self._layout.size_bytes
        recipe = partial(Recipe.for_split, "train", working_set=self.size_bytes // WINDOWS)
        self.recipe = recipe(batch_size=BATCH_SIZE, image_size=IMAGE_SIZE)
        self.usual_recipe = recipe(batch_size=USUAL_BATCH_SIZE)
        """As trainings have it: the cost of a batch matters as it does there."""
        self.usual_recipe.plan_epoch(self._layout, seed=0, epoch=0)  # ConfigError: too small
        self._folder = folder

    @contextmanager
    def cache(self) -> Iterator[Path]:
        """Yield the folder of an empty disk cache, and remove it."""
        with tempfile.TemporaryDirectory(prefix="cache-", dir=self._folder) as folder:
            yield Path(folder)

    @contextmanager
    def limited(self, rate: float, delay_s: float) -> Iterator[Limit]:
        """Run a proxy before the store, which also delays each request."""
        arguments = (os.getpid(), self.store.port, str(rate), str(delay_s))
        with (
            pinned_to(self.other),
            LineProcess(python_command("bench.store_proxy", *arguments)) as process,
        ):
            yield Limit(rate, process, f"http://127.0.0.1:{process.next_line(_TIMEOUT_S)}")

    @contextmanager
    def local(self, *cores: int) -> Iterator[Daemon]:
        cores = cores or (self.core, self.other)
        with running_daemon(self.path, workers=1, cores=cores, options=_UNCACHED) as daemon:
            yield daemon

    @contextmanager
    def remote(
        self, cache: Path, endpoint: str = "", disk_bytes: int = 0, cores: Sequence[int] = ()
    ) -> Iterator[Daemon]:
        """Run a daemon that has the dataset from the store, without a limit by default."""
        options = [*_UNCACHED, *cache_options(cache, disk_bytes)]
        with running_daemon(
            self.store.url(NAME),
            workers=1,
            cores=cores or (self.core, self.other),
            options=options,
            environ=self.store.environ(endpoint),
        ) as daemon:
            yield daemon

    @contextmanager
    def fleet(self, endpoint: str, disk_bytes: int) -> Iterator[tuple[list[Daemon], BatchFetcher]]:
        """Run FEEDERS daemons, each with a cache of its own and the others as its peers over tcp,
        and a client of all over ipc. They own equally many lanes."""
        with ExitStack() as stack:
            folder = stack.enter_context(self.cache())
            ipc = [f"ipc://{folder}/{number}" for number in range(FEEDERS)]
            tcp = [f"tcp://127.0.0.1:{free_port()}" for _ in ipc]
            for name, endpoints in (("clients", ipc), ("peers", tcp)):
                lines = [f"node-{number} {text}\n" for number, text in enumerate(endpoints)]
                (folder / name).write_text("".join(lines))
            daemons = []
            for number in range(FEEDERS):
                cache = stack.enter_context(self.cache())
                peers = ("--name", f"node-{number}", "--peers", f"file://{folder}/peers")
                with pinned_to(self.core):
                    daemon = Daemon(
                        self.store.url(NAME),
                        ipc=ipc[number],
                        tcp=tcp[number],
                        workers=1,
                        options=[*_UNCACHED, *cache_options(cache, disk_bytes), *peers],
                        environ=self.store.environ(endpoint),
                    )
                stack.callback(daemon.terminate)
                daemons.append(daemon)
            recipe = msgspec.structs.replace(self.recipe, lanes=4 * FEEDERS, working_set=0)
            window = 4 * FEEDERS  # docs/many-hosts.md
            fetcher = BatchFetcher(
                f"file://{folder}/clients", recipe=recipe, window=window, timeout_s=_TIMEOUT_S
            )
            with fetcher:
                yield daemons, fetcher

    def open(self, daemon: Daemon, recipe: Recipe | None = None) -> BatchFetcher:
        return BatchFetcher(daemon.ipc, recipe=recipe or self.recipe, timeout_s=_TIMEOUT_S)

    def fetch(self, cache: Path, endpoint: str = "") -> None:
        """Fetch all of the dataset into a cache: `feeder cache fetch`."""
        command = feeder_command("cache", "fetch", self.store.url(NAME), *cache_options(cache))
        self._run(command, endpoint)

    def fetch_alone(self, folder: Path, endpoint: str = "") -> None:
        """Fetch it with the client library alone."""
        command = python_command(f"{__package__}.alone", os.getpid(), BUCKET, NAME, str(folder))
        self._run(command, endpoint)

    def first_batch_bytes(self) -> int:
        """Return the bytes of the pieces that hold the samples of the first batch."""
        plan = self.recipe.plan_epoch(self._layout, seed=0, epoch=0)
        pieces = np.unique(np.asarray(plan.samples(0)) // plan.shape.piece)
        return len(pieces) * plan.shape.piece * self.size_bytes // self._layout.samples

    def _run(self, command: Sequence[str], endpoint: str) -> None:
        environ = child_environment(self.store.environ(endpoint))
        with pinned_to(self.core, self.other):
            process = start_process(
                command, environ=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        try:
            _, log = process.communicate(timeout=_TIMEOUT_S)
        finally:
            stop_process(process)
        if process.returncode:
            lines = log.decode(errors="replace").strip().splitlines() or ["no message"]
            raise PeerError(f"fetching ended with status {process.returncode}: {lines[-1]}")


def cache_options(cache: Path, disk_bytes: int = 0) -> list[str]:
    options = ["--disk-path", str(cache)]
    return [*options, "--disk-bytes", str(disk_bytes)] if disk_bytes else options
