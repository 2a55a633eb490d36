"""The rate of transport without decoding: memcpy, raw ZeroMQ, and our wire.

All move the same messages: chunks of a batch as four frames, of which the pixels are a few MB,
requested four batches ahead. The sender has the worker's core, the receiver the client's.

    memcpy            the chunks' pixels from one buffer to another, on the client's core
    zmq/X             DEALER and ROUTER only; frames are received and dropped
    zmq/X-copied      the same, with the pixels copied into batch buffers, as our client must
    transport/X       the daemon's node process, whose worker does nothing, and ``BatchFetcher``

    python -m bench.stream.transport PARENT_PID KIND IPC TCP BATCH_SIZE

is a sender. Of the kind ``raw``, it replies to each message with the chunks of a batch and does
nothing else: the limit of ZeroMQ with these messages. ``node`` is the daemon's own node process
(sessions, slots, router), but its worker reports every chunk as filled at once.
"""

import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, NoReturn

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder import __version__
from feeder.daemon.config import ServeConfig
from feeder.errors import PeerError
from feeder.metrics.counters import NodeStatus
from feeder.metrics.records import NodeRecord
from feeder.node.claim_listener import ClaimListener
from feeder.node.endpoint import parse_endpoint
from feeder.node.polling import PollSet
from feeder.node.router import Router
from feeder.node.service import NodeService
from feeder.node.worker_pool import PoolEvent, WorkerPool
from feeder.plan.epoch import ShardLayout
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.session.admission import ServedDataset, SessionLimits
from feeder.session.events import WorkerJoined
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import Chunk, NodeIdentity, encode
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.messages import Configure, NodeToWorker
from feeder.worker.slot_memory import SlotMemory

from ..daemon import DATASET_NAME, free_port
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..machine import pinned_to
from ..report import Result, compare
from ..rounds import Contender, measure, rates

CHUNK_IMAGES: Final = ServeConfig().chunk_images
IMAGE_SIZE: Final = 224
WINDOW: Final = 4
_EPOCH_BATCHES: Final = 64
_TIMEOUT_S: Final = 30.0
_PIXELS_FRAME: Final = 1  # after the header
_CHUNK_BYTES: Final = CHUNK_IMAGES * IMAGE_SIZE * IMAGE_SIZE * 3


def measure_transport(
    *, rounds: int, batches: int, batch_size: int, worker_core: int, client_core: int
) -> list[Result]:
    """Return the rows, which count the pixels' bytes; PeerError when a server stops replying."""
    batch_bytes = batch_size * IMAGE_SIZE * IMAGE_SIZE * 3
    recipe = Recipe.for_split("train", batch_size=batch_size, image_size=IMAGE_SIZE)
    buffers = _buffers(batch_bytes)
    with ExitStack() as stack:
        stack.enter_context(pinned_to(client_core))
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        contenders: dict[str, Contender] = {
            "memcpy": partial(_copy, _buffers(batch_bytes), buffers)
        }
        baselines: dict[str, str | None] = {"memcpy": None}
        raw = stack.enter_context(_running_server("raw", batch_size, worker_core))
        node = stack.enter_context(_running_server("node", batch_size, worker_core))
        for name in ("ipc", "tcp"):
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.linger = dealer.rcvhwm = 0
            dealer.connect(raw[name])
            fetcher = BatchFetcher(
                node[name], recipe=recipe, window=WINDOW, timeout_s=_TIMEOUT_S, share_memory=False
            )
            stack.enter_context(fetcher)
            contenders |= {
                f"zmq/{name}": partial(_receive, dealer, buffers, False),
                f"zmq/{name}-copied": partial(_receive, dealer, buffers, True),
                f"transport/{name}": fetcher.advance,
            }
            baselines |= {
                f"zmq/{name}": "memcpy",
                f"zmq/{name}-copied": f"zmq/{name}",
                f"transport/{name}": f"zmq/{name}",
            }
        taken = measure(contenders, rounds=rounds, items=batches, verb="transporting")
    return compare(rates(taken, batches * batch_bytes / 1e9), "GB/s", baselines)


def _copy(
    sources: Sequence[NDArray[np.int8]], targets: Sequence[NDArray[np.int8]], first: int, end: int
) -> None:
    """Copy batches chunk by chunk, between as many buffers as there are slots."""
    for batch in range(first, end):
        source, target = sources[batch % WINDOW], targets[batch % WINDOW]
        for start in range(0, len(source), _CHUNK_BYTES):
            chunk = slice(start, start + _CHUNK_BYTES)
            target[chunk] = source[chunk]


def _receive(
    dealer: "zmq.Socket[bytes]",
    buffers: Sequence[NDArray[np.int8]],
    is_copied: bool,
    first: int,
    end: int,
) -> None:
    """Receive batches from the raw server; copy their pixels into batch buffers, or drop them."""
    batches, batch_bytes = end - first, len(buffers[0])
    for _ in range(min(WINDOW, batches)):
        dealer.send(b"")
    for batch in range(batches):
        buffer = buffers[batch % WINDOW]
        for at in range(0, batch_bytes, _CHUNK_BYTES):
            if not dealer.poll(int(_TIMEOUT_S * 1000)):
                raise PeerError(f"no message from the raw server within {_TIMEOUT_S:g} s")
            frame = dealer.recv_multipart(copy=False)[_PIXELS_FRAME]
            if is_copied:
                buffer[at : at + len(frame)] = np.frombuffer(frame.buffer, np.int8)
        if batch + WINDOW < batches:
            dealer.send(b"")


def _buffers(batch_bytes: int) -> list[NDArray[np.int8]]:
    """Return batch buffers whose pages have been touched."""
    return [np.full(batch_bytes, number, np.int8) for number in range(WINDOW)]


@contextmanager
def _running_server(kind: str, batch_size: int, core: int) -> Iterator[Mapping[str, str]]:
    """Run a server on its core; yields its endpoints, to which ZeroMQ connects once they exist."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        endpoints = {"ipc": f"ipc://{folder}/{kind}", "tcp": f"tcp://127.0.0.1:{free_port()}"}
        command = python_command(
            f"{__package__}.transport", os.getpid(), kind, *endpoints.values(), batch_size
        )
        with pinned_to(core):
            process = LineProcess(command)
        with process:
            yield endpoints


class _InstantPool(WorkerPool):
    """One worker that reports each chunk as filled at once."""

    def __init__(self, report: Callable[[PoolEvent, float], None]) -> None:
        configure = Configure(datasets={}, open_shards=1, self_test=False)
        super().__init__(1, configure, PollSet(), report, NodeRecord())
        self.filled: deque[int] = deque()

    def send(self, number: int, message: NodeToWorker, fd: int | None = None) -> None:
        """Record a chunk as filled; ignore all else, as no slot memory is needed."""
        if isinstance(message, Fill):
            self.filled.append(message.ticket)


def _serve_node(ipc: str, tcp: str, batch_size: int) -> NoReturn:
    """Serve as the daemon's node process does, without decoding."""
    router = Router()
    router.bind([parse_endpoint(ipc), parse_endpoint(tcp)])
    layout = ShardLayout(samples=batch_size * _EPOCH_BATCHES, shards=1)
    pool = _InstantPool(lambda event, now_s: service.on_worker(event, now_s))
    table = SessionTable(
        {DATASET_NAME: ServedDataset(content="bench", classes=("all",), layout=layout)},
        SessionLimits(
            sessions_max=8,
            window_max=2 * WINDOW,
            chunk_images=CHUNK_IMAGES,
            slots_bytes=1 << 40,
            lease_s=600.0,
        ),
        pool.record,
    )
    table.identity = NodeIdentity(
        node="bench",
        number=0,
        incarnation=0,
        siblings=((ipc, tcp),),
        feeder_version=__version__,
        self_test="none",
        libraries={},
    )
    # The listener is bound to nothing: no client can claim slots, so messages are measured.
    service = NodeService(
        table, router, ClaimListener(), pool, NodeStatus(), board=os.memfd_create("board")
    )
    now_s = time.monotonic()
    service.on_worker(WorkerJoined(1), now_s)
    poll_set = PollSet()
    router.start(poll_set)
    service.clients.start(poll_set)
    while True:
        now_s = poll_set.run(service.deadline_s)
        while pool.filled:
            service.on_worker(Filled(pool.filled.popleft()), now_s)
        service.run_due(now_s)


def _serve_raw(ipc: str, tcp: str, batch_size: int) -> NoReturn:
    """Reply to each message with the frames of one batch, from as many slots as a session has."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    socket = context.socket(zmq.ROUTER)
    socket.sndhwm = 0
    socket.bind(ipc)
    socket.bind(tcp)
    layout = SlotLayout(slots=WINDOW, batch_size=batch_size, image_size=IMAGE_SIZE)
    memory = SlotMemory.create(layout)
    for slot in range(WINDOW):
        memory.chunk(slot, 0, batch_size).pixels[:] = np.int8(slot)
    firsts = range(0, batch_size, CHUNK_IMAGES)
    counts = [min(CHUNK_IMAGES, batch_size - first) for first in firsts]
    send = partial(socket.send, flags=zmq.SNDMORE)
    replies = 0
    while True:
        peer, _ = socket.recv_multipart()
        slot = replies % WINDOW
        replies += 1
        for first, count in zip(firsts, counts, strict=True):
            arrays = memory.chunk(slot, first, count)
            header = Chunk(session=1, epoch=0, index=0, first=first, images=count, valid=batch_size)
            send(peer)
            send(encode(header))
            send(arrays.pixels.data, copy=False)
            send(arrays.labels.data)
            socket.send(arrays.sample_ids.data)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    serve = {"raw": _serve_raw, "node": _serve_node}[sys.argv[2]]
    serve(sys.argv[3], sys.argv[4], int(sys.argv[5]))
