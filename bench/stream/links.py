"""``feeder-bench links``: what a long list of feeders costs a client.

Stand-ins greet and send batches of zeros; the client of all of them takes ``--rate`` batches a
second, and with each batch its next owners change.

    python -m bench.stream.links PARENT_PID COUNT

is all stand-ins: it prints a list of endpoints with names, a line each, then an empty line.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import zmq

from feeder.plan.lanes import resolve_shape
from feeder.process.child import die_with_parent, python_command
from feeder.wire.messages import (
    Chunk,
    Hello,
    Ping,
    Pong,
    Request,
    Welcome,
    decode_from_client,
    encode,
)
from trainer_client import NumpyLoader

from ..line_process import LineProcess
from ..machine import describe_machine
from ..report import Report, single

BATCH_SIZE: Final = 16
IMAGE_SIZE: Final = 32
_WAIT_S: Final = 120.0
_POINTS: Final = "% of a core"
_SAMPLES: Final = 65_536
_WINDOW: Final = 8


@contextmanager
def stand_ins(count: int) -> Iterator[list[str]]:
    """Run ``count`` stand-ins; yield the lines of their list."""
    command = python_command(f"{__package__}.links", os.getpid(), count)
    with LineProcess(command) as process:
        yield list(iter(lambda: process.next_line(_WAIT_S), ""))


@contextmanager
def client_of(lines: list[str], folder: Path) -> Iterator[NumpyLoader]:
    """Yield a client of the feeders in a list, rank 3 of 8."""
    listed = folder / f"{len(lines)}-feeders"
    listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with NumpyLoader(
        f"file://{listed}",
        dataset="zeros",
        batch_size=BATCH_SIZE,
        image_size=IMAGE_SIZE,
        rank=3,
        world_size=8,
        timeout_s=_WAIT_S,
    ) as loader:
        yield loader


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # one is the listing's own


def run(arguments: argparse.Namespace) -> Report:
    seconds, rate = arguments.seconds, arguments.rate
    with (
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder,
        stand_ins(arguments.feeders) as lines,
    ):
        own = count_descriptors()
        with client_of(lines[:1], Path(folder)) as loader:
            short, _ = _watch(loader, seconds, rate)
        with client_of(lines, Path(folder)) as loader:
            waiting, _ = _watch(loader, seconds, 0.0)
            taking, descriptors = _watch(loader, seconds, rate)
            statistics = loader.statistics()
    owned = statistics.batches_of_owners / max(1, statistics.batches_requested)
    return Report(
        bench="links",
        machine=describe_machine(),
        results=[
            single("links/waiting", _POINTS, waiting),
            single("links/taking", _POINTS, taking),
            single("links/short-list", _POINTS, short),
            single("links/descriptors", "open", descriptors - own),
            single("links/owners", "% of batches", 100 * owned),
        ],
        measured={"feeders": arguments.feeders, "seconds a row": seconds, "batches a second": rate},
    )


def _watch(loader: NumpyLoader, seconds: float, rate: float) -> tuple[float, int]:
    """Take batches at ``rate``; return this process's share of a core in per cent, and most fds."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    descriptors = count_descriptors()
    began_s, began_cpu_s, taken = time.monotonic(), time.process_time(), 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        taken += 1
        descriptors = max(descriptors, count_descriptors())
        due_s = taken / rate if rate else seconds
        time.sleep(max(0.0, min(due_s, seconds) - passed_s))  # the pace of the batches
        if rate:
            next(batches)
    busy = 100 * (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    return busy, descriptors


def _serve(count: int) -> NoReturn:
    """Answer for ever, on ``count`` sockets at free ports of the loopback interface."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 16)
    poller = zmq.Poller()
    numbers: dict[zmq.Socket[bytes], int] = {}
    for number in range(count):
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        numbers[router] = number
        poller.register(router, zmq.POLLIN)
        print(f"stand-in-{number} tcp://127.0.0.1:{port}")
    print(flush=True)
    greetings: dict[int, Hello] = {}  # by session
    while True:
        for router, _ in poller.poll():
            peer, frame = router.recv_multipart()
            match message := decode_from_client(frame):
                case Hello():
                    session = len(greetings) + 1
                    greetings[session] = message
                    welcome = _welcome(numbers[router], session, message)
                    router.send_multipart([peer, encode(welcome)])
                case Ping():
                    router.send_multipart([peer, encode(Pong(session=message.session))])
                case Request():
                    recipe = greetings[message.session].recipe
                    rows = recipe.batch_size
                    zeros = bytes(rows * recipe.image_size**2 * 3), bytes(rows * 8), bytes(rows * 8)
                    for epoch, index in message.want:
                        chunk = Chunk(
                            session=message.session,
                            epoch=epoch,
                            index=index,
                            first=0,
                            images=rows,
                            valid=rows,
                        )
                        router.send_multipart([peer, encode(chunk), *zeros])


def _welcome(number: int, session: int, hello: Hello) -> Welcome:
    recipe = hello.recipe
    shape = resolve_shape(
        _SAMPLES,
        order_batch_size=recipe.order_batch_size,
        shuffle=recipe.shuffle,
        lanes=recipe.lanes,
    )
    return Welcome(
        **shape._asdict(),
        session=session,
        dataset=hello.dataset,
        content="stand-in",
        recipe_fingerprint=recipe.fingerprint(),
        classes=("zero",),
        samples=_SAMPLES,
        batches=_SAMPLES // recipe.batch_size,
        shards=1,
        window=min(hello.window, _WINDOW),
        chunk_images=recipe.batch_size,
        node=f"stand-in-{number}/0",
        number=0,
        incarnation=number + 1,
        siblings=(),
        feeder_version="stand-in",
        self_test="0" * 32,
        libraries={},
    )


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    _serve(int(sys.argv[2]))
