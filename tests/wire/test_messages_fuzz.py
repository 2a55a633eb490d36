"""Hostile bytes: any frame decodes to a message or raises ProtocolError, quickly and in bounds.

Here are named worst cases and every change of one byte; tests/fuzz/wire_targets.py has random ones.
"""

import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from feeder.errors import ProtocolError
from feeder.wire.messages import MAX_HEADER_BYTES, decode_from_client, decode_from_node, encode
from tests.fuzz.wire_targets import (
    CLIENT_MESSAGES,
    NODE_MESSAGES,
    PREFIX,
    check_client_frame,
    check_node_frame,
)

Decode = Callable[[bytes], object]


def decodes_or_refuses(frame: bytes) -> None:
    check_client_frame(frame)
    check_node_frame(frame)


def test_peers_text_is_escaped_and_shortened_in_errors() -> None:
    for text in ("two\nlines", "\x1b[31mred", "\x00", "x" * 60_000):
        for fields in ({"type": text}, {"type": "Ping", "session": 1, text: 1}):
            frame = PREFIX + msgspec.msgpack.encode(fields)
            decodes_or_refuses(frame)
            with pytest.raises(ProtocolError, match="malformed message"):
                decode_from_client(frame)


@pytest.mark.parametrize(
    "message", [CLIENT_MESSAGES[0], CLIENT_MESSAGES[2], NODE_MESSAGES[0]], ids=type
)
def test_every_changed_byte_and_every_truncation_decodes_or_is_refused(
    message: msgspec.Struct,
) -> None:
    frame = encode(message)  # type: ignore[arg-type]
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
def test_hostile_frames_are_refused_quickly_and_in_little_memory(decode: Decode, name: str) -> None:
    frame = PREFIX + HOSTILE[name]
    assert len(frame) <= MAX_HEADER_BYTES
    tracemalloc.start()
    start_s = time.process_time()
    try:
        if name == "one field many times" and decode is decode_from_client:
            decode(frame)  # harmless: the last value is used
        else:
            with pytest.raises(ProtocolError):
                decode(frame)
        taken_s = time.process_time() - start_s
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken_s < 1, "should take about a millisecond"
    assert peak_bytes < 4_000_000
