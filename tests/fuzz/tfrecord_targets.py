"""TFRecord files, and the messages in them."""

import gzip
import random
from functools import cache
from pathlib import Path

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import encode_name
from feeder.source.item_bytes import SourceError
from feeder.source.source import SourceSpec, open_source
from feeder.source.tf_example import VALUES_MAX, BadExample, ExampleReader
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target, folder, reads, refusal, written
from tests.source.listings import GOLDEN, Listed, list_container
from tests.source.tf_writer import Values, encode_datum, encode_example, frame

_TOKENS = (
    *(b"\x0a", b"\x12", b"\x1a", b"\x08", b"\x0d", b"\x0a\x00", b"\x80", b"\xff" * 10, b"\0"),
    *(b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\x0f", b"\x0a\x0fimage/filename", b"a/\n\x1b.jpg"),
    *(b"image/encoded", b"image/class/label", b"image/class/text", b"\x0b", b"\x0c"),
)
_WANTED = (b"image/encoded", b"image/class/label", b"image/class/text", b"several", b"floats")


@cache
def _messages() -> tuple[bytes, ...]:
    """Return messages that TensorFlow wrote, and one as it would not write it."""
    made: list[bytes] = []
    for name in ("imagenet.tfrecord", "kinds.tfrecord"):
        data, at = (GOLDEN / name).read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            made.append(data[at + 12 : at + 12 + size])
            at += size + 16
    numbers: Values = ("int64", [0, -1, 2**63 - 1])
    image: Values = ("bytes", [bytes(6000)])
    features = [(b"image/class/label", numbers), (b"image/encoded", image), (b"several", numbers)]
    made.append(encode_example(features, packed=False, junk=b"\x48\x01\x55" + bytes(4)))
    return (*made, encode_datum(bytes(6000), 3), encode_datum(b"", -1, encoded=False))


def _message(rng: random.Random) -> bytes:
    data = rng.choice(_messages())
    if rng.random() < 0.1:
        return data
    return mutate_bytes(rng, data, others=_messages(), tokens=_TOKENS)


def _read_message(reader: ExampleReader, size_bytes: int) -> object:
    """Return all that can be read, or the reason why not."""
    try:
        found = reader.find(_WANTED)
        datum = reader.datum()
        assert datum is None or 0 <= datum[0].start <= datum[0].stop <= size_bytes
        read: list[object] = [found, datum]
        for feature in found.values():
            if feature.kind == "int64":
                integers = reader.integers(feature)
                assert all(-(2**63) <= number < 2**63 for number in integers)
                assert len(integers) <= VALUES_MAX
                read.append(integers)
            elif feature.kind == "float":
                floats = reader.floats(feature)
                assert len(floats) <= VALUES_MAX
                read.append(repr(floats))
            else:
                spans = reader.bytes_spans(feature)
                assert all(0 <= start <= stop <= size_bytes for start, stop in spans)
                read.append([reader.read(span) for span in spans])
    except BadExample as error:
        refusal(error)
        return str(error)
    return read


def _check_message(data: bytes) -> bool:
    """The same values or the same reason, from memory and through windows; all of it bounded."""

    def read_at(at: int, size: int) -> bytes:
        assert 0 <= at <= at + size <= len(data)
        return data[at : at + size]

    read = _read_message(ExampleReader.of(data), len(data))
    assert read == _read_message(ExampleReader(read_at, len(data)), len(data))
    return isinstance(read, list)


def _file(rng: random.Random) -> bytes:
    """Return a file of some messages, most of them framed as they should be."""
    data = b"".join(frame(_message(rng)) for _ in range(rng.randint(1, 4)))
    return mutate_bytes(rng, data) if rng.random() < 0.3 else data


def _spec(path: Path) -> SourceSpec:
    return SourceSpec(kind="tfrecord", location="x", containers=(str(path),))


def _hold_file(listed: Listed, data: bytes) -> bool:
    """Items are read or refused, and the same ones are listed of a compressed file."""
    source = open_source(_spec(folder() / "a.tfrecord"), str(folder() / "work"))
    images = set()
    for name, item in listed.items.items():
        encode_name(name)
        try:
            assert source.read_item(item) in data
            images.add(name)
        except SourceError as error:
            refusal(error, data, kinds=("corrupt", "empty"))
    source.close()
    for _, reason in listed.rejected.values():
        refusal(reason, data)
    compressed = written(gzip.compress(data, 0), "a.tfrecord.gz")
    try:
        streamed = list_container(_spec(compressed), folder() / "work")
    except (ConfigError, DatasetError) as error:
        refusal(error, data)
    else:
        assert images <= streamed.items.keys() <= listed.items.keys()
        (folder() / "work" / "list-00000.spill").unlink(missing_ok=True)
    return bool(images)


TARGETS = (
    Target(name="tf-example", make=_message, check=_check_message, inputs=40_000),
    Target(
        name="tfrecord",
        make=_file,
        check=reads(
            lambda data: list_container(_spec(written(data, "a.tfrecord")), folder() / "work"),
            (ConfigError, DatasetError),
            _hold_file,
        ),
        inputs=8_000,
    ),
)
