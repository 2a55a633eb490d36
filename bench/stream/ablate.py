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
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from feeder.client.stats import request_counters
from feeder.dataset.opened import Dataset
from feeder.errors import ResourceError
from feeder.host.topology import format_cpulist, usable_cpus
from feeder.jpeg.libraries import check_libraries
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..machine import describe_machine, pinned_to
from ..report import RATE, Report, Result, compare, format_ratio
from ..rounds import Contender, measure, rates
from .streams import doublings

WORDS: Final[Mapping[str, str]] = {
    "partial-decode": "partial decode",
    "dct-scaling": "DCT scaling",
    "decoded-cache": "decoded cache",
    "prefetch-window": "prefetch window",
    "parallel-workers": "parallel workers",
    "numa-pinning": "NUMA pinning",
    "int8": "int8",
    "ipc": "ipc",
}
"""The optimisations as they are called in text and picture."""

EVERYTHING: Final = "all-of-them/against-nothing"
_TIMES: Final = "×\N{NO-BREAK SPACE}"

BATCH_SIZE: Final = 128
_TIMEOUT_S: Final = 60.0
_FULL_AFTER_PASSES: Final = 3  # without another image: a cache admits them gradually


class Setup(NamedTuple):
    """All settings that optimisations change, in the order they are added; none by default."""

    partial_decode: bool = False
    dct_scaling: bool = False
    decoded_bytes: str = "0"
    window: int = 1
    workers: int = 1
    pin: str = "off"
    packing: str = "float32-hwc-rgb"
    transport: str = "tcp"


OPTIMISATIONS: Final = dict(zip(WORDS, Setup._fields, strict=True))


def everything(workers: int) -> Setup:
    return Setup(
        partial_decode=True,
        dct_scaling=True,
        decoded_bytes="auto",
        window=4,
        workers=workers,
        pin="auto",
        packing="int8-hwc-rgb",
        transport="ipc",
    )


def plan_figure(workers: int) -> dict[str, Setup]:
    """Return the setup of every row, by name; rows may share one.

    ``added/X`` has X and all before it, ``removed/X`` all but X, ``workers/N`` all with N workers.
    """
    nothing, every = Setup(), everything(workers)
    rows = {"added/nothing": nothing}
    setup = nothing
    for name, key in OPTIMISATIONS.items():
        rows[f"added/{name}"] = setup = setup._replace(**{key: getattr(every, key)})
    rows["removed/nothing"] = every
    for name, key in OPTIMISATIONS.items():
        rows[f"removed/{name}"] = every._replace(**{key: getattr(nothing, key)})
    for count in doublings(workers):
        rows[f"workers/{count}"] = every._replace(workers=count)
    return rows | {EVERYTHING: every}


def run(arguments: argparse.Namespace) -> Report:
    """Measure with daemons on all cores, of which the client shares the last."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        path = stack.enter_context(dataset_or_synthetic(arguments.dataset, images=arguments.images))
        machine = describe_machine()
        machine["cores_used"] = {"daemon": format_cpulist(cores), "client": cores[-1]}
        check_libraries()
        with Dataset.open(path) as dataset:
            images = dataset.layout.samples
        batch_size = min(BATCH_SIZE, images)
        figure = plan_figure(min(len(cores), usable_cpus().count))
        stack.enter_context(pinned_to(cores[-1]))
        daemons: dict[tuple[str, ...], Daemon] = {}
        caches: dict[Daemon, Contender] = {}
        contenders: dict[str, Contender] = {}
        for setup in dict.fromkeys(figure.values()):
            options = ("--pin", setup.pin, "--decoded-bytes", setup.decoded_bytes)
            daemon = daemons.get((str(setup.workers), *options))
            if daemon is None:
                serving = running_daemon(
                    path,
                    workers=setup.workers,
                    cores=cores,
                    options=[*options, "--lease-s", "3600"],
                )
                daemon = daemons[str(setup.workers), *options] = stack.enter_context(serving)
            fetcher = stack.enter_context(_open_session(daemon, setup, batch_size))
            # The same batches in every round and setup, so that the crops make no difference.
            contenders[str(setup)] = fetcher.replay
            if setup.decoded_bytes != "0":
                caches[daemon] = fetcher.replay
        _fill_caches(caches, arguments.batches)
        taken = measure(contenders, rounds=arguments.rounds, items=arguments.batches)
    images_a_round = arguments.batches * batch_size
    of_setups = rates(taken, images_a_round)
    return AblateReport(
        bench="ablate",
        machine=machine,
        results=figure_rows({name: of_setups[str(setup)] for name, setup in figure.items()}),
        measured={"rounds": arguments.rounds, "images": images, "images a round": images_a_round},
    )


def _fill_caches(caches: Mapping[Daemon, Contender], batches: int) -> None:
    """Fetch the measured batches repeatedly until each daemon's cache admits nothing more."""
    progress = ProgressLine(sys.stderr)
    progress.begin("filling", "caches", len(caches))
    for daemon, fetch in caches.items():
        entries, unchanged = 0, 0
        while unchanged < _FULL_AFTER_PASSES:
            fetch(0, batches)
            before = entries
            entries = int(request_counters(daemon.ipc, _TIMEOUT_S)["cache_entries"])
            unchanged = unchanged + 1 if entries == before else 0
        progress.add(1)
    progress.end()


def figure_rows(values: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return the rows, given each one's rates; an added optimisation is compared with the last."""
    baselines: dict[str, str | None] = {}
    before = None
    for name in values:
        kind = name.partition("/")[0]
        fixed = {"removed": "removed/nothing", "workers": "workers/1", "added": before}
        baseline = fixed.get(kind, "added/nothing")
        baselines[name] = None if baseline == name else baseline
        before = name
    return compare(values, RATE, baselines)


def _open_session(daemon: Daemon, setup: Setup, batch_size: int) -> BatchFetcher:
    """Open the session of a setup; ResourceError when memory does not suffice for its window."""
    fetcher = BatchFetcher(
        {"ipc": daemon.ipc, "tcp": daemon.tcp}[setup.transport],
        recipe=Recipe.for_split(
            "train",
            batch_size=batch_size,
            partial_decode=setup.partial_decode,
            dct_scaling=setup.dct_scaling,
            packing=setup.packing,
        ),
        window=setup.window,
    )
    if fetcher.welcome.window < setup.window:
        fetcher.close()
        raise ResourceError(
            f"the daemon granted a window of {fetcher.welcome.window} batches, but the figure "
            f"needs {setup.window}: free some memory"
        )
    return fetcher


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateReport(Report):
    def conclude(self) -> list[str]:
        rows = self.rows
        removed = {words: rows[f"removed/{name}"] for name, words in WORDS.items()}
        removed = {words: row for words, row in removed.items() if not is_same(row)}
        noise = [words for words, row in removed.items() if row.is_within_noise]
        judged = sorted(
            (row.ratio or 0.0, words) for words, row in removed.items() if words not in noise
        )
        shown = [(ratio, f"{words} {_TIMES}{ratio:.2f}") for ratio, words in judged]
        groups = {
            "Slower without one": [text for ratio, text in shown if ratio < 1],
            "Faster without one": [text for ratio, text in reversed(shown) if ratio >= 1],
            "No difference beyond the noise": noise,
        }
        together = format_ratio(rows[EVERYTHING])
        return [
            f"All optimisations together: {together} times as fast as with none.",
            *(f"{what}: {', '.join(group)}." for what, group in groups.items() if group),
        ]


def is_same(row: Result) -> bool:
    """Return whether the row's setup is its baseline's, such as one worker on one core."""
    return row.ratio == row.ratio_low == row.ratio_high == 1
