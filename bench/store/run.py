"""``feeder-bench store``: what a dataset in an object store costs, beside the same one on the disk.

The store is nginx on the loopback address, read by the real daemon with the real client library. A
proxy limits all connections together to LIMIT where a row says ``limited`` and in the parts first,
small and peers, and delays requests with ``--delay``. Each part compares in turns: a warm cache
with the local dataset, `feeder cache fetch` with the client library alone, an epoch of a cold cache
with the larger of computing and transferring, both measured or known in the same round.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from feeder.client.stats import request_report
from feeder.errors import ConfigError
from feeder.jpeg.libraries import check_libraries
from feeder.pack.progress import ProgressLine

from ..daemon import Daemon
from ..data.material import large_dataset
from ..fetcher import TIMEOUT_S, BatchFetcher
from ..loopback_store import LoopbackStore
from ..machine import choose_cores, describe_machine, pinned_to
from ..report import RATE, JudgedReport, Result, compare, format_number, single, summarise
from ..rounds import Contender, measure, rates
from .scene import BATCH_SIZE, FEEDERS, IMAGE_SIZE, NAME, USUAL_BATCH_SIZE, WINDOWS, Limit, Scene

LIMIT: Final = 400e6  # bytes a second
SMALL_SHARE: Final = 0.3  # of the dataset, for the small cache
FIRST_S: Final = 3.0  # that the first batch may take besides the transfer of what it needs

WARM_MIN: Final = 0.97
COLD_MIN: Final = 0.90
EPOCH_MAX: Final = 1.15
LEFT_MAX: Final = 1.01  # each byte once; manifest, indexes and the log's headers are the rest

PEERS_LEFT_MAX: Final = 0.05

PARTS: Final = ("warm", "cold", "first", "epoch", "small", "peers")

_DISTINCT: Final = 512  # images, which are repeated
_LATER_EPOCHS: Final = 2
_SLOW: Final = 2.0  # how much longer than computing the transfer of the slow epoch takes
_WARM_BATCHES: Final = 4  # of a turn
_REPORT_S: Final = 1.5  # until a report has what was copied before

_Rows = list[Result]


class StoreReport(JudgedReport):
    def conclude(self) -> list[str]:
        rows, lines = self.rows, []
        if warm := rows.get("warm/remote"):
            lines.append(f"A warm cache serves {warm.ratio:.2f} of the local rate.")
        if cold := rows.get("cold/fetch"):
            lines.append(
                f"`feeder cache fetch` reaches {cold.ratio:.2f} of the client library alone, at "
                f"{format_number(cold.value)} MB/s."
            )
        if first := rows.get("first/batch"):
            lines.append(
                f"The first batch of a cold dataset took {first.value:.1f} s, of which the store "
                f"needs {rows['first/needed'].value:.1f} s."
            )
        for name, words in (
            ("epoch/cold", ""),
            ("epoch/cold-limited", f" at {LIMIT / 1e6:g} MB/s"),
            ("epoch/cold-slow", " from a slow store"),
        ):
            if epoch := rows.get(name):
                lines.append(
                    f"A cold first epoch{words} takes {epoch.ratio:.2f} times as long as the "
                    "larger of computing and transferring."
                )
        if small := rows.get("small/from-disk"):
            lines.append(
                f"With a cache of {SMALL_SHARE:.0%} of the dataset, later epochs read "
                f"{small.value:.0%} of it from the disk."
            )
        if left := rows.get("peers/left"):
            lines.append(
                f"{FEEDERS} feeders with such caches read {left.value:.1%} of it from the store in "
                f"later epochs and copy {rows['peers/copied'].value:.0%} from each other; once one "
                f"is killed, {rows['killed/left'].value:.0%} and {rows['killed/copied'].value:.0%}."
            )
        return lines


def run(arguments: argparse.Namespace) -> StoreReport:
    """Measure the parts asked for; ResourceError without nginx."""
    parts = _choose_parts(arguments.parts)
    core, other = choose_cores(arguments.core)
    machine = describe_machine({"daemon": core, "store and client": other})
    check_libraries()
    rounds = 1 if arguments.quick else arguments.rounds
    size_bytes = round(arguments.gib * (0.25 if arguments.quick else 1) * 2**30)
    with ExitStack() as stack:
        large = large_dataset(arguments.dataset, size_bytes=size_bytes, distinct=_DISTINCT)
        path = stack.enter_context(large)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-"))
        stack.enter_context(pinned_to(other))
        store = stack.enter_context(LoopbackStore({NAME: path}))
        scene = Scene(path, store, Path(folder), core=core, other=other)
        limit = stack.enter_context(scene.limited(LIMIT, arguments.delay))
        measures: Mapping[str, Callable[[], _Rows]] = {
            "warm": lambda: _measure_warm(scene, rounds),
            "cold": lambda: _measure_cold(scene, limit, rounds),
            "first": lambda: _measure_first(scene, limit, rounds),
            "epoch": lambda: _measure_epoch(scene, limit, rounds, arguments.delay),
            "small": lambda: _measure_small(scene, limit),
            "peers": lambda: _measure_peers(scene, limit),
        }
        results = [row for part in parts for row in measures[part]()]
    measured = {
        "rounds": rounds,
        "batches": f"{USUAL_BATCH_SIZE} images of 224 px (warm and epoch), "
        f"{BATCH_SIZE} of {IMAGE_SIZE} px",
        "dataset": f"{scene.size_bytes / 1e9:.2f} GB, in {WINDOWS} windows",
        "limit": f"{LIMIT / 1e6:g} MB/s, {1e3 * arguments.delay:g} ms a request",
    }
    return StoreReport(
        bench="store", machine=machine, measured=measured, results=results, failures=judge(results)
    )


def judge(results: _Rows) -> list[str]:
    """Return a line for each target that is missed beyond the noise."""
    rows = {row.name: row for row in results}
    failures = []
    for name, least in (("warm/remote", WARM_MIN), ("cold/fetch", COLD_MIN)):
        if (row := rows.get(name)) and (row.ratio_high or row.ratio or 0.0) < least:
            failures.append(f"{name} is {row.ratio:.3f} of {row.baseline}; {least:g} is required")
    for name in ("epoch/cold", "epoch/cold-slow"):
        if (row := rows.get(name)) and (row.ratio_low or row.ratio or 0.0) > EPOCH_MAX:
            failures.append(f"{name} is {row.ratio:.3f} of {row.baseline}; at most {EPOCH_MAX:g}")
        if (row := rows.get(f"{name}/left")) and row.value > LEFT_MAX:
            failures.append(f"{row.value:.3f} datasets left the store in {name}; each byte once")
    if (row := rows.get("peers/left")) and row.value > PEERS_LEFT_MAX:
        most = f"at most {PEERS_LEFT_MAX:g}"
        failures.append(f"{row.value:.3f} datasets left the store in peers; {most}")
    if (row := rows.get("first/batch")) and row.value > FIRST_S + rows["first/needed"].value:
        allowed_s = FIRST_S + rows["first/needed"].value
        failures.append(f"the first batch took {row.value:.2f} s; at most {allowed_s:.2f} s")
    return failures


def _choose_parts(text: str | None) -> list[str]:
    names = PARTS if text is None else text.split(",")
    for name in names:
        if name not in PARTS:
            raise ConfigError(f"--parts {name} is no part: name some of {', '.join(PARTS)}")
    return [part for part in PARTS if part in names]


def _measure_warm(scene: Scene, rounds: int) -> _Rows:
    """Two daemons on one core, in turns: the dataset local, and from a cache that has all of it."""
    with ExitStack() as stack:
        cache = stack.enter_context(scene.cache())
        scene.fetch(cache)
        daemons = {
            "warm/local": stack.enter_context(scene.local(scene.core)),
            "warm/remote": stack.enter_context(scene.remote(cache, cores=[scene.core])),
        }
        costs = _Costs()

        def advance(name: str, fetcher: BatchFetcher, first: int, end: int) -> None:
            with costs.of(name, daemons[name].busy_s):
                fetcher.advance(first, end)

        contenders: dict[str, Contender] = {
            name: partial(
                advance, name, stack.enter_context(scene.open(daemon, scene.usual_recipe))
            )
            for name, daemon in daemons.items()
        }
        before = scene.store.body_bytes()
        batches = 4 * _WARM_BATCHES
        taken = measure(
            contenders,
            rounds=rounds,
            items=batches,
            piece=_WARM_BATCHES,
            after_warm_up=costs.drop,
            after_round=costs.end_round,
        )
        fetched = scene.store.body_bytes() - before
    images = batches * USUAL_BATCH_SIZE
    return [
        *compare(rates(taken, images), RATE),
        *compare(rates(costs.rounds, images), RATE),
        single("warm/left", "datasets", fetched / scene.size_bytes),
    ]


def _measure_cold(scene: Scene, limit: Limit, rounds: int) -> _Rows:
    """The whole dataset into new files, by the library alone and by `feeder cache fetch`."""
    ways = {"obstore": scene.fetch_alone, "fetch": scene.fetch}
    costs = _Costs()

    def fetch(way: str, endpoint: str, name: str, _first: int, _end: int) -> None:
        with scene.cache() as cache, costs.of(name, _children_s):
            ways[way](cache, endpoint)

    contenders: dict[str, Contender] = {}
    for suffix, endpoint in (("", ""), ("-limited", limit.endpoint)):
        for way in ways:
            name = f"cold/{way}{suffix}"
            contenders[name] = partial(fetch, way, endpoint, name)
    before_s = limit.busy_s(), scene.store.busy_s()
    taken = measure(
        contenders, rounds=rounds, after_warm_up=costs.drop, after_round=costs.end_round
    )
    proxy_s, nginx_s = limit.busy_s() - before_s[0], scene.store.busy_s() - before_s[1]
    turn_gb = (rounds + 1) * scene.size_bytes / 1e9  # of a contender, with the pass that warms up
    rows: _Rows = []
    for seconds in (taken, costs.rounds):
        bases = {name: name.replace("fetch", "obstore") for name in seconds}
        baselines = {name: base if base != name else None for name, base in bases.items()}
        rows += compare(rates(seconds, scene.size_bytes / 1e6), "MB/s", baselines)
    return [
        *rows,
        single("cpu/nginx", "s/GB", nginx_s / (len(contenders) * turn_gb)),
        single("cpu/proxy", "s/GB", proxy_s / (len(ways) * turn_gb)),
    ]


class _Costs:
    """What turns cost without their preparation: the time, and the CPU time as NAME/cpu, by round.
    The latter is to be read on a machine in use."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[float]] = {}
        self._wall_s: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, name: str, busy_s: Callable[[], float]) -> Iterator[None]:
        cpu_s, wall_s = busy_s(), time.monotonic()
        yield
        self._wall_s[name] += time.monotonic() - wall_s
        self._cpu_s[f"{name}/cpu"] += busy_s() - cpu_s

    def drop(self) -> None:
        self._wall_s.clear()
        self._cpu_s.clear()

    def end_round(self, taken: dict[str, float]) -> None:
        """Correct the round's times, as ``measure`` allows, and keep those of the CPU."""
        taken.update(self._wall_s)
        for name, cpu_s in self._cpu_s.items():
            self.rounds.setdefault(name, []).append(cpu_s)
        self.drop()


def _children_s() -> float:
    """Return the CPU time of the children that have ended, with theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _measure_first(scene: Scene, limit: Limit, rounds: int) -> _Rows:
    """A new daemon with an empty cache: until it is ready, and from a session's start on."""
    ready_s, batch_s = [], []
    for _ in _count("first batches", rounds):
        began_s = time.monotonic()
        with scene.cache() as cache, scene.remote(cache, limit.endpoint) as daemon:
            ready_s.append(time.monotonic() - began_s)
            began_s = time.monotonic()
            with scene.open(daemon) as fetcher:
                fetcher.replay(0, 1)
                batch_s.append(time.monotonic() - began_s)
    return [
        summarise("first/ready", "s", ready_s),
        single("first/needed", "s", scene.first_batch_bytes() / limit.rate),
        summarise("first/batch", "s", batch_s),
    ]


def _measure_epoch(scene: Scene, limit: Limit, rounds: int, delay_s: float) -> _Rows:
    """An epoch of the local dataset, then of cold caches: without a limit, at the limit, and at a
    rate at which the transfer takes twice as long as computing."""
    seconds: dict[str, list[float]] = defaultdict(list)
    left: dict[str, list[float]] = defaultdict(list)

    def stream(name: str, daemon: Daemon) -> float:
        store_bytes, cpu_s, began_s = scene.store.body_bytes(), daemon.busy_s(), time.monotonic()
        with scene.open(daemon, scene.usual_recipe) as fetcher:
            fetcher.replay(0, fetcher.welcome.batches)
        taken_s = time.monotonic() - began_s
        seconds[name].append(taken_s)
        seconds[f"{name}/cpu"].append(daemon.busy_s() - cpu_s)
        left[f"{name}/left"].append((scene.store.body_bytes() - store_bytes) / scene.size_bytes)
        return taken_s

    with scene.local() as local:
        for _ in _count("rounds of epochs", rounds):
            compute_s = stream("epoch/local", local)
            slow_rate = min(limit.rate, scene.size_bytes / (_SLOW * compute_s))
            with scene.cache() as cache:
                began_s = time.monotonic()
                scene.fetch_alone(cache)
                transfer_s = time.monotonic() - began_s
            with scene.limited(slow_rate, delay_s) as slow:
                for suffix, endpoint, least_s in (
                    ("", "", transfer_s),
                    ("-limited", limit.endpoint, scene.size_bytes / limit.rate),
                    ("-slow", slow.endpoint, scene.size_bytes / slow.rate),
                ):
                    seconds[f"epoch/least{suffix}"].append(max(compute_s, least_s))
                    with scene.cache() as cache, scene.remote(cache, endpoint) as daemon:
                        stream(f"epoch/cold{suffix}", daemon)
    bases = {f"epoch/cold{suffix}": f"epoch/least{suffix}" for suffix in ("", "-limited", "-slow")}
    bases |= {f"{name}/cpu": "epoch/local/cpu" for name in bases}
    rows = compare(seconds, "s", {name: bases.get(name) for name in seconds})
    del left["epoch/local/left"]
    return rows + [summarise(name, "datasets", values) for name, values in left.items()]


def _measure_small(scene: Scene, limit: Limit) -> _Rows:
    """Epochs with a cache that holds a part of the dataset, after one that fills it."""
    disk_bytes = round(SMALL_SHARE * scene.size_bytes)
    shares, images = [], []
    with (
        scene.cache() as cache,
        scene.remote(cache, limit.endpoint, disk_bytes) as daemon,
        scene.open(daemon) as fetcher,
    ):
        batches = fetcher.welcome.batches
        for epoch in _count("epochs with a small cache", 1 + _LATER_EPOCHS):
            before, began_s = scene.store.body_bytes(), time.monotonic()
            fetcher.replay(epoch * batches, (epoch + 1) * batches)
            images.append(batches * BATCH_SIZE / (time.monotonic() - began_s))
            shares.append((scene.store.body_bytes() - before) / scene.size_bytes)
    return [
        summarise("small/rate", RATE, images[1:]),
        summarise("small/left", "datasets", shares[1:]),
        summarise("small/from-disk", "datasets", [1 - share for share in shares[1:]]),
    ]


def _measure_peers(scene: Scene, limit: Limit) -> _Rows:
    """Epochs of four feeders that copy from each other, after one that fills their caches, and as
    many after one of them was killed."""
    values: dict[str, list[float]] = {}
    disk_bytes = round(SMALL_SHARE * scene.size_bytes)
    with scene.fleet(limit.endpoint, disk_bytes) as (daemons, fetcher):

        def copied_bytes() -> int:
            reports = [request_report(daemon.ipc, TIMEOUT_S) for daemon in daemons]
            return sum(report.store.peer_bytes for report in reports if report.store)

        batches = fetcher.welcome.batches
        for epoch in _count("epochs of four feeders", 1 + 2 * _LATER_EPOCHS):
            if epoch == 1 + _LATER_EPOCHS:
                daemons.pop().kill()
            part = "filling" if epoch == 0 else "peers" if epoch <= _LATER_EPOCHS else "killed"
            left, copied, began_s = scene.store.body_bytes(), copied_bytes(), time.monotonic()
            fetcher.replay(epoch * batches, (epoch + 1) * batches)
            taken_s = time.monotonic() - began_s
            time.sleep(_REPORT_S)
            left, copied = scene.store.body_bytes() - left, copied_bytes() - copied
            for name, value in (
                ("rate", batches * BATCH_SIZE / taken_s),
                ("left", left / scene.size_bytes),
                ("copied", copied / scene.size_bytes),
            ):
                values.setdefault(f"{part}/{name}", []).append(value)
    return [
        summarise(name, RATE if name.endswith("rate") else "datasets", numbers)
        for name, numbers in values.items()
    ]


def _count(noun: str, rounds: int) -> Iterator[int]:
    """Yield the numbers of rounds, with progress."""
    progress = ProgressLine(sys.stderr)
    progress.begin("measuring", noun, rounds)
    for number in range(rounds):
        yield number
        progress.add(1)
    progress.end()
