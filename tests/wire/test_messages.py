"""The wire: every message survives a round trip; decoding and encoding enforce every bound."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ProtocolError
from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    MAX_ENDPOINTS,
    MAX_HEADER_BYTES,
    MAX_INDICES,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_NODE_HEADER_BYTES,
    MAX_NODES,
    PROTOCOL_VERSION,
    BadRecipe,
    Bye,
    Chunk,
    ClientMessage,
    Draining,
    Failed,
    Hello,
    HostStatsRequest,
    Lent,
    Names,
    NamesRequest,
    NodeMessage,
    NotReady,
    Ping,
    Pong,
    Refused,
    Request,
    Stats,
    StatsRequest,
    VersionMismatch,
    Welcome,
    decode_from_client,
    decode_from_node,
    encode,
)
from tests.plan.test_labels import specs
from tests.plan.test_recipe import TRAIN, recipes

u64 = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**31 - 1)
indices = st.integers(0, 2**48 - 1)
batch_keys = st.lists(st.tuples(epochs, indices), max_size=MAX_INDICES).map(tuple)
texts = st.text(st.characters(codec="utf-8"), max_size=50)
durations = st.floats(0, 1e12)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=128)

client_messages: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(
        Hello,
        dataset=names,
        recipe=recipes,
        seed=u64,
        window=st.integers(1, 64),
        client=names,
        job=st.just("") | names,
    ),
    st.builds(Request, session=u64, want=batch_keys, release=batch_keys),
    st.builds(Ping, session=u64, clock_s=durations, waited_s=durations, cpu_s=durations),
    st.builds(Bye, session=u64),
    st.builds(StatsRequest),
    st.builds(HostStatsRequest),
    st.builds(
        NamesRequest,
        dataset=names,
        content=st.just("") | names,
        sample_ids=st.lists(indices, min_size=1, max_size=MAX_NAMES).map(tuple),
    ),
)
node_messages: st.SearchStrategy[NodeMessage] = st.one_of(
    st.builds(
        Welcome,
        session=u64,
        dataset=names,
        content=names,
        former=st.just("") | names,
        recipe_fingerprint=names,
        classes=st.lists(texts, max_size=20).map(tuple),
        labels=specs,
        samples=st.integers(1, 2**48),
        batches=indices,
        shards=st.integers(1, 2**20),
        lanes=st.integers(1, 2**20),
        window=st.integers(1, 64),
        chunk_images=st.integers(1, 65_536),
        node=names,
        number=st.integers(0, MAX_NODES - 1),
        incarnation=u64,
        siblings=st.lists(st.lists(texts, max_size=3).map(tuple), max_size=3).map(tuple),
        feeder_version=names,
        self_test=names,
        libraries=st.dictionaries(names, texts, max_size=5),
    ),
    st.builds(
        Refused,
        code=st.sampled_from(["version", "memory", "range"]),
        message=texts,
        session=st.none() | u64,
    ),
    st.builds(
        Chunk,
        session=u64,
        epoch=epochs,
        index=indices,
        first=st.integers(0, 65_536),
        images=st.integers(1, 65_536),
        valid=st.integers(0, 65_536),
    ),
    st.builds(
        Lent,
        session=u64,
        request=indices,
        epoch=epochs,
        index=indices,
        slot=st.integers(0, 63),
        valid=st.integers(0, 65_536),
    ),
    st.builds(Failed, session=u64, epoch=epochs, index=indices, code=names, message=texts),
    st.builds(Pong, session=u64, verdict=names | st.just("")),
    st.builds(NotReady, text=names, advances=st.integers(0, 2**48 - 1)),
    st.builds(Draining, session=u64),
    st.builds(
        Names, names=st.lists(st.binary(max_size=99), min_size=1, max_size=MAX_NAMES).map(tuple)
    ),
    st.builds(
        Stats,
        counters=st.dictionaries(
            names,
            st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts,
            max_size=5,
        ),
    ),
)

HELLO: dict[str, Any] = {
    "type": "Hello",
    "dataset": "imagenet",
    "recipe": msgspec.to_builtins(TRAIN),
    "seed": 0,
    "window": 4,
    "client": "rank 0 of 8 on host",
}
WELCOME: dict[str, Any] = {
    "type": "Welcome",
    "session": 1,
    "dataset": "imagenet",
    "content": "f" * 32,
    "former": "d" * 32,
    "recipe_fingerprint": "e" * 32,
    "classes": ["cat", "dog"],
    "samples": 100,
    "batches": 3,
    "shards": 4,
    "lanes": 2,
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
}


def frame_of(fields: object) -> bytes:
    """A frame from a peer without Feeder's checks."""
    return b"FDR\x06" + msgspec.msgpack.encode(fields)


@given(message=client_messages)
def test_a_client_message_comes_back_equal(message: ClientMessage) -> None:
    frame = encode(message)
    assert frame.startswith(b"FDR\x06")
    assert decode_from_client(frame) == message
    assert decode_from_client(memoryview(frame)) == message
    assert type(decode_from_client(frame)) is type(message)


@given(message=node_messages)
def test_a_node_message_comes_back_equal(message: NodeMessage) -> None:
    frame = encode(message)
    assert decode_from_node(frame) == message
    assert decode_from_node(memoryview(frame)) == message
    assert type(decode_from_node(frame)) is type(message)


def test_the_bytes_of_a_frame_are_pinned() -> None:
    assert encode(Ping(session=5)) == frame_of(
        {"type": "Ping", "session": 5, "clock_s": 0.0, "waited_s": 0.0, "cpu_s": 0.0}
    )
    assert encode(Request(session=1, want=((0, 7),))) == frame_of({**REQUEST, "want": [[0, 7]]})


def test_the_plain_maps_above_are_accepted() -> None:
    assert decode_from_client(frame_of(HELLO)) == Hello(
        dataset="imagenet", recipe=TRAIN, seed=0, window=4, client="rank 0 of 8 on host"
    )
    assert isinstance(decode_from_client(frame_of(REQUEST)), Request)
    assert isinstance(decode_from_node(frame_of(WELCOME)), Welcome)
    assert isinstance(decode_from_node(frame_of(CHUNK)), Chunk)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("seed", 1.5),
        ("seed", "0"),
        ("window", 0),
        ("window", 65),
        ("dataset", ""),
        ("dataset", "x" * 129),
        ("dataset", b"imagenet"),
        ("client", "x" * 129),
        ("client", "two\nlines"),
        ("client", "\x1b[31mred"),
        ("client", "ends with newline\n"),
        ("recipe", None),
        ("recipe", {}),
        ("recipe", {**HELLO["recipe"], "mixup": 0.1}),
        ("recipe", {**HELLO["recipe"], "split": "test"}),
        ("recipe", {**HELLO["recipe"], "batch_size": "8"}),
        ("unknown", 1),
    ],
)
def test_a_hello_out_of_bounds_is_a_protocol_error(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(frame_of({**HELLO, field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("scale", [0.5, 0.1]), ("image_size", 2**63), ("ratio", [0.0, 1.0])],
)
def test_recipe_out_of_range_is_a_bad_recipe_that_names_the_field(
    field: str, value: object
) -> None:
    hello = {**HELLO, "recipe": {**HELLO["recipe"], field: value}}
    with pytest.raises(BadRecipe, match=f"recipe: {field} must be"):
        decode_from_client(frame_of(hello))


@pytest.mark.parametrize("field", sorted(set(HELLO) - {"type"}))
def test_no_field_of_hello_may_be_missing(field: str) -> None:
    fields = {name: value for name, value in HELLO.items() if name != field}
    with pytest.raises(ProtocolError, match=field):
        decode_from_client(frame_of(fields))


@pytest.mark.parametrize("field", ["want", "release"])
@pytest.mark.parametrize(
    "value",
    [
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
    ],
)
def test_batches_out_of_bounds_are_a_protocol_error(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(frame_of({**REQUEST, field: value}))


@pytest.mark.parametrize(
    "sample_ids",
    [[], [-1], [2**48], [0] * (MAX_NAMES + 1), [0.5], ["0"], None, {}, [[0]], b"\x00"],
)
def test_ids_out_of_bounds_are_a_protocol_error(sample_ids: object) -> None:
    fields = {"type": "NamesRequest", "dataset": "d", "sample_ids": [0, 2**48 - 1]}
    assert isinstance(decode_from_client(frame_of(fields)), NamesRequest)
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(frame_of({**fields, "sample_ids": sample_ids}))


@pytest.mark.parametrize(
    "texts",
    [[], ["text"], [b"a"] * (MAX_NAMES + 1), [b"a" * (MAX_NAME_BYTES + 1)], None, [None]],
)
def test_names_out_of_bounds_are_a_protocol_error(texts: object) -> None:
    longest = {"type": "Names", "names": [b"\xff" * MAX_NAME_BYTES] * MAX_NAMES}
    assert isinstance(decode_from_node(frame_of(longest)), Names)
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_node(frame_of({**longest, "names": texts}))


def test_as_many_batches_as_allowed_are_accepted() -> None:
    keys = tuple((2**31 - 1, 2**48 - 1 - number) for number in range(MAX_INDICES))
    request = Request(session=2**64 - 1, want=keys, release=keys)
    assert decode_from_client(encode(request)) == request


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        (CHUNK, "images", 0),
        (CHUNK, "images", 65_537),
        (CHUNK, "first", -1),
        (CHUNK, "valid", -1),
        (CHUNK, "valid", 65_537),
        (CHUNK, "epoch", 2**31),
        (CHUNK, "index", 2**48),
        (CHUNK, "session", -1),
        (LENT, "slot", 64),
        (LENT, "slot", -1),
        (LENT, "valid", 65_537),
        (WELCOME, "window", 0),
        (WELCOME, "samples", 0),
        (WELCOME, "shards", 2**20 + 1),
        (WELCOME, "lanes", 0),
        (WELCOME, "chunk_images", 0),
        (WELCOME, "classes", ["x" * 4097]),
        (WELCOME, "classes", [1]),
        (WELCOME, "labels", {"kind": "index", "width": 2}),
        (WELCOME, "labels", {"kind": "multi", "width": 65_537}),
        (WELCOME, "labels", {"kind": "float", "width": 4_097}),
        (WELCOME, "labels", {"kind": "float", "width": -1}),
        (WELCOME, "labels", {"kind": "text"}),
        (WELCOME, "labels", {"kind": "none", "depth": 1}),
        (WELCOME, "labels", None),
        (WELCOME, "libraries", {"a": 1}),
        (WELCOME, "node", "a\x00b"),
        (WELCOME, "node", "x" * 513),
        (WELCOME, "number", -1),
        (WELCOME, "number", MAX_NODES),
        (WELCOME, "incarnation", -1),
        (WELCOME, "incarnation", "7"),
        (WELCOME, "self_test", ""),
        (WELCOME, "self_test", "5" * 129),
        (WELCOME, "siblings", [[]] * (MAX_NODES + 1)),
        (WELCOME, "siblings", [["e"] * (MAX_ENDPOINTS + 1)]),
        (WELCOME, "siblings", [["x" * 4097]]),
        (WELCOME, "siblings", ["ipc:///n"]),
        ({"type": "Refused", "code": "version", "message": ""}, "code", "because"),
        ({"type": "Refused", "code": "version", "message": ""}, "session", -1),
        ({"type": "Stats", "counters": {}}, "counters", {"a": None}),
        ({"type": "Stats", "counters": {}}, "counters", {"a": "x" * 4097}),
    ],
)
def test_a_node_message_out_of_bounds_is_a_protocol_error(
    fields: dict[str, Any], field: str, value: object
) -> None:
    assert decode_from_node(frame_of(fields))
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_node(frame_of({**fields, field: value}))


@pytest.mark.parametrize("field", ["number", "incarnation", "siblings", "self_test"])
def test_welcome_identifies_the_node_process(field: str) -> None:
    fields = {name: value for name, value in WELCOME.items() if name != field}
    with pytest.raises(ProtocolError, match=field):
        decode_from_node(frame_of(fields))


def test_the_largest_daemon_fits_into_a_welcome() -> None:
    name = "tcp://[::1]:65535".ljust(100, "x")
    fields = {**WELCOME, "siblings": [[name] * MAX_ENDPOINTS] * MAX_NODES}
    message = decode_from_node(frame_of(fields))
    assert decode_from_node(encode(message)) == message


@pytest.mark.parametrize("version", [0, 5, 255])
def test_other_version_is_a_version_mismatch_whatever_follows(version: int) -> None:
    for rest in (b"", b"\xc1", encode(Ping(session=1))[4:]):
        for decode in (decode_from_client, decode_from_node):
            with pytest.raises(VersionMismatch, match=f"version {version}, .* 6") as caught:
                decode(b"FDR" + bytes([version]) + rest)
            assert caught.value.their_version == version
    assert PROTOCOL_VERSION == 6


@pytest.mark.parametrize("frame", [b"", b"F", b"FDR", b"GET / HTTP/1.1", b"\x00" * 100, b"fdr\x02"])
def test_a_frame_without_the_magic_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a feeder message"):
        decode_from_client(frame)


def test_each_side_accepts_its_own_messages_only() -> None:
    with pytest.raises(ProtocolError, match="Chunk"):
        decode_from_client(frame_of(CHUNK))
    with pytest.raises(ProtocolError, match="Hello"):
        decode_from_node(frame_of(HELLO))


@pytest.mark.parametrize("fields", [[], {}, None, 5, "Ping", {"type": 1}, {"session": 1}])
def test_payload_that_is_not_a_message_is_a_protocol_error(fields: object) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode_from_client(frame_of(fields))


def test_a_frame_over_the_limit_is_refused_before_it_is_parsed() -> None:
    for decode, limit in (
        (decode_from_client, MAX_HEADER_BYTES),
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


def test_welcome_holds_the_classes_of_imagenet_21k() -> None:
    fields = {**WELCOME, "classes": [f"n{number:08}" for number in range(21_841)]}
    assert len(frame_of(fields)) > MAX_HEADER_BYTES
    welcome = decode_from_node(frame_of(fields))
    assert isinstance(welcome, Welcome)
    assert decode_from_node(encode(welcome)) == welcome


def test_recipe_in_a_hello_is_complete() -> None:
    assert set(HELLO["recipe"]) == set(Recipe.__struct_fields__)
