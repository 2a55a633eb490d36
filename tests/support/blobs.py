"""Reference implementation of blobs, bit by bit: slow but simple.

The layout comes from feeder/README.md ("Blob"). Reading what ``tile_jpeg`` writes must give the
source's coefficients; the product must read what is written here, also where its encoder would
write something else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

ABSENT = 15
CLASSES = 16  # of luma, and as many of chroma
PLANES = 3
ESCAPE_BITS = 12
ZIGZAG = sorted(
    range(64), key=lambda p: (p // 8 + p % 8, p // 8 if (p // 8 + p % 8) % 2 else p % 8)
)
"""Row and column (8 * row + column) by zigzag position."""

BlockClass = tuple[int, ...]
"""The bits of DC's field, then the low bits of each coefficient in zigzag order, or ABSENT."""
Blocks = NDArray[np.int16]
"""Coefficients (n, 64) of blocks in coding order, each in rows."""


class Bits:
    """A stream of bits, the lowest bit of a byte first."""

    def __init__(self, data: bytes = b"") -> None:
        self._value = int.from_bytes(data, "little")
        self.at = 0

    def take(self, bits: int) -> int:
        value = self._value >> self.at & (1 << bits) - 1
        self.at += bits
        return value

    def take_signed(self, bits: int) -> int:
        value = self.take(bits)
        return value - (1 << bits) if bits and value >> bits - 1 else value

    def put(self, value: int, bits: int) -> None:
        self._value |= (value & (1 << bits) - 1) << self.at
        self.at += bits

    def encode(self) -> bytes:
        return self._value.to_bytes(-(-self.at // 8), "little")


class Frame(NamedTuple):
    """The frame header's layout of components and MCUs."""

    components: tuple[int, ...]
    """The component of each block of an MCU."""
    mcus: int
    rows: int


def read_frame(header: bytes) -> Frame:
    """Read SOF0 or SOF1."""
    at = 2
    while header[at + 1] not in (0xC0, 0xC1):
        at += 2 + int.from_bytes(header[at + 2 : at + 4])
    height, width = (int.from_bytes(header[at + k : at + k + 2]) for k in (5, 7))
    factors = [divmod(header[at + 11 + 3 * c], 16) for c in range(header[at + 9])]
    across, down = max(h for h, _ in factors), max(v for _, v in factors)
    components = tuple(c for c, (h, v) in enumerate(factors) for _ in range(h * v))
    return Frame(components, -(-width // (8 * across)), -(-height // (8 * down)))


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A blob's parts; ``encode`` writes them whether they make sense or not."""

    header: bytes
    """A baseline JPEG's, from SOI to SOS, without Huffman tables."""
    tile_mcus: int
    length_bits: int = 24
    dc_bits: tuple[int, ...] = (11, 0, 0)
    classes: tuple[BlockClass, ...]
    lengths: tuple[int, ...] = ()
    tiles: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> "Blob":
        at = data.index(b"\xff\xda")
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
        header, (tile_mcus, length_bits, *dc_bits) = data[:at], data[at : at + 5]
        frame, classes = read_frame(header), []
        at += 5
        for _ in range(CLASSES * (1 + max(frame.components) // 2)):
            end = at + 1 + -(-data[at] // 2)
            nibbles = Bits(data[at + 1 : end])
            classes.append(tuple(nibbles.take(4) for _ in range(data[at])))
            at = end
        tiles = frame.rows * -(-frame.mcus // tile_mcus)
        lengths = Bits(data[at : at + -(-tiles * length_bits // 8)])
        at += -(-tiles * length_bits // 8)
        ends = [at, *(at := at + lengths.take(length_bits) for _ in range(tiles))]
        assert at == len(data)
        cut = tuple(data[first:end] for first, end in pairwise(ends))
        return cls(
            header=header,
            tile_mcus=tile_mcus,
            length_bits=length_bits,
            dc_bits=tuple(dc_bits),
            classes=tuple(classes),
            lengths=tuple(map(len, cut)),
            tiles=cut,
        )

    def encode(self) -> bytes:
        out = self.header + bytes([self.tile_mcus, self.length_bits, *self.dc_bits])
        for own in self.classes:
            nibbles = Bits()
            for nibble in own:
                nibbles.put(nibble, 4)
            out += bytes([len(own)]) + nibbles.encode()
        lengths = Bits()
        for length in self.lengths:
            lengths.put(length, self.length_bits)
        return out + lengths.encode() + b"".join(self.tiles)

    def components_of_tiles(self) -> list[list[tuple[int, ...]]]:
        """Return the components of each tile's blocks, row by row of MCUs."""
        components, mcus, rows = read_frame(self.header)
        starts = range(0, mcus, self.tile_mcus)
        return [[components * min(self.tile_mcus, mcus - start) for start in starts]] * rows

    def class_of(self, component: int, number: int) -> BlockClass:
        return self.classes[CLASSES * (component > 0) + number]

    def read_blocks(self) -> Blocks:
        """Return all blocks; AssertionError where the tiles contradict each other."""
        blocks: list[list[int]] = []
        tiles = iter(self.tiles)
        for row in self.components_of_tiles():
            dc = [0, 0, 0]
            for components in row:
                tile = next(tiles)
                bits = Bits(tile)
                assert dc == [bits.take_signed(count) for count in self.dc_bits]
                classes = [self.class_of(c, bits.take(4)) for c in components]
                fixed = [_take_fixed_part(bits, own) for own in classes]
                for c, own, part in zip(components, classes, fixed, strict=True):
                    dc[c] += _take_varying_part(bits, own, *part)
                    blocks.append([dc[c], *part[1][1:]])
                assert -(-bits.at // 8) == len(tile)
        return np.array(blocks, np.int16)

    def with_blocks(self, blocks: Blocks, choice: Sequence[int]) -> "Blob":
        """Return the blob with these blocks.

        ``choice`` has each block's class number among those of its component.
        """
        tiles = []
        left = iter(zip(blocks.tolist(), choice, strict=True))
        for row in self.components_of_tiles():
            dc = [0, 0, 0]
            for components in row:
                bits, parts = Bits(), []
                for value, count in zip(dc, self.dc_bits, strict=True):
                    bits.put(value, count)
                for c in components:
                    values, number = next(left)
                    bits.put(number, 4)
                    parts.append((self.class_of(c, number), values, values[0] - dc[c]))
                    dc[c] = values[0]
                for part in parts:
                    _put_fixed_part(bits, *part)
                for part in parts:
                    _put_varying_part(bits, *part)
                tiles.append(bits.encode())
        return replace(self, tiles=tuple(tiles), lengths=tuple(map(len, tiles)))

    def content_checksum(self) -> int:
        """Return XXH64 of the header, padded to 32 bytes, and of all blocks."""
        padding = bytes(-len(self.header) % 32)
        return xxhash.xxh64_intdigest(self.header + padding + self.read_blocks().tobytes())


def low_bits_of(own: BlockClass) -> dict[int, int]:
    """Return the low bits of each AC coefficient that is coded, by position, in rows."""
    coded = {ZIGZAG[k]: bits for k, bits in enumerate(own) if k > 0 and bits != ABSENT}
    return dict(sorted(coded.items()))


def _quotient(value: int, low: int) -> int:
    if not -128 <= value <= 127:
        return PLANES  # always an escape
    return abs(value) - (value < 0 < low) >> low


def _put_fixed_part(bits: Bits, own: BlockClass, values: list[int], difference: int) -> None:
    low_bits = low_bits_of(own)
    bits.put(-(1 << own[0] - 1) if _dc_escapes(own, difference) else difference, own[0])
    for p, low in low_bits.items():
        if low > 0:
            bits.put(values[p] & (1 << low) - 1 | (values[p] < 0) << low, low + 1)
    for p, low in low_bits.items():
        bits.put(_quotient(values[p], low) > 0, 1)


def _put_varying_part(bits: Bits, own: BlockClass, values: list[int], difference: int) -> None:
    quotients = {p: _quotient(values[p], low) for p, low in low_bits_of(own).items()}
    for p, low in low_bits_of(own).items():
        if low == 0 < quotients[p]:
            bits.put(values[p] < 0, 1)
    for plane in range(1, PLANES):
        for quotient in quotients.values():
            if quotient >= plane:
                bits.put(quotient > plane, 1)
    for p, quotient in quotients.items():
        if quotient >= PLANES:
            bits.put(values[p], ESCAPE_BITS)
    if _dc_escapes(own, difference):
        bits.put(difference, ESCAPE_BITS)


def _dc_escapes(own: BlockClass, difference: int) -> bool:
    return bool(own) and own[0] > 0 and abs(difference) >= 1 << own[0] - 1


def _take_fixed_part(bits: Bits, own: BlockClass) -> tuple[int, list[int], list[int]]:
    """Return DC's field, the low bits of each coefficient, and the positions of ones."""
    low_bits, values = low_bits_of(own), [0] * 64
    difference = bits.take_signed(own[0] if own else 0)
    for p, low in low_bits.items():
        values[p] = bits.take_signed(low + 1) if low > 0 else 0
    return difference, values, [p for p in low_bits if bits.take(1)]


def _take_varying_part(
    bits: Bits, own: BlockClass, difference: int, values: list[int], ones: list[int]
) -> int:
    """Complete ``values`` in place; return the DC difference."""
    low_bits = low_bits_of(own)
    signs = {p: bits.take(1) for p in ones if low_bits[p] == 0}
    negative = {p for p in ones if signs.get(p, values[p] < 0)}
    for plane in range(1, PLANES + 1):
        for p in ones:
            values[p] += (-1 if p in negative else 1) << low_bits[p]
        if plane < PLANES:
            ones = [p for p in ones if bits.take(1)]
    for p in ones:
        values[p] = bits.take_signed(ESCAPE_BITS)
    if own and own[0] > 0 and difference == -(1 << own[0] - 1):
        difference = bits.take_signed(ESCAPE_BITS)
    return difference
