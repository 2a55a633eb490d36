"""The cost of CURVE keys, and of a client that sends garbage: rows of ``feeder-bench stream``.

Two daemons, one plain and one with keys, take turns with the same batches. The garbage comes from a
separate process on the client's core, in every second turn of a transport.

    python -m bench.stream.security PARENT_PID ENDPOINT

sends the garbage. It completes the handshake as any ZeroMQ client does, so that its frames get as
far as possible, and reconnects when it is disconnected. It prints a line once it has begun.
"""

import ctypes
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NoReturn

import zmq

from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.security.crypto_library import find_crypto_library
from feeder.security.keys import ClientKeys, SecretKey, format_public_key, format_secret_key

from ..daemon import running_daemon
from ..fetcher import CHUNK_IMAGES, BatchFetcher
from ..line_process import LineProcess
from ..machine import pinned_to
from ..report import RATE, Result, compare, single
from ..rounds import Contender, measure, rates
from .streams import UNCACHED, beside

_BOX_BYTES: Final = CHUNK_IMAGES * 224 * 224 * 3  # a chunk
_BOX_OVERHEAD_BYTES: Final = 16
_BOXES: Final = 20
_FRAME_BYTES_MAX: Final = 2000
_FRAMES: Final = 256


def measure_security(
    path: Path, recipe: Recipe, *, rounds: int, batches: int, worker_core: int, client_core: int
) -> list[Result]:
    """Return the rows; PeerError when a daemon stops replying."""
    with (
        ExitStack() as stack,
        pinned_to(client_core),
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder,
    ):
        server, client = _write_keys(Path(folder))
        keyed = ("--secret-key", f"{folder}/server", "--client-keys", f"{folder}/allowed")
        plain, safe = (
            stack.enter_context(
                running_daemon(path, workers=1, cores=[worker_core], options=[*UNCACHED, *more])
            )
            for more in ((), keyed)
        )
        contenders: dict[str, Contender] = {}
        baselines = {"stream/tcp-curve": "stream/tcp"}
        for name, endpoint, keys in (
            ("stream/tcp", plain.tcp, None),
            ("stream/tcp-curve", safe.tcp, ClientKeys(server.public(), client)),
            ("stream/ipc", plain.ipc, None),
        ):
            fetcher = stack.enter_context(BatchFetcher(endpoint, recipe=recipe, keys=keys))
            contenders[name] = fetcher.advance
            if keys is None:
                command = python_command(f"{__package__}.security", os.getpid(), endpoint)
                garbage = stack.enter_context(LineProcess(command))
                baselines[f"{name}-beside-garbage"] = name
                contenders[f"{name}-beside-garbage"] = beside(stack, fetcher.advance, [garbage])
        taken = measure(contenders, rounds=rounds, items=batches)
    return [*compare(rates(taken, batches * recipe.batch_size), RATE, baselines), measure_crypto()]


def _write_keys(folder: Path) -> tuple[SecretKey, SecretKey]:
    """Write the server's secret key and the list of clients; return both secret keys."""
    server, client = (
        SecretKey(name, zmq.curve_keypair()[1].decode()) for name in ("server", "client")
    )
    (folder / "server").touch(0o600)
    (folder / "server").write_text(format_secret_key(server), "ascii")
    (folder / "allowed").write_text(format_public_key(client.public()), "ascii")
    return server, client


def measure_crypto() -> Result:
    """Return how fast a chunk is encrypted as CURVE does it, without libzmq; 0 when unknown."""
    name, path = find_crypto_library()
    if path is None:
        return single(f"crypto/{name}", "GB/s", 0.0)
    library = ctypes.CDLL(str(path))
    library.sodium_version_string.restype = ctypes.c_char_p
    version = library.sodium_version_string().decode()
    chunk, box = bytes(_BOX_BYTES), ctypes.create_string_buffer(_BOX_BYTES + _BOX_OVERHEAD_BYTES)
    arguments = box, chunk, ctypes.c_ulonglong(_BOX_BYTES), bytes(24), bytes(32)
    library.crypto_box_easy_afternm(*arguments)
    began_s = time.perf_counter()
    for _ in range(_BOXES):
        library.crypto_box_easy_afternm(*arguments)
    taken_s = time.perf_counter() - began_s
    return single(f"crypto/{name}-{version}", "GB/s", _BOXES * _BOX_BYTES / taken_s / 1e9)


def send_garbage(endpoint: str) -> NoReturn:
    """Send frames of random bytes without end; libzmq reconnects by itself."""
    rng = random.Random(0)
    frames = [rng.randbytes(rng.randint(1, _FRAME_BYTES_MAX)) for _ in range(_FRAMES)]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    dealer.send(frames[0])
    print("begun", flush=True)
    while True:
        for frame in frames:
            dealer.send(frame)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    send_garbage(sys.argv[2])
