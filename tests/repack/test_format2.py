"""Format 2: a blob's codes come out as they are, a row at a time, and damage is an error."""

import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.manifest import MANIFEST_NAME
from feeder.errors import ConfigError, DatasetError
from feeder.repack import format2
from feeder.repack.format2 import convert_to_jpeg, load_former
from tests.support.sources import make_source, pack, run_inline

DATASETS = Path(__file__).parent / "format2"
HEADER = b"\xff\xd8 some segments \xff\xda"
_LENGTH_BITS = 10
_MCU_PX = 16

row_codes = st.lists(st.text("01", min_size=1, max_size=90), min_size=1, max_size=3)
"""The codes of a row's segments, as text."""


def _pack_bits(bits: str, order: Literal["big", "little"]) -> bytes:
    digits = np.frombuffer(bits.encode(), np.uint8) - ord("0")
    return np.packbits(digits, bitorder=order).tobytes()


def _blob(rows: list[list[str]]) -> tuple[bytes, np.void]:
    """Return the blob of these codes, and the record that describes it."""
    segments = [codes for row in rows for codes in row]
    lengths = "".join(f"{len(codes):0{_LENGTH_BITS}b}"[::-1] for codes in segments)
    predictions = bytes(-(-len(segments) * 7 // 8))
    scan = _pack_bits("".join(segments), "big")
    record = np.zeros(1, format2.RECORD)[0]
    record["tile_columns"], record["tile_rows"] = len(rows[0]), len(rows)
    record["table_bits"] = int.from_bytes(bytes((_LENGTH_BITS, 4, 2, 1)), "little")
    record["header_bytes"] = len(HEADER)
    record["width"], record["mcu_width_px"] = 300 * _MCU_PX - 3, _MCU_PX
    return _pack_bits(lengths, "little") + predictions + HEADER + scan + bytes(8), record


@given(st.lists(row_codes, min_size=1, max_size=20), st.integers(1, 3))
def test_rows_keep_their_codes_between_restart_markers(rows: list[list[str]], columns: int) -> None:
    rows = [(row * columns)[:columns] for row in rows]
    expected = HEADER[:2] + b"\xff\xdd\x00\x04" + (300).to_bytes(2, "big") + HEADER[2:]
    for number, row in enumerate(rows):
        codes = "".join(row)
        padded = _pack_bits(codes + "1" * (-len(codes) % 8), "big")
        marker = b"\xff\xd9" if number == len(rows) - 1 else bytes((0xFF, 0xD0 + number % 8))
        expected += padded.replace(b"\xff", b"\xff\x00") + marker
    assert convert_to_jpeg(*_blob(rows)) == expected


def test_blob_of_another_size_than_its_parts_is_refused() -> None:
    blob, record = _blob([["110", "0001"], ["11111111", "1"]])
    for damaged in (b"", blob[:9], blob[:-1], blob + b"\0"):
        with pytest.raises(ValueError, match=r"do not match its record|do not add up"):
            convert_to_jpeg(damaged, record)
    for field in ("tile_rows", "tile_columns", "header_bytes", "table_bits"):
        for value in (0, 255):
            other = record.copy()
            other[field] = value
            with pytest.raises(ValueError, match=r"do not match its record|do not add up"):
                convert_to_jpeg(blob, other)
    record["mcu_width_px"] = 0
    with pytest.raises(ValueError, match="do not match its record"):
        convert_to_jpeg(blob, record)


def test_manifest_that_differs_in_a_byte_is_damaged(tmp_path: Path) -> None:
    content = (DATASETS / "index" / MANIFEST_NAME).read_bytes()
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 1
        (tmp_path / MANIFEST_NAME).write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"is damaged|is of dataset format version"):
            load_former(tmp_path)


def test_other_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = json.loads((DATASETS / "index" / MANIFEST_NAME).read_bytes())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**fields, "version": 2}))
    with pytest.raises(DatasetError, match=r"version 2, this feeder reads 4: pack the source"):
        load_former(tmp_path)
    run_inline(monkeypatch, "pack.run")
    pack(make_source(tmp_path / "source", 3), tmp_path / "packed", shards=1)
    with pytest.raises(ConfigError, match=r"packed has dataset format version 4 already: use it"):
        load_former(tmp_path / "packed")
    with pytest.raises(DatasetError, match="no dataset at"):
        load_former(tmp_path / "missing")
    shutil.copytree(DATASETS / "index", tmp_path / "begun")
    (tmp_path / "begun" / MANIFEST_NAME).rename(tmp_path / "begun" / ".packing")
    with pytest.raises(DatasetError, match="begun is unfinished"):
        load_former(tmp_path / "begun")
