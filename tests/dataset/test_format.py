"""The bytes of shards: encoding, decoding, and detection of every damage."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset import format as shard_format
from feeder.dataset.format import (
    HEADER_BYTES,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    Oddity,
    SampleRecord,
    ShardHeader,
    checksum,
    decode_header,
    record_is_intact,
)
from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, encode_name, printable

_U16, _U32, _U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
_RANGES = {"u1": st.integers(0, 255), "u2": _U16, "u4": _U32, "u8": _U64}
_FIELDS = {name: RECORD[name].str.lstrip("<|") for name in SampleRecord.__slots__}


def _header(**changes: int) -> ShardHeader:
    fields = {
        "shard": 3,
        "samples": 2,
        "records_offset": 128,
        "names_offset": 256,
        "names_bytes": 20,
        "index_checksum": 7,
    }
    return ShardHeader(**{**fields, **changes})


def _sealed(fields: bytes) -> bytes:
    return fields + struct.pack("<Q", checksum(fields))


@given(st.fixed_dictionaries({name: _RANGES[kind] for name, kind in _FIELDS.items()}))
def test_record_written_as_struct_reads_as_numpy_record(fields: dict[str, int]) -> None:
    data = SampleRecord(**fields).encode()
    record = np.frombuffer(data, RECORD)[0]
    assert {name: int(record[name]) for name in fields} == fields
    assert record_is_intact(data)


@given(st.integers(0, 64 * 8 - 1), st.binary(min_size=56, max_size=56))
def test_any_flipped_bit_of_a_record_is_found(bit: int, fields: bytes) -> None:
    record = bytearray(_sealed(fields))
    assert record_is_intact(bytes(record))
    record[bit // 8] ^= 1 << bit % 8
    assert not record_is_intact(bytes(record))


def test_header_round_trip() -> None:
    header = _header()
    assert header.encode()[:8] == MAGIC
    assert decode_header(header.encode(), "x") == header
    assert header.file_bytes == 276
    assert (header.labels_offset, header.label_bytes) == (256, 0)
    assert decode_header(_header(names_offset=262).encode(), "x").label_bytes == 3


@given(st.integers(0, 64 * 8 - 1))
def test_any_flipped_bit_of_a_header_is_found(bit: int) -> None:
    data = bytearray(_header().encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DatasetError, match=r"shard-00003\.fds"):
        decode_header(bytes(data), "shard-00003.fds")


@given(
    samples=st.integers(0, 3),
    records_offset=st.sampled_from([0, 56, 64, 72, 100, 128]),
    gap=st.sampled_from([0, 0, 0, -64, 8, 3, 6]),
    label_bytes=st.sampled_from([0, 0, 1, 5, 16_384, 16_385]),
    header_bytes=st.sampled_from([64, 64, 64, 72]),
)
def test_sealed_headers_decode_exactly_where_their_fields_agree(
    samples: int, records_offset: int, gap: int, label_bytes: int, header_bytes: int
) -> None:
    """Inconsistent fields are refused even with the right checksum."""
    names_offset = max(0, records_offset + (64 + label_bytes) * samples + gap)
    fields = (3, header_bytes, 3, samples, records_offset, names_offset, 20, 7)
    data = _sealed(MAGIC + struct.pack("<HHIQQQQQ", *fields))
    is_consistent = (
        header_bytes == 64
        and records_offset >= 64
        and records_offset % 8 == 0
        and names_offset in {records_offset + (64 + each) * samples for each in range(16_385)}
    )
    if is_consistent:
        assert decode_header(data, "x").encode() == data
    else:
        with pytest.raises(DatasetError, match=r"impossible offsets|header"):
            decode_header(data, "x")


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (4, "upgrade feeder"),
        (2, "run `feeder repack /data/x NEW`"),
        (1, "pack the source again"),
    ],
)
def test_another_format_names_both_versions_and_the_remedy(version: int, remedy: str) -> None:
    data = _sealed(MAGIC + struct.pack("<H", version) + _header().encode()[10:56])
    with pytest.raises(DatasetError) as caught:
        decode_header(data, "/data/x/shard-00000.fds")
    assert str(caught.value) == (
        f"/data/x/shard-00000.fds is of shard format version {version}, this feeder reads 3: "
        f"{remedy}"
    )


@given(st.binary(max_size=50))
def test_names_of_any_bytes_survive_a_round_trip(stored: bytes) -> None:
    assert encode_name(decode_name(stored)) == stored


def test_oddities_have_the_names_that_the_manifest_counts() -> None:
    assert (Oddity.PROGRESSIVE | Oddity.WRONG_SUFFIX).kinds() == ["progressive", "wrong-suffix"]
    assert Oddity(0).kinds() == []
    assert Oddity(1 << 31).kinds() == []  # a flag of a later version


def test_readme_lists_the_fields_of_the_record() -> None:
    assert RECORD.itemsize == RECORD_BYTES == HEADER_BYTES == 64
    readme = Path(shard_format.__file__).parents[1].joinpath("README.md").read_text()
    table = readme.split("**Record**")[1].split("**Label rows**")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    assert [(int(at), int(size)) for at, size in rows] == [
        (offset, field.itemsize) for field, offset, *_ in (RECORD.fields or {}).values()
    ]
    for oddity in Oddity:
        assert f"`{oddity.kinds()[0]}`" in table


def test_names_with_control_characters_are_escaped_in_messages() -> None:
    assert printable("a/ü b.jpg") == "a/ü b.jpg"
    assert printable("a\nb\x1b[2J\udcff") == "a\\nb\\x1b[2J\\udcff"
