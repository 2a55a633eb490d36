"""The servers of ``bench.stream.transport``: processes that send batches without decoding any.

    python -m bench.stream.transport_server PARENT_PID raw  IPC TCP BATCH_SIZE
    python -m bench.stream.transport_server PARENT_PID node IPC TCP BATCH_SIZE

``raw`` replies to each message with the chunks of a batch and does nothing else: the limit of
ZeroMQ with these messages. ``node`` is the daemon's own node process (sessions, slots, router), but
its worker reports every chunk as filled at once. Both bind an ipc and a tcp endpoint.
"""

import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np
import zmq

from feeder import __version__
from feeder.daemon.config import ServeConfig
from feeder.metrics.counters import NodeStatus
from feeder.metrics.records import NodeRecord
from feeder.node.claim_listener import ClaimListener
from feeder.node.endpoint import parse_endpoint
from feeder.node.polling import PollSet
from feeder.node.router import Router
from feeder.node.service import NodeService
from feeder.node.worker_pool import PoolEvent, WorkerPool
from feeder.plan.epoch import ShardLayout
from feeder.process.child import die_with_parent
from feeder.session.admission import ServedDataset, SessionLimits
from feeder.session.events import WorkerJoined
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import Chunk, NodeIdentity, encode
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.messages import Configure, NodeToWorker
from feeder.worker.slot_memory import SlotMemory

from ..daemon import DATASET_NAME

CHUNK_IMAGES: Final = ServeConfig().chunk_images
IMAGE_SIZE: Final = 224
WINDOW: Final = 4
_EPOCH_BATCHES: Final = 64


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


def serve_node(ipc: str, tcp: str, batch_size: int) -> NoReturn:
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


def serve_raw(ipc: str, tcp: str, batch_size: int) -> NoReturn:
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
    send = functools.partial(socket.send, flags=zmq.SNDMORE)
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
    serve = {"raw": serve_raw, "node": serve_node}[sys.argv[2]]
    serve(sys.argv[3], sys.argv[4], int(sys.argv[5]))
