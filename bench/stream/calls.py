"""``feeder-bench stream --calls``: the Python calls of a batch and of a Hello, on each side.

A daemon with one worker serves a ``NumpyLoader`` of this process over ipc, all on one core. Python
frames count, those of libraries and comprehensions included; C calls do not. On the client the
training thread and the loader's I/O thread count, of a Hello beginning at the first call of the
room ``client``; in the node process its only thread.

A batch has one chunk, and the loader waits for it, because it does nothing with the last one. A row
is the median over groups of GROUP batches: some have a ping, a heartbeat or a wake-up among them,
most have none. A Hello is a connection, the session and the claim of its slots. Between two of them
the bench waits until both sides are quiet.
"""

import argparse
import itertools
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from io import BufferedReader
from pathlib import Path
from typing import Final

import feeder
from trainer_client import NumpyLoader

from ..daemon import DATASET_NAME, running_daemon, sitecustomize
from ..data.material import dataset_or_synthetic
from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, row_table, single, summarise
from .call_counter import CallCounter, Calls

BATCH_SIZE: Final = 8  # one chunk; the number of images changes no count

GROUP: Final = 8  # batches that are counted together: the two sides do not take turns in step

BATCHES: Final = 512
HELLOS: Final = 32

WARM_UP: Final = 16  # batches, and Hellos, before those that count

_QUIET_S: Final = 0.02  # when neither side has called anything for so long, both have finished

_SHOWN: Final = 0.1  # functions that are called less often for a batch or a Hello are not listed

_PRODUCT: Final = Path(feeder.__file__).resolve().parents[1]
_CLIENT: Final = str(_PRODUCT / "feeder" / "client")

_TIMEOUT_S: Final = 60.0
_SITECUSTOMIZE: Final = """\
import sys
if {module!r} in sys.orig_argv:
    from {package}.call_counter import report_calls
    report_calls({path!r})
"""

_Pair = tuple[Calls, Calls]  # of client and node process


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsReport(Report):
    """The counts, and below them each row's calls by function."""

    functions: Mapping[str, Mapping[str, float]]
    """By row; each file and function, with its calls for one batch or one Hello."""

    def tables(self) -> Iterator[list[str]]:
        yield row_table(self.results)
        for name, functions in self.functions.items():
            often = sorted(functions.items(), key=lambda item: -item[1])
            yield [f"{name}:", "", *(f"  {calls:6.1f}  {function}" for function, calls in often)]


@contextmanager
def counting_child(module: str) -> Iterator[Callable[[], Calls]]:
    """Count the calls of the first process of ``module``; yields what returns the new ones."""
    with tempfile.TemporaryDirectory(prefix="feeder-") as folder, ExitStack() as stack:
        path = f"{folder}/calls"
        listener = stack.enter_context(socket.create_server(path, family=socket.AF_UNIX))
        listener.settimeout(_TIMEOUT_S)
        text = _SITECUSTOMIZE.format(module=module, package=__package__, path=path)
        stack.enter_context(sitecustomize(text))

        @cache
        def connect() -> tuple[socket.socket, BufferedReader]:
            connection = stack.enter_context(listener.accept()[0])
            connection.settimeout(_TIMEOUT_S)
            return connection, stack.enter_context(connection.makefile("rb"))

        def take() -> Calls:
            connection, answers = connect()
            connection.sendall(b"?")
            answer = json.loads(answers.readline())
            return Calls({(file, function): count for file, function, count in answer})

        yield take


def count_calls(arguments: argparse.Namespace) -> CallsReport:
    core = choose_core(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"worker": core, "client": core})
        options = ["--decoded-bytes", "0"]
        with (
            pinned_to(core),
            counting_child("feeder.node") as take_node,
            running_daemon(path, workers=1, cores=[core], options=options) as daemon,
        ):
            batches, hellos = _count(daemon.ipc, take_node)
    results: list[Result] = []
    functions: dict[str, Mapping[str, float]] = {}
    for prefix, pairs, times in (("", batches, GROUP), ("hello-", hellos, 1)):
        for side, calls in zip(("client", "node"), zip(*pairs, strict=True), strict=True):
            name = prefix + side
            total = sum(calls, Calls())
            means = {place: count / times / len(calls) for place, count in total.items()}
            means = {place: count for place, count in means.items() if count >= _SHOWN}
            # A file that only some batches pass, because of a ping, is not on the way of a batch.
            often: dict[str, float] = {}
            for (file, _), count in means.items():
                often[file] = often.get(file, 0.0) + count
            files = [file for file in often if often[file] > 0.5 and _shorten(file) != file]
            results += [
                summarise(f"calls/{name}", "calls", [each.total() / times for each in calls]),
                single(f"files/{name}", "files", len(files)),
            ]
            functions[f"calls/{name}"] = {
                f"{_shorten(file)} {function}": count for (file, function), count in means.items()
            }
    return CallsReport(
        bench="stream",
        machine=machine,
        measured={"batches": BATCHES, "batch size": BATCH_SIZE, "hellos": HELLOS},
        results=results,
        functions=functions,
    )


def _count(endpoint: str, take_node: Callable[[], Calls]) -> tuple[list[_Pair], list[_Pair]]:
    """Return the calls of each group of batches and of each Hello, without the warm-up."""
    open_loader = partial(
        NumpyLoader, endpoint, dataset=DATASET_NAME, batch_size=BATCH_SIZE, copy=False
    )
    client = CallCounter()
    batches: list[_Pair] = []
    with client:
        loader = open_loader()
    with loader:
        stream = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range((WARM_UP + BATCHES) // GROUP):
            with client:
                for _ in range(GROUP):
                    next(stream)
            batches.append((client.take(), take_node()))

    def settle() -> _Pair:
        """Return the calls since the last take, once both sides are quiet."""
        total = Calls(), Calls()
        while True:
            time.sleep(_QUIET_S)
            more = client.take(_CLIENT), take_node()
            if not any(more):
                return total
            total = total[0] + more[0], total[1] + more[1]

    hellos: list[_Pair] = []
    for _ in range(WARM_UP + HELLOS):
        settle()
        with client:
            loader = open_loader()
        with loader:
            hellos.append(settle())
    return batches[WARM_UP // GROUP :], hellos[WARM_UP:]


def _shorten(file: str) -> str:
    return file.removeprefix(f"{_PRODUCT}/") if "site-packages" not in file else file
