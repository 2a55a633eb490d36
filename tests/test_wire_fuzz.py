"""Hostile bytes: whatever comes in, a message or a ProtocolError comes out, soon and in bounds."""

import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.errors import ProtocolError
from feeder.wire import (
    MAX_HEADER_BYTES,
    Hello,
    Request,
    Welcome,
    decode_from_client,
    decode_from_node,
    encode,
)
from tests.test_recipe import TRAIN
from tests.test_wire import client_messages, node_messages

Decode = Callable[[bytes], object]

PREFIX = b"FDR\x01"
HELLO = encode(Hello(dataset="imagenet", recipe=TRAIN, seed=1, window=4, client="host"))
REQUEST = encode(Request(session=2**63, want=((1, 2), (3, 4)), release=((5, 6),)))
WELCOME = encode(
    Welcome(
        session=1,
        dataset="d",
        fingerprint="f",
        recipe_fingerprint="r",
        classes=("a", "b"),
        samples=1,
        batches=1,
        shards=1,
        lanes=1,
        window=1,
        chunk_images=1,
        node="n",
        number=1,
        incarnation=2,
        siblings=(("ipc:///n",), ("ipc:///n.1", "tcp://127.0.0.1:6001")),
        feeder_version="v",
        self_test="5" * 32,
        libraries={"x": "y"},
    )
)

frames = st.one_of(client_messages, node_messages).map(encode)
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "drop"]), st.integers(0), st.binary(max_size=6)
    ),
    min_size=1,
    max_size=5,
)
# pieces of MessagePack: lengths far beyond the data, nesting, extensions, the never-used byte
pieces = st.sampled_from(
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdc\xff\xff",
        b"\xde\xff\xff",
        b"\x81\xa4type",
        b"\xa5Hello",
        b"\xa7Request",
        b"\xa4want",
        b"\xa7session",
        b"\xa6recipe",
        b"\x91" * 50,
        b"\x81\x01" * 50,
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc1",
        b"\xc0",
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa4\xff\xfe\xfd\xfc",
    ]
)


def edit(frame: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(frame)
    for kind, place, content in changes:
        at = place % (len(data) + 1)
        if kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = content
        elif kind == "set":
            data[at : at + len(content)] = content
        else:
            del data[at : at + len(content)]
    return bytes(data)


def decodes_or_refuses(frame: bytes) -> None:
    for decode in (decode_from_client, decode_from_node):
        try:
            message = decode(frame)
        except ProtocolError as error:
            complaint = str(error)
        else:
            complaint = ""
            assert encode(message)
        assert complaint.isprintable()
        assert len(complaint) < 300


@settings(deadline=None, max_examples=300)
@given(frame=st.binary(max_size=200))
@example(frame=b"")
def test_random_bytes(frame: bytes) -> None:
    decodes_or_refuses(frame)
    decodes_or_refuses(PREFIX + frame)


@settings(deadline=None, max_examples=500)
@given(frame=frames, changes=edits)
def test_damaged_frames(frame: bytes, changes: list[tuple[str, int, bytes]]) -> None:
    decodes_or_refuses(edit(frame, changes))


@settings(deadline=None, max_examples=500)
@given(parts=st.lists(pieces | st.binary(max_size=4), max_size=12))
def test_hostile_messagepack(parts: list[bytes]) -> None:
    decodes_or_refuses(PREFIX + b"".join(parts))


def test_what_a_peer_wrote_is_quoted_harmlessly_and_in_short() -> None:
    for text in ("two\nlines", "\x1b[31mred", "\x00", "x" * 60_000):
        for fields in ({"type": text}, {"type": "Ping", "session": 1, text: 1}):
            frame = PREFIX + msgspec.msgpack.encode(fields)
            decodes_or_refuses(frame)
            with pytest.raises(ProtocolError, match="malformed message"):
                decode_from_client(frame)


@pytest.mark.parametrize("frame", [HELLO, REQUEST, WELCOME])
def test_every_single_byte_change_and_every_cut(frame: bytes) -> None:
    for at in range(len(frame)):
        decodes_or_refuses(frame[:at])
        for byte in (0x00, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF, frame[at] ^ 1):
            decodes_or_refuses(frame[:at] + bytes([byte]) + frame[at + 1 :])


ROOM = MAX_HEADER_BYTES - 100
HOSTILE = {
    "nested arrays before the tag": b"\x82\xa1a" + b"\x91" * ROOM,
    "nested maps before the tag": b"\x82\xa1a" + b"\x81\xa0" * (ROOM // 2),
    "nested arrays as the tag": b"\x82\xa4type" + b"\x91" * ROOM,
    "nested arrays as want": b"\x83\xa4type\xa7Request\xa4want" + b"\x91" * ROOM,
    "nested recipe": b"\x82\xa4type\xa5Hello\xa6recipe" + b"\x81\xa5ratio" * (ROOM // 8),
    "an array of four thousand million": b"\x83\xa4type\xa7Request\xa4want\xdd\xff\xff\xff\xff",
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff\xa4type\xa7Request",
    "a string of four thousand million": b"\x82\xa4type\xa5Hello\xa7dataset\xdb\xff\xff\xff\xff",
    "libraries of four thousand million": b"\x82\xa4type\xa7Welcome\xa9libraries\xdf"
    + b"\xff\xff\xff\xff",
    "counters of 65,536": b"\x82\xa4type\xa5Stats\xa8counters\xdf\x00\x01\x00\x00",
    "one field many times": b"\xde\x10\x00\xa4type\xa4Ping" + b"\xa7session\x01" * 4095,
    "wide arrays before the tag": b"\x82\xa1a\xdc\xff\xff" + b"\xc0" * ROOM,
    "a long string as the tag": b"\x81\xa4type\xda\xff\x00" + b"a" * 0xFF00,
    "a long string as the name": b"\x82\xa4type\xa5Hello\xa7dataset\xda\xff\x00" + b"a" * 0xFF00,
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("decode", [decode_from_client, decode_from_node])
def test_the_worst_frames_are_refused_soon_and_in_little_memory(decode: Decode, name: str) -> None:
    frame = PREFIX + HOSTILE[name]
    assert len(frame) <= MAX_HEADER_BYTES
    tracemalloc.start()
    start_s = time.perf_counter()
    try:
        if name == "one field many times" and decode is decode_from_client:
            decode(frame)  # the last one counts: harmless
        else:
            with pytest.raises(ProtocolError):
                decode(frame)
        taken_s = time.perf_counter() - start_s
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken_s < 1, "it takes a millisecond: far off"
    assert peak_bytes < 4_000_000
