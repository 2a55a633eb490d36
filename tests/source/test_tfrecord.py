"""TFRecords: which items and labels are listed, what is read of a file, and what is refused."""

import gzip
import hashlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.source.tf_example import (
    BadExample,
    Feature,
    find_features,
    find_values,
    read_values,
)
from tests.source.listings import (
    GOLDEN,
    Listed,
    check_refused,
    list_container,
    list_one,
    read_one,
    spec_of,
)
from tests.source.tf_writer import Values, encode_example, field, frame, varint

IMAGE = b"\xff\xd8\xff image"
IMAGENET = {"00000000-n01440764_0.JPEG": 1, "00000001-n15075141_1.JPEG": 1000}
IMAGENET |= {"00000002-n01443537_2.JPEG": 2, "00000003-n01440764_3.JPEG": 1}


def list_file(path: Path, **options: Any) -> Listed:
    return list_one("tfrecord", path, **options)


def example(label: object = 1, **others: Values) -> bytes:
    values: Values = ("int64", label if isinstance(label, list) else [label])
    features = {"image/encoded": ("bytes", [IMAGE]), "image/class/label": values} | others
    return encode_example([(name.encode(), each) for name, each in features.items()])


def write(folder: Path, *records: bytes) -> Path:
    path = folder / "a.tfrecord"
    path.write_bytes(b"".join(map(frame, records)))
    return path


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The files that TensorFlow wrote, in a folder with room for a work folder."""
    for path in GOLDEN.glob("*.tfrecord*"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zlib"])
def test_imagenet_records_of_tensorflow_have_their_images_labels_and_names(
    golden: Path, suffix: str
) -> None:
    path = golden / f"imagenet.tfrecord{suffix}"
    listed = list_file(path)
    assert listed.labels == IMAGENET
    assert listed.facts.names == {
        1: "tench, Tinca tinca",
        2: "goldfish",
        1000: "toilet tissue, toilet paper, bathroom tissue",
    }
    assert (listed.facts.base, listed.facts.field) == (1, "feature image/class/label")
    assert not listed.facts.is_declared
    assert listed.facts.notes == ()
    assert not listed.rejected
    assert bool(suffix) == bool(listed.facts.spilled_bytes)
    images = read_one("tfrecord", path, listed)
    expected = json.loads((GOLDEN / "tfrecord.json").read_text())
    assert [hashlib.sha256(image).hexdigest() for image in images] == expected


@pytest.mark.parametrize(
    ("label", "kind", "labels"),
    [
        ("several", "multi", [[], [0], [0, 1], [0, 1, 2]]),
        ("floats", None, [[0.0, 0.0], [0.25, -1.0], [0.5, -2.0], [0.75, -3.0]]),
        ("negative", None, [0, -1, -2, -3]),
        ("text", "multi", None),
        ("none of them", "none", [None] * 4),
    ],
)
def test_labels_of_every_kind_are_read(
    golden: Path, label: str, kind: str | None, labels: list[object] | None
) -> None:
    listed = list_file(golden / "kinds.tfrecord", image="img", label=label, label_kind=kind)
    if labels is None:
        labels = [["é" * number] for number in range(1, 4)]
        assert listed.rejected == {
            "00000000": ("bad-label", "its label is a list that has an empty text in it")
        }
    assert list(listed.labels.values()) == labels
    assert (listed.facts.base, listed.facts.notes) == (0, ())


def test_a_label_of_another_field_counts_from_0_and_a_text_is_a_class(golden: Path) -> None:
    path = golden / "imagenet.tfrecord"
    listed = list_file(path, label="image/class/synset")
    assert listed.facts.texts == ("n01440764", "n15075141", "n01443537")
    listed = list_file(path, label="image/object/bbox/label")
    assert list(listed.labels.values()) == [[1, 1], [1000, 1000], [2, 2], [1, 1]]
    assert (listed.facts.base, listed.facts.field) == (0, "feature image/object/bbox/label")


def test_label_0_that_counts_from_1_is_an_error_until_the_user_decides(tmp_path: Path) -> None:
    path = write(tmp_path, example(5), example(0))
    with pytest.raises(ConfigError, match=r"00000001: its image/class/label is 0.*--label-base 0"):
        list_file(path)
    for base in (0, 1):  # with base 1 it is left out when labels are read
        listed = list_file(path, label_base=base)
        assert (list(listed.labels.values()), listed.facts.base) == ([5, 0], base)


def test_several_files_keep_their_names_apart(golden: Path) -> None:
    (golden / "b").mkdir()
    shutil.copy(golden / "imagenet.tfrecord", golden / "b")
    spec = spec_of("tfrecord", *(golden / name / "imagenet.tfrecord" for name in ("", "b")))
    names = [name for each in (0, 1) for name in list_container(spec, golden / "w", each).items]
    assert names[0] == "imagenet/00000000-n01440764_0.JPEG"
    assert names[4] == "b/imagenet/00000000-n01440764_0.JPEG"
    assert len(set(names)) == 8


def test_a_record_without_what_is_needed_is_refused_with_the_features_it_has(
    tmp_path: Path,
) -> None:
    image = "image/encoded"
    no_image = f"it has no feature {image}: there are"
    no_label = "it has no feature image/class/label: there are"
    faults = [
        (
            encode_example([(b"image", ("bytes", [IMAGE])), (b"\x1b", ("int64", []))]),
            *("no-image", rf"{no_image} \x1b, image (--image)"),
        ),
        (example(label=[]), "no-label", "its image/class/label has no value"),
        (
            example(**{image: ("bytes", [IMAGE] * 2)}),
            "two-images",
            f"its {image} has 2 values",
        ),
        (example(**{image: ("bytes", [])}), "no-image", f"its {image} has 0 values of b"),
        (example(**{image: ("int64", [1])}), "no-image", f"its {image} has 0 values of"),
        (example(**{image: ("bytes", [b""])}), "empty", "its image has no bytes"),
        (
            encode_example([(image.encode(), ("bytes", [IMAGE]))]),
            *("no-label", f"{no_label} {image} (--label)"),
        ),
        (IMAGE, "corrupt", "it is no tf.train.Example (at byte 0 of the record's data)"),
        (field(9, b"x"), "no-image", f"{no_image} none"),
        (b"", "empty", "its record has no bytes"),
    ]
    last = example(3, **{"image/filename": ("bytes", [b"some/folder/ok.jpg"])})
    listed = list_file(write(tmp_path, *(data for data, _, _ in faults), last))
    assert listed.labels == {"00000010-ok.jpg": 3}
    assert [*listed.rejected] == [f"{number:08}" for number in range(len(faults))]
    for found, (_, kind, reason) in zip(listed.rejected.values(), faults, strict=True):
        assert found[0] == kind
        assert found[1].startswith(reason)


@pytest.mark.parametrize("packer", [None, gzip.compress, zlib.compress])
def test_a_record_with_a_wrong_crc_is_refused_and_those_around_it_are_not(
    tmp_path: Path, packer: Any
) -> None:
    path = write(tmp_path, example(1), example(1), example(2))
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    data[size + data[size:].index(IMAGE) + 5] ^= 1
    path.write_bytes(packer(data) if packer else data)
    reason = f"the CRC of the data of its record at byte {size} is wrong"
    listed = list_file(path)
    assert list(listed.labels.values()) == [1, 2]
    assert listed.rejected == {"00000001": ("corrupt", reason)}
    assert read_one("tfrecord", path, listed) == [IMAGE, IMAGE]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data, size: b"", "is empty"),
        (lambda data, size: b"\xff\xd8\xff\xe0 some JPEG", "is no TFRecord file"),
        (lambda data, size: data[: size + 12], "ends within the record that begins at byte {size}"),
        (
            lambda data, size: data[:size] + b"\1" + data[size + 1 :],
            "is damaged: the length of the record at byte {size} has a wrong CRC",
        ),
        (lambda data, size: gzip.compress(data)[:-9], "its gzip stream ends too early"),
        (lambda data, size: zlib.compress(data)[:-5], "its ZLIB stream ends too early"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it_and_the_byte(
    tmp_path: Path, damage: Any, reason: str
) -> None:
    path = write(tmp_path, example(1), example(2))
    data = path.read_bytes()
    size = len(data) // 2
    path.write_bytes(damage(data, size))
    check_refused("tfrecord", path, reason.format(size=size))


# tf.train.Example, as TensorFlow wrote it and as protobuf allows it to be written


def values_of(data: bytes, feature: Feature) -> Values:
    if feature.kind == "bytes":
        return "bytes", [data[start:stop] for start, stop in find_values(data, feature)]
    return feature.kind, read_values(data, feature)  # type: ignore[return-value]


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
    found, names = find_features(data + b"crc", len(data), {name for name, _ in features} | {b"x"})
    assert {name: values_of(data, each) for name, each in found.items()} == dict(features)
    assert names == [name for name, _ in features]


def test_what_is_no_example_is_refused() -> None:
    for data in (b"\xff\xd8\xff\xe0 a JPEG", b"\x00\x00"):
        with pytest.raises(
            BadExample, match=r"it is no tf.train.Example \(at byte 0 of the record"
        ):
            find_features(data, len(data), (b"a",))
