"""Stands in for many feeders in one process: greets clients, and sends batches of zeros.

``python -m bench.stream.stand_ins PARENT COUNT`` prints a list of endpoints with names, a line
each, then an empty line, and serves until its parent ends.
"""

import sys
from typing import Final

import zmq

from feeder.plan.lanes import resolve_lanes
from feeder.process.child import die_with_parent
from feeder.wire.messages import (
    Chunk,
    ClientMessage,
    Hello,
    NodeMessage,
    Ping,
    Pong,
    Request,
    Welcome,
    decode_from_client,
    encode,
)

SAMPLES: Final = 65_536
_WINDOW: Final = 8


class StandIns:
    """The sockets of the feeders that this process stands in for."""

    def __init__(self, count: int) -> None:
        """Bind ``count`` sockets, to free ports of the loopback interface."""
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, count + 16)
        self._poller = zmq.Poller()
        self._numbers: dict[zmq.Socket[bytes], int] = {}
        self._greetings: dict[int, Hello] = {}  # by session
        self.lines: list[str] = []
        for number in range(count):
            router = self._context.socket(zmq.ROUTER)
            port = router.bind_to_random_port("tcp://127.0.0.1")
            self._numbers[router] = number
            self._poller.register(router, zmq.POLLIN)
            self.lines.append(f"stand-in-{number} tcp://127.0.0.1:{port}")

    def serve(self) -> None:
        """Answer for ever."""
        while True:
            for router, _ in self._poller.poll():
                peer, frame = router.recv_multipart()
                for message, rows in self._answer(self._numbers[router], decode_from_client(frame)):
                    router.send_multipart([peer, encode(message), *rows])

    def _answer(
        self, number: int, message: ClientMessage
    ) -> list[tuple[NodeMessage, tuple[bytes, ...]]]:
        """Return the messages that answer one, each with the frames after its header."""
        match message:
            case Hello():
                session = len(self._greetings) + 1
                self._greetings[session] = message
                return [(self._welcome(number, session, message), ())]
            case Ping():
                return [(Pong(session=message.session), ())]
            case Request():
                recipe = self._greetings[message.session].recipe
                rows = recipe.batch_size
                zeros = (bytes(rows * recipe.image_size**2 * 3), bytes(rows * 8), bytes(rows * 8))
                return [
                    (
                        Chunk(
                            session=message.session,
                            epoch=epoch,
                            index=index,
                            first=0,
                            images=rows,
                            valid=rows,
                        ),
                        zeros,
                    )
                    for epoch, index in message.want
                ]
            case _:
                return []

    def _welcome(self, number: int, session: int, hello: Hello) -> Welcome:
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


def main() -> None:
    """Serve until the parent ends."""
    die_with_parent(int(sys.argv[1]))
    stand_ins = StandIns(int(sys.argv[2]))
    sys.stdout.write("\n".join([*stand_ins.lines, "", ""]))
    sys.stdout.flush()
    stand_ins.serve()


if __name__ == "__main__":
    main()
