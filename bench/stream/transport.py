"""The rate of transport without decoding: memcpy, raw ZeroMQ, and our wire.

All move the same messages: chunks of a batch as four frames, of which the pixels are a few MB,
requested four batches ahead. The sender has the worker's core, the receiver the client's.

    memcpy            the chunks' pixels from one buffer to another, on the client's core
    zmq/X             DEALER and ROUTER only; frames are received and dropped
    zmq/X-copied      the same, with the pixels copied into batch buffers, as our client must
    transport/X       a daemon whose worker reports each chunk as filled at once, and a client

    python -m bench.stream.transport PARENT_PID IPC TCP BATCH_SIZE

replies to each message with the chunks of a batch and does nothing else: the limit of ZeroMQ with
these messages.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.errors import PeerError
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.wire.messages import Chunk, encode
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory

from ..daemon import free_port, running_daemon, sitecustomize
from ..fetcher import CHUNK_IMAGES, BatchFetcher
from ..line_process import LineProcess
from ..machine import pinned_to
from ..report import Result, compare
from ..rounds import Contender, measure, rates
from .streams import UNCACHED

IMAGE_SIZE: Final = 224
WINDOW: Final = 4
_TIMEOUT_S: Final = 30.0
_PIXELS_FRAME: Final = 1  # after the header
_CHUNK_BYTES: Final = CHUNK_IMAGES * IMAGE_SIZE * IMAGE_SIZE * 3
_IDLE_WORKER: Final = """\
import sys
if "feeder.worker" in sys.orig_argv:
    from feeder.wire.chunk_work import Filled
    from feeder.worker.filler import ChunkFiller

    ChunkFiller.fill = lambda filler, chunk: Filled(chunk.ticket)
"""


def measure_transport(
    path: Path, recipe: Recipe, *, rounds: int, batches: int, worker_core: int, client_core: int
) -> list[Result]:
    """Return the rows, which count the pixels' bytes; PeerError when a server stops replying."""
    batch_bytes = recipe.batch_size * IMAGE_SIZE * IMAGE_SIZE * 3
    buffers = _buffers(batch_bytes)
    contenders: dict[str, Contender] = {"memcpy": partial(_copy, _buffers(batch_bytes), buffers)}
    baselines: dict[str, str | None] = {"memcpy": None}
    with ExitStack() as stack:
        stack.enter_context(pinned_to(client_core))
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        with sitecustomize(_IDLE_WORKER):
            serving = running_daemon(path, workers=1, cores=[worker_core], options=UNCACHED)
            daemon = stack.enter_context(serving)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-"))
        raw = {"ipc": f"ipc://{folder}/raw", "tcp": f"tcp://127.0.0.1:{free_port()}"}
        module = f"{__package__}.transport"
        command = python_command(module, os.getpid(), *raw.values(), recipe.batch_size)
        with pinned_to(worker_core):
            stack.enter_context(LineProcess(command))
        for name, endpoint in (("ipc", daemon.ipc), ("tcp", daemon.tcp)):
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.linger = dealer.rcvhwm = 0
            dealer.connect(raw[name])  # ZeroMQ connects once the endpoint exists
            fetcher = BatchFetcher(
                endpoint, recipe=recipe, window=WINDOW, timeout_s=_TIMEOUT_S, share_memory=False
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
    _serve_raw(sys.argv[2], sys.argv[3], int(sys.argv[4]))
