"""``feeder-bench ablate``: the gain of each optimisation of the batch path.

The input-pipeline figure of the TPU-pod paper, for this pipeline: the optimisations added one after
the other; all of them with one removed; and throughput against the number of workers. Each is a
user's setting of the recipe, the daemon or the client. All daemons run at once and all sessions
stay open; only the contender whose turn it is requests batches, always the same ones.

The decoder is not among them: all setups use our own. TurboJPEG would need a JPEG of every crop's
tiles, whose Huffman codes take longer to make than to decode, so that every other gain would look
larger. What blobs without Huffman codes gain is in ``feeder-bench decode``.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from feeder.client.stats import request_counters
from feeder.dataset.opened import Dataset
from feeder.errors import ResourceError
from feeder.host.topology import format_cpulist, usable_cpus
from feeder.jpeg.libraries import check_libraries
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe

from ..daemon import DATASET_NAME, Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..machine import describe_machine, pinned_to
from ..report import RATE, Report, Result, summarise
from ..rounds import Contender, run_rounds, warm_up
from .ablate_report import EVERYTHING, AblateReport

BATCH_SIZE: Final = 128
WINDOW: Final = 4
_LEASE_S: Final = 3600.0
_TIMEOUT_S: Final = 60.0
_FULL_AFTER_PASSES: Final = 3
"""The cache admits images gradually; it is full once this many passes have added nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """The arguments of a daemon; contenders with equal settings share one."""

    workers: int
    pin: str
    decoded_bytes: str

    def options(self) -> list[str]:
        """Return them as command-line arguments."""
        settings = ["--pin", self.pin, "--decoded-bytes", self.decoded_bytes]
        return [*settings, "--lease-s", str(_LEASE_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A contender: all settings that optimisations change."""

    partial_decode: bool
    dct_scaling: bool
    window: int
    packing: str
    daemon: DaemonSettings
    transport: str


NOTHING: Final = Setup(
    partial_decode=False,
    dct_scaling=False,
    window=1,
    packing="float32-hwc-rgb",
    daemon=DaemonSettings(workers=1, pin="off", decoded_bytes="0"),
    transport="tcp",
)


def everything(workers: int) -> Setup:
    """Return the setup with all optimisations on."""
    return Setup(
        partial_decode=True,
        dct_scaling=True,
        window=WINDOW,
        packing="int8-hwc-rgb",
        daemon=DaemonSettings(workers=workers, pin="auto", decoded_bytes="auto"),
        transport="ipc",
    )


OPTIMISATIONS: Final[Mapping[str, Callable[[Setup, Setup], Setup]]] = {
    "partial-decode": lambda to, source: replace(to, partial_decode=source.partial_decode),
    "dct-scaling": lambda to, source: replace(to, dct_scaling=source.dct_scaling),
    "decoded-cache": lambda to, source: _with_daemon(to, decoded_bytes=source.daemon.decoded_bytes),
    "prefetch-window": lambda to, source: replace(to, window=source.window),
    "parallel-workers": lambda to, source: _with_daemon(to, workers=source.daemon.workers),
    "numa-pinning": lambda to, source: _with_daemon(to, pin=source.daemon.pin),
    "int8": lambda to, source: replace(to, packing=source.packing),
    "ipc": lambda to, source: replace(to, transport=source.transport),
}
"""In the order in which they are added: each copies its settings from another setup."""


def plan_figure(workers: int) -> dict[str, Setup]:
    """Return the setup of every row, by name; rows may share one.

    ``added/X`` has X and all before it, ``removed/X`` all but X, ``workers/N`` all with N workers.
    """
    every = everything(workers)
    rows = {"added/nothing": NOTHING}
    setup = NOTHING
    for name, take in OPTIMISATIONS.items():
        rows[f"added/{name}"] = setup = take(setup, every)
    rows["removed/nothing"] = every
    for name, take in OPTIMISATIONS.items():
        rows[f"removed/{name}"] = take(every, NOTHING)
    for count in worker_counts(workers):
        rows[f"workers/{count}"] = _with_daemon(every, workers=count)
    return rows


def _with_daemon(setup: Setup, **changes: Any) -> Setup:
    return replace(setup, daemon=replace(setup.daemon, **changes))


def worker_counts(most: int) -> list[int]:
    """Return 1, 2, 4, 8 … and the most."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateOptions:
    """How long to measure, and where."""

    rounds: int
    batches: int
    """In a round, for each contender."""
    cores: frozenset[int]
    """Of the daemons; the client shares the last of them."""

    @property
    def client_core(self) -> int:
        """The core of the client."""
        return max(self.cores)


def measure_ablation(path: Path, options: AblateOptions) -> AblateReport:
    """Measure the dataset at ``path``."""
    machine = describe_machine()
    cores = format_cpulist(options.cores)
    machine["cores_used"] = {"daemon": cores, "client": options.client_core}
    check_libraries()
    with Dataset.open(path) as dataset:
        images = dataset.layout.samples
        batch_size = min(BATCH_SIZE, images)
    figure = plan_figure(min(len(options.cores), usable_cpus().count))
    setups = list(dict.fromkeys(figure.values()))
    with ExitStack() as stack:
        stack.enter_context(pinned_to(frozenset({options.client_core})))
        daemons = {
            settings: stack.enter_context(
                running_daemon(
                    path,
                    workers=settings.workers,
                    cores=options.cores,
                    options=settings.options(),
                )
            )
            for settings in dict.fromkeys(setup.daemon for setup in setups)
        }
        streams = [
            stack.enter_context(_open_session(daemons[setup.daemon], setup, batch_size))
            for setup in setups
        ]
        contenders: list[Contender] = [functools.partial(_fetch, each) for each in streams]
        cached = {
            setup.daemon: fetch
            for setup, fetch in zip(setups, contenders, strict=True)
            if setup.daemon.decoded_bytes != "0"
        }
        _fill_caches({daemons[each]: fetch for each, fetch in cached.items()}, options.batches)
        rates = _run(setups, contenders, options, batch_size)
    rows = figure_rows(figure, rates)
    measured = {
        "rounds": options.rounds,
        "images": images,
        "images a round": options.batches * batch_size,
    }
    return AblateReport(bench="ablate", machine=machine, results=rows, measured=measured)


def _fetch(stream: BatchFetcher, first: int, end: int) -> None:
    """Fetch batches, the same in every round and setup, so that the crops make no difference."""
    for _ in stream.fetch_run(first, end - first):
        pass


def _fill_caches(caches: Mapping[Daemon, Contender], batches: int) -> None:
    """Fetch the measured batches repeatedly until each daemon's cache admits nothing more."""
    progress = ProgressLine(sys.stderr)
    progress.begin("filling", "caches", len(caches))
    for daemon, fetch in caches.items():
        entries, unchanged = 0, 0
        while unchanged < _FULL_AFTER_PASSES:
            fetch(0, batches)
            before, entries = (
                entries,
                int(request_counters(daemon.ipc, _TIMEOUT_S)["cache_entries"]),
            )
            unchanged = unchanged + 1 if entries == before else 0
        progress.add(1)
    progress.end()


def _run(
    setups: Sequence[Setup],
    fetches: Sequence[Contender],
    options: AblateOptions,
    batch_size: int,
) -> dict[Setup, list[float]]:
    """Return the rates of each setup by round."""
    contenders = {str(number): fetch for number, fetch in enumerate(fetches)}
    batches = options.batches
    warm_up(contenders, items=batches, piece=batches)
    rates: dict[Setup, list[float]] = {setup: [] for setup in setups}
    progress = ProgressLine(sys.stderr)
    progress.begin("measuring", "rounds", options.rounds)
    for seconds in run_rounds(contenders, items=batches, piece=batches, rounds=options.rounds):
        for setup, taken_s in zip(setups, seconds.values(), strict=True):
            rates[setup].append(batches * batch_size / taken_s)
        progress.add(1)
    progress.end()
    return rates


def figure_rows(figure: Mapping[str, Setup], rates: Mapping[Setup, list[float]]) -> list[Result]:
    """Return the rows; an added optimisation is compared with the row before it."""
    rows: dict[str, Result] = {}
    before = None
    for name, setup in figure.items():
        kind = name.partition("/")[0]
        baseline = {"added": before, "removed": "removed/nothing", "workers": "workers/1"}[kind]
        if baseline == name:
            baseline = None
        if baseline is None:
            rows[name] = summarise(name, RATE, rates[setup])
        else:
            rows[name] = summarise(
                name,
                RATE,
                rates[setup],
                baseline=rows[baseline],
                baseline_values=rates[figure[baseline]],
            )
        before = name
    every, nothing = figure["removed/nothing"], figure["added/nothing"]
    rows[EVERYTHING] = summarise(
        EVERYTHING,
        RATE,
        rates[every],
        baseline=rows["added/nothing"],
        baseline_values=rates[nothing],
    )
    return list(rows.values())


def _open_session(daemon: Daemon, setup: Setup, batch_size: int) -> BatchFetcher:
    """Open the session of a setup; ResourceError when memory does not suffice for its window."""
    fetcher = BatchFetcher(
        {"ipc": daemon.ipc, "tcp": daemon.tcp}[setup.transport],
        dataset=DATASET_NAME,
        recipe=Recipe.for_split(
            "train",
            batch_size=batch_size,
            partial_decode=setup.partial_decode,
            dct_scaling=setup.dct_scaling,
            packing=setup.packing,
        ),
        window=setup.window,
        timeout_s=_TIMEOUT_S,
        client="feeder-bench ablate",
    )
    if fetcher.welcome.window < setup.window:
        fetcher.close()
        raise ResourceError(
            f"the daemon granted a window of {fetcher.welcome.window} batches, but the figure "
            f"needs {setup.window}: free some memory"
        )
    return fetcher


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    options = AblateOptions(
        rounds=arguments.rounds,
        batches=arguments.batches,
        cores=frozenset(os.sched_getaffinity(0)),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_ablation(path, options)
