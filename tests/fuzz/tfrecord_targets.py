"""TFRecord files, and the messages in them."""

import gzip
import random
from functools import cache
from pathlib import Path

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import encode_name
from feeder.source.source import SourceSpec, open_source
from feeder.source.tf_example import (
    VALUES_MAX,
    BadExample,
    find_features,
    find_values,
    read_datum,
    read_values,
)
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target, folder, refusal, written
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


def _read_message(data: bytes) -> None:
    """Check that its values lie within the message."""
    found, _ = find_features(data, len(data), _WANTED)
    for feature in found.values():
        values = read_values(data, feature)
        assert len(values) <= VALUES_MAX
        if feature.kind == "int64":
            assert all(-(2**63) <= number < 2**63 for number in values)  # type: ignore[operator]
        spans = find_values(data, feature) if feature.kind == "bytes" else []
        assert all(0 <= start <= stop <= len(data) for start, stop in spans)
    datum = read_datum(data)
    assert datum is None or 0 <= datum[0] <= datum[1] <= len(data)


def _file(rng: random.Random) -> bytes:
    """Return a file of some messages, most of them framed as they should be."""
    data = b"".join(frame(_message(rng)) for _ in range(rng.randint(1, 4)))
    return mutate_bytes(rng, data) if rng.random() < 0.3 else data


def _spec(path: Path) -> SourceSpec:
    return SourceSpec(kind="tfrecord", location="x", containers=(str(path),))


def _hold_file(listed: Listed, data: bytes) -> bool:
    """Items are read or refused, and the same ones are listed of a compressed file."""
    source = open_source(_spec(folder() / "a.tfrecord"), str(folder() / "work"))
    for name, item in listed.items.items():
        encode_name(name)
        assert source.read_item(item) in data
    source.close()
    for _, reason in listed.rejected.values():
        refusal(reason, data)
    compressed = written(gzip.compress(data, 0), "a.tfrecord.gz")
    try:
        streamed = list_container(_spec(compressed), folder() / "work")
    except (ConfigError, DatasetError) as error:
        refusal(error, data)
    else:
        assert listed.items.keys() == streamed.items.keys()
        (folder() / "work" / "list-00000.spill").unlink(missing_ok=True)
    return bool(listed.items)


TARGETS = (
    Target("tf-example", _message, _read_message, 40_000, BadExample, line_max=600),
    Target(
        "tfrecord",
        _file,
        lambda data: list_container(_spec(written(data, "a.tfrecord")), folder() / "work"),
        8_000,
        (ConfigError, DatasetError),
        _hold_file,
    ),
)
