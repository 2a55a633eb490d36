"""tf.train.Example is read as TensorFlow wrote it, and as protobuf allows it to be written."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.source.tf_example import VALUES_MAX, BadExample, ExampleReader, Feature, Span
from tests.source.listings import GOLDEN
from tests.source.tf_writer import Values, encode_example, encode_list, field, varint


def values_of(reader: ExampleReader, feature: Feature) -> Values:
    if feature.kind == "bytes":
        return "bytes", [reader.read(span) for span in reader.bytes_spans(feature)]
    read: Callable[[Feature], list[int] | list[float]] = (
        reader.floats if feature.kind == "float" else reader.integers
    )
    return feature.kind, read(feature)


_INTEGERS = st.integers(-(2**63), 2**63 - 1)
_VALUES = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=5000), max_size=4)),
    st.tuples(st.just("int64"), st.lists(_INTEGERS, max_size=20)),
    st.tuples(st.just("float"), st.lists(st.floats(width=32, allow_nan=False), max_size=20)),
)
# Fields that no Example has: a number, 4 bytes, 8 bytes, and bytes.
_JUNK = varint(9 << 3) + varint(2**63) + varint(10 << 3 | 5) + b"4444" + varint(11 << 3 | 1)
_JUNK += b"88888888" + field(500, b"junk")


@settings(max_examples=30, deadline=None)
@given(
    features=st.lists(
        st.tuples(st.binary(max_size=30), _VALUES), max_size=6, unique_by=lambda each: each[0]
    ),
    packed=st.booleans(),
    junk=st.sampled_from([b"", _JUNK]),
)
def test_all_features_are_read_however_they_are_written(
    features: list[tuple[bytes, Values]], packed: bool, junk: bytes
) -> None:
    data = encode_example(features, packed=packed, junk=junk)
    for reader in (
        ExampleReader.of(data),
        ExampleReader(lambda at, size: data[at : at + size], len(data)),
    ):
        found = reader.find({name for name, _ in features} | {b"not there"})
        assert {name: values_of(reader, each) for name, each in found.items()} == dict(features)
        assert reader.names == [name for name, _ in features]


def test_bytes_between_the_features_wanted_are_not_read() -> None:
    image = bytes(1_000_000)
    data = encode_example(
        [
            (b"before", ("int64", [1])),
            (b"image", ("bytes", [image])),
            (b"after", ("int64", [-7, 2**40])),
        ]
    )
    read: list[Span] = []

    def read_at(at: int, size: int) -> bytes:
        read.append(Span(at, at + size))
        return data[at : at + size]

    reader = ExampleReader(read_at, len(data))
    found = reader.find({b"before", b"image", b"after"})
    (span,) = reader.bytes_spans(found[b"image"])
    assert span.stop - span.start == len(image)
    assert data[span.start : span.stop] == image
    assert values_of(reader, found[b"after"]) == ("int64", [-7, 2**40])
    assert values_of(reader, found[b"before"]) == ("int64", [1])  # from the window that it was in
    assert len(read) == 2
    assert sum(stop - start for start, stop in read) < 5000


def test_features_of_tensorflow_are_read() -> None:
    data = (GOLDEN / "kinds.tfrecord").read_bytes()
    at = 0
    for number in range(4):
        size = int.from_bytes(data[at : at + 8], "little")
        reader = ExampleReader.of(data[at + 12 : at + 12 + size])
        found = reader.find((b"several", b"negative", b"floats", b"text"))
        assert {name: values_of(reader, each) for name, each in found.items()} == {
            b"several": ("int64", [*range(number)]),
            b"negative": ("int64", [-number]),
            b"floats": ("float", [number / 4, -number]),
            b"text": ("bytes", [("é" * number).encode()]),
        }
        at += size + 16
    assert at == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xd8\xff\xe0 a JPEG", "it is no tf.train.Example (at byte 0 of the record's data)"),
        (b"\x00\x00", "it is no tf.train.Example"),
        (
            encode_example([(b"a", ("int64", [1])), (b"a", ("int64", [2]))]),
            "has the feature a twice",
        ),
        (encode_example([(b"x" * 1025, ("int64", [1]))]), "a feature's name has over 1024 bytes"),
        (
            field(1, field(1, field(1, b"a") + field(2, 2 * encode_list("int64", [1])))),
            "a feature has two lists of values",
        ),
    ],
)
def test_what_is_no_example_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadExample) as caught:
        ExampleReader.of(data).find((b"a",))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("float", field(1, b"abc"), "a list of floats has 3 bytes"),
        ("float", field(1, bytes(4 * VALUES_MAX + 4)), "more than 65536 values"),
        ("bytes", field(1, b"") * 3, "more than 2 values"),
    ],
)
def test_lists_that_are_damaged_or_too_long_are_refused(
    kind: str, body: bytes, reason: str
) -> None:
    number = {"bytes": 1, "float": 2, "int64": 3}[kind]
    data = field(1, field(1, field(1, b"a") + field(2, field(number, body))))
    reader = ExampleReader.of(data)
    feature = reader.find((b"a",))[b"a"]
    read = (lambda: reader.bytes_spans(feature, 2)) if kind == "bytes" else None
    with pytest.raises(BadExample) as caught:
        read() if read else values_of(reader, feature)
    assert reason in str(caught.value)
