"""The wire: every message survives a round trip; decoding and encoding enforce every bound."""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ProtocolError
from feeder.plan.recipe import NEWER_FIELDS, Recipe
from feeder.wire.messages import (
    MAX_BLOBS,
    MAX_BLOBS_BYTES,
    MAX_ENDPOINTS,
    MAX_HEADER_BYTES,
    MAX_INDICES,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_NODE_HEADER_BYTES,
    MAX_NODES,
    MAX_SOURCES,
    PROTOCOL_VERSION,
    BadRecipe,
    ClientMessage,
    Hello,
    NodeMessage,
    Ping,
    Pong,
    RefusedCode,
    Request,
    Stats,
    VersionMismatch,
    decode_from_client,
    decode_from_node,
    encode,
)
from tests.fuzz.wire_targets import CLIENT_FRAME, NODE_FRAME
from tests.plan.test_recipe import TRAIN, recipes
from tests.plan.test_rows import specs

u64 = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**31 - 1)
indices = st.integers(0, 2**48 - 1)
batch_keys = st.lists(st.tuples(epochs, indices), max_size=MAX_INDICES).map(tuple)
texts = st.text(st.characters(codec="utf-8"), max_size=50)
durations = st.floats(0, 1e12)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=128)
rows = st.integers(0, 65_536)
some_rows = st.integers(1, 65_536)
counters = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("session", "seed", "incarnation"), u64),
    **dict.fromkeys(("index", "batches", "request", "advances"), indices),
    **dict.fromkeys(("dataset", "client", "content", "recipe_fingerprint"), names),
    **dict.fromkeys(("node", "feeder_version", "self_test", "text"), names),
    **dict.fromkeys(("job", "verdict", "store"), st.just("") | names),
    **dict.fromkeys(("want", "release", "unowned"), batch_keys),
    **dict.fromkeys(("clock_s", "waited_s", "cpu_s"), durations),
    **dict.fromkeys(("first", "valid"), rows),
    **dict.fromkeys(("images", "chunk_images", "sharers"), some_rows),
    **dict.fromkeys(("samples", "working_set", "piece"), st.integers(1, 2**48)),
    "shards": st.integers(1, 2**20),
    "lanes": st.integers(1, 4096),
    "recipe": recipes,
    "window": st.integers(1, 64),
    "sample_ids": st.lists(indices, min_size=1, max_size=MAX_NAMES).map(tuple),
    "classes": st.lists(texts, max_size=20).map(tuple),
    "labels": specs,
    "number": st.integers(0, MAX_NODES - 1),
    "workers": st.integers(1, 65_536),
    "siblings": st.lists(st.lists(texts, max_size=3).map(tuple), max_size=3).map(tuple),
    "libraries": st.dictionaries(names, texts, max_size=5),
    "code": st.sampled_from(get_args(RefusedCode)),
    "message": texts,
    "epoch": epochs,
    "slot": st.integers(0, 63),
    "names": st.lists(st.binary(max_size=99), min_size=1, max_size=MAX_NAMES).map(tuple),
    "sizes": st.lists(st.integers(0, MAX_BLOBS_BYTES), min_size=1).map(tuple),
    "counters": st.dictionaries(names, counters, max_size=5),
    "report": st.none(),
    "is_drawn": st.booleans(),
    "datasets": st.lists(st.tuples(texts, names), min_size=1, max_size=3).map(tuple),
    "rows": st.lists(st.tuples(st.integers(0, 1023), indices), min_size=1, max_size=9).map(tuple),
}
messages = st.sampled_from(get_args(ClientMessage | NodeMessage)).flatmap(
    lambda kind: st.builds(kind, **{name: FIELDS[name] for name in kind.__struct_fields__})
)

HELLO: dict[str, Any] = {
    "type": "Hello",
    "dataset": "imagenet",
    "recipe": msgspec.to_builtins(msgspec.structs.asdict(TRAIN)),
    "seed": 0,
    "window": 4,
    "client": "rank 0 of 8 on host",
}
WELCOME: dict[str, Any] = {
    "type": "Welcome",
    "session": 1,
    "dataset": "imagenet",
    "content": "f" * 32,
    "recipe_fingerprint": "e" * 32,
    "classes": ["cat", "dog"],
    "samples": 100,
    "batches": 3,
    "shards": 4,
    "lanes": 2,
    "working_set": 60,
    "piece": 4,
    "window": 4,
    "chunk_images": 32,
    "node": "host/0 ipc:///n",
    "number": 0,
    "incarnation": 7,
    "siblings": [["ipc:///n", "tcp://127.0.0.1:6000"], ["ipc:///n.1", "tcp://127.0.0.1:6001"]],
    "feeder_version": "0.1.0",
    "self_test": "5" * 32,
    "libraries": {"libjpeg-turbo": "2.1.5"},
}
CHUNK: dict[str, Any] = {
    "type": "Chunk",
    "session": 1,
    "epoch": 0,
    "index": 0,
    "first": 0,
    "images": 32,
    "valid": 256,
}
LENT: dict[str, Any] = {
    "type": "Lent",
    "session": 1,
    "request": 9,
    "epoch": 0,
    "index": 0,
    "slot": 3,
    "valid": 256,
}
REQUEST: dict[str, Any] = {
    "type": "Request",
    "session": 1,
    "number": 0,
    "want": [[0, 1]],
    "release": [],
    "unowned": [],
}


def frame_of(fields: object) -> bytes:
    """A frame from a peer without Feeder's checks."""
    return b"FDR\x08" + msgspec.msgpack.encode(fields)


@settings(max_examples=300)
@given(message=messages)
def test_a_message_comes_back_equal(message: ClientMessage | NodeMessage) -> None:
    is_of_client = isinstance(message, get_args(ClientMessage))
    decode = decode_from_client if is_of_client else decode_from_node
    frame = encode(message)
    is_newer = isinstance(message, Hello) and message.recipe.newer_fields
    assert frame.startswith(b"FDR\x09" if is_newer else b"FDR\x08")
    for buffer in (frame, memoryview(frame)):
        assert decode(buffer) == message
        assert type(decode(buffer)) is type(message)
    other = decode_from_node if is_of_client else decode_from_client
    with pytest.raises(ProtocolError, match=type(message).__name__):
        other(frame)


def test_the_bytes_of_a_frame_are_pinned() -> None:
    assert encode(Ping(session=5)) == frame_of(
        {"type": "Ping", "session": 5, "clock_s": 0.0, "waited_s": 0.0, "cpu_s": 0.0}
    )
    assert encode(Request(session=1, want=((0, 7),))) == frame_of({**REQUEST, "want": [[0, 7]]})
    hello = Hello(dataset="imagenet", recipe=TRAIN, seed=0, window=4, client="rank 0 of 8 on host")
    assert decode_from_client(frame_of(HELLO)) == hello
    assert {*HELLO["recipe"]} == {*Recipe.__struct_fields__}


@pytest.mark.parametrize(
    "fields", [{"crops": [[2, 224]]}, {"image_size": {"0": 64, "3": 96}}], ids=str
)
def test_a_recipe_that_uses_a_new_field_is_of_a_newer_version(fields: dict[str, Any]) -> None:
    """Feeders of version 8 drop an unknown field unanswered, another version they refuse."""
    recipe = Recipe.for_split("train", batch_size=8, **fields)
    hello = Hello(dataset="d", recipe=recipe, seed=0, window=1, client="c")
    frame = encode(hello)
    assert frame.startswith(b"FDR\x09")
    assert decode_from_client(frame) == hello
    unknown = msgspec.msgpack.decode(frame[4:])
    unknown["recipe"]["zoom"] = 2
    with pytest.raises(BadRecipe, match="feeder is older than its client and has no field zoom:"):
        decode_from_client(frame[:4] + msgspec.msgpack.encode(unknown))


def test_a_recipe_that_uses_no_new_field_is_read_by_a_feeder_from_before_it() -> None:
    for split in ("train", "val"):
        recipe = Recipe.for_split(split, batch_size=8)  # type: ignore[arg-type]
        frame = encode(Hello(dataset="d", recipe=recipe, seed=0, window=1, client="c"))
        sent = msgspec.msgpack.decode(frame[4:])["recipe"]
        assert not {*NEWER_FIELDS} & {*sent}
        assert frame.startswith(b"FDR\x08")
        assert msgspec.convert(sent, Recipe).fingerprint() == recipe.fingerprint()


NAMES_REQUEST = {"type": "NamesRequest", "dataset": "d", "sample_ids": [0, 2**48 - 1]}
NAMES = {"type": "Names", "names": [b"\xff" * MAX_NAME_BYTES] * MAX_NAMES}
SOURCES_REQUEST = {"type": "SourcesRequest", "dataset": "d", "sample_ids": [0] * MAX_SOURCES}
SOURCES: dict[str, Any] = {
    "type": "Sources",
    "datasets": [["a", "f"]],
    "rows": [[0, 2**48 - 1]],
}
BLOBS_REQUEST = {"type": "BlobsRequest", "content": "f", "sample_ids": [0, 2**48 - 1]}
BLOBS = {"type": "Blobs", "sizes": [0, MAX_BLOBS_BYTES]}
REFUSED = {"type": "Refused", "code": "version", "message": ""}
STATS: dict[str, Any] = {"type": "Stats", "counters": {}}

MALFORMED: list[tuple[dict[str, Any], dict[str, list[object]]]] = [
    (
        HELLO,
        {
            "seed": [-1, 1.5, "0"],
            "window": [0, 65],
            "dataset": ["", "x" * 129, b"imagenet"],
            "client": ["x" * 129, "two\nlines", "\x1b[31mred", "ends with newline\n"],
            "recipe": [
                None,
                {},
                HELLO["recipe"] | {"split": "test"},
                HELLO["recipe"] | {"batch_size": "8"},
            ],
            "unknown": [1],
        },
    ),
    (
        REQUEST,
        {
            field: [
                [[0, 0]] * (MAX_INDICES + 1),
                [[-1, 0]],
                [[2**31, 0]],
                [[0, -1]],
                [[0, 2**48]],
                [[0]],
                [[0, 1, 2]],
                [0, 1],
                {},
                None,
            ]
            for field in ("want", "release")
        },
    ),
    (
        NAMES_REQUEST,
        {
            "sample_ids": [
                [],
                [-1],
                [2**48],
                [0] * (MAX_NAMES + 1),
                [0.5],
                ["0"],
                None,
                {},
                [[0]],
                b"\0",
            ]
        },
    ),
    (
        BLOBS_REQUEST,
        {
            "content": ["", "x" * 129, b"f"],
            "sample_ids": [[], [-1], [2**48], [0] * (MAX_BLOBS + 1), None, [[0]], b"\0"],
        },
    ),
    (
        CHUNK,
        {
            "images": [0, 65_537],
            "first": [-1],
            "valid": [-1, 65_537],
            "epoch": [2**31],
            "index": [2**48],
            "session": [-1],
        },
    ),
    (LENT, {"slot": [64, -1], "valid": [65_537]}),
    (
        WELCOME,
        {
            "window": [0],
            "samples": [0],
            "shards": [2**20 + 1],
            "lanes": [0, 4097],
            "working_set": [0, 2**48 + 1],
            "piece": [0],
            "chunk_images": [0],
            "classes": [["x" * 4097], [1]],
            "labels": [
                {"kind": "index", "width": 2},
                {"kind": "multi", "width": 65_537},
                {"kind": "float", "width": 4_097},
                {"kind": "float", "width": -1},
                {"kind": "text"},
                {"kind": "none", "depth": 1},
                None,
            ],
            "libraries": [{"a": 1}],
            "node": ["a\x00b", "x" * 513],
            "number": [-1, MAX_NODES],
            "incarnation": [-1, "7"],
            "self_test": ["", "5" * 129],
            "siblings": [
                [[]] * (MAX_NODES + 1),
                [["e"] * (MAX_ENDPOINTS + 1)],
                [["x" * 4097]],
                ["ipc:///n"],
            ],
        },
    ),
    (NAMES, {"names": [[], ["text"], [b"a"] * 65, [b"a" * (MAX_NAME_BYTES + 1)], None, [None]]}),
    (
        SOURCES_REQUEST,
        {"sample_ids": [[], [-1], [2**48], [0] * (MAX_SOURCES + 1)], "content": [None, "\x00"]},
    ),
    (
        SOURCES,
        {
            "datasets": [[], [["a"]], [["a", ""]], [["x" * 4097, "f"]], None],
            "rows": [[], [[-1, 0]], [[1024, 0]], [[0, 2**48]], [[0]], [[0, 0]] * (MAX_SOURCES + 1)],
        },
    ),
    (BLOBS, {"sizes": [[], [-1], [MAX_BLOBS_BYTES + 1], [0] * (MAX_BLOBS + 1), None, [0.5]]}),
    (REFUSED, {"code": ["because"], "session": [-1]}),
    (STATS, {"counters": [{"a": None}, {"a": "x" * 4097}]}),
]


@pytest.mark.parametrize(("fields", "bad"), MALFORMED, ids=lambda value: value.get("type", ""))
def test_a_field_out_of_bounds_is_a_protocol_error(
    fields: dict[str, Any], bad: dict[str, list[object]]
) -> None:
    is_of_client = fields["type"] == "Hello" or fields["type"].endswith("Request")
    decode = decode_from_client if is_of_client else decode_from_node
    assert type(decode(frame_of(fields))).__name__ == fields["type"]
    for field, values in bad.items():
        for value in values:
            with pytest.raises(ProtocolError, match="malformed message"):
                decode(frame_of({**fields, field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("scale", [0.5, 0.1]),
        ("image_size", 2**63),
        ("ratio", [0.0, 1.0]),
    ],
)
def test_recipe_out_of_range_is_a_bad_recipe_that_names_the_field(
    field: str, value: object
) -> None:
    hello = {**HELLO, "recipe": {**HELLO["recipe"], field: value}}
    with pytest.raises(BadRecipe, match=f"recipe: {field} must be"):
        decode_from_client(frame_of(hello))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (HELLO, sorted({*HELLO} - {"type"})),
        (WELCOME, ["number", "incarnation", "siblings", "self_test"]),
    ],
    ids=["Hello", "Welcome"],
)
def test_no_field_without_a_default_may_be_missing(
    fields: dict[str, Any], names: list[str]
) -> None:
    decode = decode_from_client if fields is HELLO else decode_from_node
    for missing in names:
        with pytest.raises(ProtocolError, match=missing):
            decode(frame_of({name: fields[name] for name in fields if name != missing}))


@pytest.mark.parametrize(
    "large",
    [
        {"siblings": [["tcp://[::1]:65535".ljust(100, "x")] * MAX_ENDPOINTS] * MAX_NODES},
        {"classes": [f"n{number:08}" for number in range(21_841)]},
    ],
    ids=["the largest daemon", "the classes of ImageNet-21k"],
)
def test_a_welcome_holds_what_is_large(large: dict[str, Any]) -> None:
    frame = frame_of({**WELCOME, **large})
    assert len(frame) > MAX_HEADER_BYTES
    message = decode_from_node(frame)
    assert decode_from_node(encode(message)) == message


@pytest.mark.parametrize("version", [0, 7, 255])
def test_other_version_is_a_version_mismatch_whatever_follows(version: int) -> None:
    for rest in (b"", b"\xc1", encode(Ping(session=1))[4:]):
        for decode in (decode_from_client, decode_from_node):
            with pytest.raises(VersionMismatch, match=f"version {version}, .* 8") as caught:
                decode(b"FDR" + bytes([version]) + rest)
            assert caught.value.their_version == version
    assert PROTOCOL_VERSION == 8


@pytest.mark.parametrize("frame", [b"", b"F", b"FDR", b"GET / HTTP/1.1", b"\x00" * 100, b"fdr\x02"])
def test_a_frame_without_the_magic_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a feeder message"):
        decode_from_client(frame)


@pytest.mark.parametrize("fields", [[], {}, None, 5, "Ping", {"type": 1}, {"session": 1}])
def test_payload_that_is_not_a_message_is_a_protocol_error(fields: object) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(frame_of(fields))


def test_a_frame_over_the_limit_is_refused_before_it_is_parsed() -> None:
    for decode, limit in (
        (decode_from_client, 64 * 1024),  # as docs/limits.md promises
        (decode_from_node, MAX_NODE_HEADER_BYTES),
    ):
        with pytest.raises(ProtocolError, match=f"{limit + 1} bytes is over the limit of {limit}"):
            decode(memoryview(bytes(limit + 1)))


def test_bytes_after_the_message_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(encode(Ping(session=1)) + b"\x00")


@pytest.mark.parametrize(
    "message",
    [
        Hello(dataset="", recipe=TRAIN, seed=0, window=4, client="c"),
        Hello(dataset="d", recipe=TRAIN, seed=2**64, window=4, client="c"),
        Hello(dataset="d", recipe=TRAIN, seed=0, window=65, client="c"),
        Hello(dataset="d", recipe=TRAIN, seed=0, window=4, client="bad\udcff"),
        Hello(dataset="d", recipe=TRAIN, seed=0, window=4, client="c", job="j" * 129),
        Hello(dataset="d", recipe=TRAIN, seed=0, window=4, client="c", job="\x1b[2J"),
        Request(session=0, want=((0, 0),) * 65),
        Ping(session=-1),
        Pong(session="a"),  # type: ignore[arg-type]
        Ping(session=object()),  # type: ignore[arg-type]
        Stats(counters={"a" * 200: 1}),
    ],
)
def test_encoding_refuses_what_the_receiver_would_drop(
    message: ClientMessage | NodeMessage,
) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


# Hostile bytes, named worst cases and every change of one byte; tests/fuzz/wire_targets.py has
# random ones


def check_frame(frame: bytes) -> None:
    """Any frame decodes to a message or raises ProtocolError."""
    CLIENT_FRAME.check(frame)
    NODE_FRAME.check(frame)


def test_peers_text_is_escaped_and_shortened_in_errors() -> None:
    for text in ("two\nlines", "\x1b[31mred", "\x00", "x" * 60_000):
        for fields in ({"type": text}, {"type": "Ping", "session": 1, text: 1}):
            frame = b"FDR\x08" + msgspec.msgpack.encode(fields)
            check_frame(frame)
            with pytest.raises(ProtocolError, match="malformed message"):
                decode_from_client(frame)


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
def test_hostile_frames_are_refused_quickly_and_in_little_memory(
    decode: Callable[[bytes], object], name: str
) -> None:
    frame = b"FDR\x08" + HOSTILE[name]
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
