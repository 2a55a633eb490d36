"""Stands in for many feeders in one process: greets clients, and sends batches of zeros.

``python -m bench.stream.stand_ins PARENT COUNT`` prints a list of endpoints with names, a line
each, then an empty line, and serves until its parent ends.
"""

import sys
from typing import Final, NoReturn

import zmq

from feeder.plan.lanes import resolve_lanes
from feeder.process.child import die_with_parent
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

SAMPLES: Final = 65_536
_WINDOW: Final = 8


def serve(count: int) -> NoReturn:
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
    return Welcome(
        session=session,
        dataset=hello.dataset,
        content="stand-in",
        recipe_fingerprint=recipe.fingerprint(),
        classes=("zero",),
        samples=SAMPLES,
        batches=SAMPLES // recipe.batch_size,
        shards=1,
        lanes=resolve_lanes(recipe.lanes, SAMPLES, recipe.order_batch_size),
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
    serve(int(sys.argv[2]))
