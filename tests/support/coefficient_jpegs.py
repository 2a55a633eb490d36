"""JPEGs with arbitrary coefficients, including ones that no encoder makes from a picture."""

import struct
from typing import Final

import numpy as np

from tests.support.blobs import ZIGZAG, Blocks, Frame, read_frame

FACTORS: Final = {
    "4:4:4": (0x11, 0x11, 0x11),
    "4:2:2": (0x21, 0x11, 0x11),
    "4:2:0": (0x22, 0x11, 0x11),
    "4:4:0": (0x12, 0x11, 0x11),
    "4:1:1": (0x41, 0x11, 0x11),
    "grey": (0x11,),
}
"""Sampling factors of each component."""
_DC_SYMBOLS: Final = range(12)
_AC_SYMBOLS: Final = (0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11)))


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def header_of(kind: str, width: int, height: int, quantiser: int) -> tuple[bytes, bytes]:
    """Return SOI to the frame header, and the scan header."""
    components = b"".join(bytes([c, f, 0]) for c, f in enumerate(FACTORS[kind], 1))
    count = len(FACTORS[kind])
    table = bytes([16]) + struct.pack(">H", quantiser) * 64
    frame = segment(0xC1, struct.pack(">BHHB", 8, height, width, count) + components)
    jfif = segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
    selectors = b"".join(bytes([c, 0]) for c in range(1, count + 1))
    scan = segment(0xDA, bytes([count]) + selectors + b"\0\x3f\0")
    return b"\xff\xd8" + jfif + segment(0xDB, table) + frame, scan


def size_px(kind: str, mcus: int, rows: int) -> tuple[int, int]:
    """Return width and height of an image of whole MCUs."""
    across, down = divmod(FACTORS[kind][0], 16)
    return 8 * across * mcus, 8 * down * rows


def mcu_grid(kind: str, width: int, height: int) -> Frame:
    return read_frame(header_of(kind, width, height, 1)[0])


def coefficient_jpeg(kind: str, width: int, height: int, blocks: Blocks, quantiser: int) -> bytes:
    """Return a baseline JPEG of blocks (n, 64) in coding order, in rows.

    DC codes have 4 bits, AC codes 8; all quantisers are equal.
    """
    components, mcus, rows = mcu_grid(kind, width, height)
    bits: list[str] = []
    dc = [0, 0, 0]
    for block, c in zip(blocks.tolist(), components * mcus * rows, strict=True):
        difference, run = block[0] - dc[c], 0
        dc[c] = block[0]
        size = abs(difference).bit_length()
        bits.append(f"{size:04b}{_magnitude(difference, size)}")
        for value in (block[position] for position in ZIGZAG[1:]):
            if value == 0:
                run += 1
                continue
            bits += [f"{_AC_SYMBOLS.index(0xF0):08b}"] * (run // 16)
            size = abs(value).bit_length()
            symbol = _AC_SYMBOLS.index(run % 16 << 4 | size)
            bits.append(f"{symbol:08b}{_magnitude(value, size)}")
            run = 0
        if run > 0:
            bits.append(f"{0:08b}")
    coded = "".join(bits)
    coded += "1" * (-len(coded) % 8)
    scan = int(coded, 2).to_bytes(len(coded) // 8).replace(b"\xff", b"\xff\0")
    dc_lengths = bytes(len(_DC_SYMBOLS) * (length == 4) for length in range(1, 17))
    ac_lengths = bytes(len(_AC_SYMBOLS) * (length == 8) for length in range(1, 17))
    tables = b"\0" + dc_lengths + bytes(_DC_SYMBOLS) + b"\x10" + ac_lengths + bytes(_AC_SYMBOLS)
    head, scan_header = header_of(kind, width, height, quantiser)
    return head + segment(0xC4, tables) + scan_header + scan + b"\xff\xd9"


def _magnitude(value: int, size: int) -> str:
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


def draw_blocks(
    rng: np.random.Generator, count: int, dc_limit: int, ac_limit: int, share: float
) -> Blocks:
    """Return blocks of coefficients up to the limits, a share of which are not 0."""
    blocks = rng.integers(-ac_limit, ac_limit + 1, (count, 64))
    blocks[rng.random((count, 64)) >= share] = 0
    blocks[:, 0] = rng.integers(max(-dc_limit, -1024), min(dc_limit, 1023) + 1, count)
    return blocks.astype(np.int16)
