"""Sends garbage as fast as it can: ``python -m bench.stream.garbage PARENT ENDPOINT``.

It completes the handshake as any ZeroMQ client does, so that its frames get as far as possible, and
reconnects when it is disconnected. It prints a line once it has begun.
"""

import random
import sys
from typing import Final, NoReturn

import zmq

from feeder.process.child import die_with_parent

_FRAME_BYTES_MAX: Final = 2000
_FRAMES: Final = 256


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
