"""``feeder-bench stream --calls``: the Python calls of a batch and of a Hello, on each side.

A daemon with one worker serves a ``NumpyLoader`` of this process over ipc, all on one core. Python
frames count, those of libraries and comprehensions included; C calls do not. On the client the
training thread and the loader's I/O thread count, beginning at the first call of the room
``client``; in the node process its only thread.

A batch has one chunk, and the loader waits for it, because it does nothing with the last one. A row
is the median over groups of GROUP batches: some have a ping, a heartbeat or a wake-up among them,
most have none. A Hello is a connection, the session and the claim of its slots. Between two of them
the bench waits until both sides are quiet.
"""

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import feeder
from trainer_client import NumpyLoader

from ..daemon import DATASET_NAME, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, single, summarise
from .call_counter import CallCounter, Calls, ChildCounter

BATCH_SIZE: Final = 8
"""One chunk; the number of images changes no count."""

GROUP: Final = 8
"""Batches that are counted together: the two sides do not take turns in step."""

BATCHES: Final = 512
HELLOS: Final = 32

WARM_UP: Final = 16
"""Batches, and Hellos, before those that count."""

_QUIET_S: Final = 0.02
"""When neither side has called anything for so long, both have finished."""

_SHOWN: Final = 0.1
"""Functions that are called less often for a batch or a Hello are not listed."""

_PRODUCT: Final = Path(feeder.__file__).resolve().parents[1]
_CLIENT: Final = str(_PRODUCT / "feeder" / "client")

_SIDES: Final = ("client", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsReport(Report):
    """The counts, and below them each row's calls by function."""

    functions: Mapping[str, Mapping[str, float]]
    """By row; each file and function, with its calls for one batch or one Hello."""

    def to_text(self) -> str:
        """Return the table of all rows and each row's functions, with a newline at its end."""
        lines = [Report.to_text(self)]
        for name, functions in self.functions.items():
            lines.append(f"\n{name}:\n")
            for function, calls in sorted(functions.items(), key=lambda item: -item[1]):
                lines.append(f"  {calls:6.1f}  {function}\n")
        return "".join(lines)


def count_calls(arguments: argparse.Namespace) -> CallsReport:
    """Count the calls of BATCHES batches, and of HELLOS Hellos."""
    core = choose_core(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"worker": core, "client": core})
        options = ["--decoded-bytes", "0"]
        with (
            pinned_to(core),
            ChildCounter("feeder.node") as node,
            running_daemon(path, workers=1, cores=[core], options=options) as daemon,
        ):
            node.connect()
            bench = _CallsBench(daemon.ipc, node)
            bench.count_batches()
            bench.count_hellos()
    return CallsReport(
        bench="stream",
        machine=machine,
        measured={"batches": BATCHES, "batch size": BATCH_SIZE, "hellos": HELLOS},
        results=bench.results,
        functions=bench.functions,
    )


class _CallsBench:
    """Counts at one daemon, with one loader at a time."""

    def __init__(self, endpoint: str, node: ChildCounter) -> None:
        self._open = partial(
            NumpyLoader, endpoint, dataset=DATASET_NAME, batch_size=BATCH_SIZE, copy=False
        )
        self._node = node
        self._client = CallCounter()
        self.results: list[Result] = []
        self.functions: dict[str, Mapping[str, float]] = {}

    def count_batches(self) -> None:
        """Add the rows of a batch."""
        counts: list[tuple[int, int]] = []  # of client and node
        with self._client, self._open() as loader:
            stream = itertools.chain.from_iterable(itertools.repeat(loader))
            for _ in range(WARM_UP):
                next(stream)
            self._client.take(), self._node.take()
            for _ in range(BATCHES // GROUP):
                for _ in range(GROUP):
                    next(stream)
                counts.append((self._client.count(), self._node.count()))
            calls = self._client.take(), self._node.take()
        for side, totals, taken in zip(_SIDES, zip(*counts, strict=True), calls, strict=True):
            values = [(after - before) / GROUP for before, after in pairwise((0, *totals))]
            self._add(side, values, taken, GROUP * len(values))

    def count_hellos(self) -> None:
        """Add the rows of a Hello."""
        hellos: list[tuple[Calls, Calls]] = []
        for _ in range(WARM_UP + HELLOS):
            self._settle()
            with self._client:
                loader = self._open()
            with loader:
                hellos.append(self._settle())
        for side, calls in zip(_SIDES, zip(*hellos[WARM_UP:], strict=True), strict=True):
            totals = [each.total() for each in calls]
            self._add(f"hello-{side}", totals, sum(calls, Calls()), HELLOS)

    def _add(self, name: str, values: Sequence[float], calls: Calls, times: int) -> None:
        self.results.append(summarise(f"calls/{name}", "calls", values))
        functions = {place: count / times for place, count in calls.items()}
        functions = {place: count for place, count in functions.items() if count >= _SHOWN}
        # A file that only some batches pass, because of a ping, is not on the way of a batch.
        often: dict[str, float] = {}
        for (file, _), count in functions.items():
            often[file] = often.get(file, 0.0) + count
        files = [file for file, count in often.items() if count > 0.5 and _shorten(file) != file]
        self.results.append(single(f"files/{name}", "files", len(files)))
        self.functions[f"calls/{name}"] = {
            f"{_shorten(file)} {function}": count for (file, function), count in functions.items()
        }

    def _settle(self) -> tuple[Calls, Calls]:
        """Return the calls of client and node process, once both are quiet."""
        client, node = Calls(), Calls()
        while True:
            time.sleep(_QUIET_S)
            more = self._client.take(_CLIENT), self._node.take()
            if not any(more):
                return client, node
            client, node = client + more[0], node + more[1]


def _shorten(file: str) -> str:
    """Return a file's path in the repository, if it is the product's."""
    return file.removeprefix(f"{_PRODUCT}/") if "site-packages" not in file else file
