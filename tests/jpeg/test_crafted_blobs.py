"""Blobs that no encoder writes, for codes as long as the format permits."""

import struct

import numpy as np
import pytest

from feeder.jpeg.crop_decode import check_segments, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, VERSIONS, decode_rgbx, decode_window
from feeder.jpeg.recode import SegmentLayout

SCAN_SLACK = bytes(8)
TURBOJPEG_SLACK = bytes(5120)

DC_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16)
"""Of the codes of categories 0 to 11."""
AC_LENGTHS = {0x00: 1, 0x01: 2, 0x02: 3, 0x08: 4, 0x0A: 16}


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def codes(lengths: dict[int, int]) -> dict[int, str]:
    """Return each symbol's code (T.81 annex C)."""
    found, code, previous = {}, 0, 0
    for symbol, length in lengths.items():
        code <<= length - previous
        found[symbol], previous = f"{code:0{length}b}", length
        code += 1
    return found


def table(lengths: dict[int, int]) -> bytes:
    counts = bytes(list(lengths.values()).count(n) for n in range(1, 17))
    return counts + bytes(lengths)


def magnitude(value: int, size: int) -> str:
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


DC = dict(enumerate(DC_LENGTHS))


def grey_blob(blocks: list[tuple[int, list[tuple[int, int]]]]) -> tuple[bytes, SegmentLayout]:
    """Return a row of blocks, each a DC difference and (symbol, value) pairs, as one tile."""
    dc_codes, ac_codes = codes(DC), codes(AC_LENGTHS)
    bits, dc = "", 0
    for difference, values in blocks:
        size = abs(difference).bit_length()
        bits += dc_codes[size] + magnitude(difference, size)
        dc += difference
        for symbol, value in values:
            bits += ac_codes[symbol] + magnitude(value, symbol & 15)
    header = (
        b"\xff\xd8"
        + segment(0xDB, bytes([0]) + bytes([1] * 64))
        + segment(0xC0, struct.pack(">BHHB", 8, 8, 8 * len(blocks), 1) + b"\x01\x11\x00")
        + segment(0xC4, b"\x00" + table(DC) + b"\x10" + table(AC_LENGTHS))
        + segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
    )
    scan = int(bits + "0" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big")
    tables = struct.pack("<I", len(bits))[:3] + struct.pack("<h", dc & 0x7FF)
    layout = SegmentLayout(1, 1, len(blocks), len(header), header.index(b"\xff\xc0"), 24 | 11 << 8)
    assert layout.tables_bytes == len(tables)
    return tables + header + scan + SCAN_SLACK, layout


LONG_VALUES = [(0x08, 200), (0x08, -255), (0x08, 129), (0x08, 255)]
BLOCKS = [
    (1000, [*LONG_VALUES, (0x00, 0)]),
    (-2000, [*LONG_VALUES, (0x0A, 1000), *LONG_VALUES, (0x00, 0)]),
    (2047, [(0x08, 130)] * 63),
    (0, [(0x0A, -1023)] * 63),
    (-1100, [(0x00, 0)]),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("repeats", [1, 7])
def test_the_longest_codes_decode_as_turbojpeg_decodes_them(version: str, repeats: int) -> None:
    blob, layout = grey_blob(BLOCKS * repeats)
    width = 8 * layout.tile_mcus
    check_segments(blob, *layout, layout.tile_mcus)
    joined = np.frombuffer(whole_jpeg(blob, layout, width, 8) + TURBOJPEG_SLACK, np.uint8)
    expected, found = np.zeros((2, 8, width, 4), np.uint8)
    decode_rgbx(joined, width, 8, 1, 4 * width, expected.reshape(-1))
    padded = np.frombuffer(blob + bytes(READ_SLACK_BYTES), np.uint8)
    window = (0, layout.tile_mcus, 0, 1, width, 8)
    assert decode_window(
        padded, len(blob), layout, window, 1, 4 * width, found.reshape(-1), version=version
    )
    assert (found == expected).all()
