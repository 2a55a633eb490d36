"""tf.train.Example is read as TensorFlow wrote it, and as protobuf allows it to be written."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.source.tf_example import BadExample, ExampleReader, Feature
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
