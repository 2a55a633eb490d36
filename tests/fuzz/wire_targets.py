"""Input from sockets: frames of clients and nodes, slot claims."""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from feeder.errors import ProtocolError
from feeder.plan.labels import LabelSpec
from feeder.wire.claim import decode_answer, decode_claim, encode_answer, encode_claim
from feeder.wire.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Blobs,
    BlobsRequest,
    Bye,
    Chunk,
    Draining,
    Failed,
    Hello,
    HostStatsRequest,
    Lent,
    Names,
    NamesRequest,
    NotReady,
    Ping,
    Pong,
    Refused,
    Request,
    Sources,
    SourcesRequest,
    Stats,
    StatsRequest,
    decode_from_client,
    decode_from_node,
    encode,
)
from tests.fuzz.mutate import mutate_bytes, mutate_value
from tests.fuzz.target import Target
from tests.support.client_shell import welcome
from tests.support.session_shell import recipe

PREFIX = MAGIC + bytes([PROTOCOL_VERSION])

CLIENT_MESSAGES = (
    Hello(dataset="d", recipe=recipe(), seed=1, window=4, client="host"),
    Hello(
        dataset="d",
        recipe=recipe(batch_size=1, brightness=0.4, hue=0.1, erasing_value="noise"),
        seed=2**64 - 1,
        window=1,
        client="h",
    ),
    Hello(
        dataset="d",
        recipe=recipe(
            image_size=224, crops=((2, 224, (0.4, 1.0)), (6, 96)), rand_augment_magnitude=5
        ),
        seed=1,
        window=2,
        client="h",
    ),
    Hello(
        dataset="d",
        recipe=recipe(phases=({"epoch": 30, "image_size": 160}, {"epoch": 60, "image_size": 9})),
        seed=1,
        window=2,
        client="h",
    ),
    Request(session=1, number=3, want=((0, 2), (0, 4)), release=((0, 6),)),
    Request(session=2**64 - 1, want=((0, 1),)),
    Ping(session=1, clock_s=3.5, waited_s=0.25, cpu_s=2.0),
    Bye(session=1),
    StatsRequest(),
    HostStatsRequest(),
    NamesRequest(dataset="d", content="f", sample_ids=(5, 0, 5, 2**48 - 1)),
    SourcesRequest(dataset="d", content="f", sample_ids=(5, 0, 5, 2**48 - 1)),
    BlobsRequest(content="f", sample_ids=(5, 0, 5, 2**48 - 1)),
)
NODE_MESSAGES = (
    welcome(
        siblings=(("ipc:///n",), ("ipc:///n.1", "tcp://127.0.0.1:6001")),
        libraries={"x": "y"},
    ),
    welcome(classes=(), labels=LabelSpec(kind="float", width=4096)),
    Refused(code="window", message="too many", session=None),
    NotReady(text="packing imagenet, 34 %, 5 min left", advances=7),
    Chunk(session=1, epoch=0, index=2, first=3, images=4, valid=7),
    Lent(session=1, request=2, epoch=0, index=3, slot=4, valid=5),
    Failed(session=1, epoch=0, index=2, code="dataset", message="damaged"),
    Pong(session=1, verdict="compute-bound: add cores"),
    Draining(session=1),
    Stats(counters={"a": 1, "b": 2.5, "c": "d"}),
    Names(names=(b"n01/a.JPEG", b"caf\xe9.jpg", b"")),
    Sources(datasets=(("a", "f"),), rows=((0, 5), (0, 2**48 - 1))),
    Blobs(sizes=(5, 0, 2**24)),
)

# Pieces of MessagePack: lengths far beyond the data, nesting, extensions, the unused type byte.
PIECES = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xdc\xff\xff", b"\xde\xff\xff"),
    *(b"\x81\xa4type", b"\xa5Hello", b"\xa7Request", b"\xa4want", b"\xa7session", b"\xa6recipe"),
    *(b"\x91" * 50, b"\x81\x01" * 50, b"\x91" * 3000, b"\xd6\xff" + bytes(4), b"\xc1", b"\xc0"),
    *(b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xcf" + b"\xff" * 8, b"\xa4\xff\xfe\xfd\xfc"),
)


def _frame(rng: random.Random, messages: tuple[Any, ...]) -> bytes:
    """Return a frame: valid, with mutated fields, with damaged bytes, or made of pieces."""
    kind = rng.random()
    if kind < 0.02:
        return rng.choice((b"", PREFIX)) + rng.randbytes(rng.randrange(200))
    if kind < 0.05:
        return PREFIX + b"".join(rng.choices(PIECES, k=rng.randint(1, 12)))
    frame = encode(rng.choice(messages))
    if kind < 0.6:
        fields = msgspec.msgpack.decode(frame[len(PREFIX) :])
        frame = PREFIX + _pack(mutate_value(rng, fields))
    if kind > 0.5:
        frame = mutate_bytes(rng, frame, tokens=PIECES, others=(encode(rng.choice(messages)),))
    return frame


def _pack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError, ValueError):  # not representable in MessagePack
        return b"\xc0"


def _frames(
    name: str, messages: tuple[Any, ...], decode: Callable[[bytes], Any], inputs: int
) -> Target:
    """A message, or ProtocolError of one short printable line."""

    def hold(message: Any, _: bytes) -> None:
        assert decode(encode(message)) == message or "nan" in repr(message)

    return Target(
        name, lambda rng: _frame(rng, messages), decode, inputs, ProtocolError, hold, line_max=300
    )


def _packet(rng: random.Random) -> bytes:
    valid = rng.choice((encode_claim(rng.getrandbits(64)), encode_answer(), encode_answer("no")))
    return valid if rng.random() < 0.05 else mutate_bytes(rng, valid)


CLIENT_FRAME = _frames("client-frame", CLIENT_MESSAGES, decode_from_client, 160_000)
NODE_FRAME = _frames("node-frame", NODE_MESSAGES, decode_from_node, 110_000)
TARGETS = (
    CLIENT_FRAME,
    NODE_FRAME,
    Target("slot-claim", _packet, decode_claim, 30_000, ProtocolError, line_max=300),
    Target("slot-answer", _packet, decode_answer, 30_000, ProtocolError, line_max=300),
)
