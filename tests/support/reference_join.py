"""Reference implementation of joining tiles, over strings of "0" and "1": slow but simple.

The tables come from feeder/README.md ("Blob"), the codes from ITU-T T.81 F.2.2 and C.2. The
product's ``join_segments`` must give the same bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from feeder.jpeg.recode import SegmentLayout

Codes = dict[str, int]  # from a code's bits to its symbol
SLACK_BYTES = 8


@dataclass(frozen=True)
class Blob:
    """The parsed parts of a sample's blob."""

    lengths: list[int]
    predictions: list[list[int]]
    header: bytes
    scan: str
    blocks: list[int]
    """Of each component in an MCU."""
    dc: list[Codes]
    ac: list[Codes]


def parse_blob(blob: bytes, layout: SegmentLayout) -> Blob:
    length_bits, *dc_bits = layout.table_bits.to_bytes(4, "little")
    segments = layout.tile_columns * layout.tile_rows
    lengths_bytes = -(-segments * length_bits // 8)
    tables_bytes = lengths_bytes - (-segments * sum(dc_bits) // 8)
    lengths = int.from_bytes(blob[:lengths_bytes], "little")
    predictions = int.from_bytes(blob[lengths_bytes:tables_bytes], "little")
    header = blob[tables_bytes : tables_bytes + layout.header_bytes]
    scan = blob[tables_bytes + layout.header_bytes : -SLACK_BYTES]
    assert not any(blob[-SLACK_BYTES:])
    taken_lengths, taken_predictions = [], []
    for _ in range(segments):
        taken_lengths.append(lengths % 2**length_bits)
        lengths >>= length_bits
        entry = []
        for bits in dc_bits:
            value = predictions % 2**bits
            predictions >>= bits
            entry.append(value - 2**bits if bits and value >= 2 ** (bits - 1) else value)
        taken_predictions.append(entry)
    blocks, dc, ac = read_header(header)
    return Blob(
        lengths=taken_lengths,
        predictions=taken_predictions,
        header=header,
        scan="".join(f"{byte:08b}" for byte in scan),
        blocks=blocks,
        dc=dc,
        ac=ac,
    )


def read_header(header: bytes) -> tuple[list[int], list[Codes], list[Codes]]:
    """Return the blocks of each component in an MCU, and its DC and AC codes."""
    tables: dict[int, Codes] = {}
    blocks: list[int] = []
    at = 2
    while True:
        marker, length = header[at + 1], int.from_bytes(header[at + 2 : at + 4])
        body = header[at + 4 : at + 2 + length]
        at += 2 + length
        if marker in (0xC0, 0xC1):
            factors = [body[7 + 3 * c] for c in range(body[5])]
            blocks = [1] if len(factors) == 1 else [(f >> 4) * (f & 15) for f in factors]
        elif marker == 0xC4:
            while body:
                symbols = body[17 : 17 + sum(body[1:17])]
                tables[body[0]] = dict(zip(canonical_codes(body[1:17]), symbols, strict=True))
                body = body[17 + len(symbols) :]
        elif marker == 0xDA:
            selectors = [body[2 + 2 * c] for c in range(body[0])]
            assert at == len(header)
            return (
                blocks,
                [tables[s >> 4] for s in selectors],
                [tables[16 | s & 15] for s in selectors],
            )


def canonical_codes(counts: bytes) -> Iterator[str]:
    code = 0
    for bits, count in enumerate(counts, 1):
        for _ in range(count):
            yield f"{code:0{bits}b}"
            code += 1
        code <<= 1


def read_symbol(codes: Codes, scan: str, at: int) -> tuple[int, int]:
    """Return the symbol and the end of its code."""
    for bits in range(1, 17):
        if (code := scan[at : at + bits]) in codes:
            return codes[code], at + bits
    raise AssertionError("no code")


def read_block(blob: Blob, component: int, at: int) -> tuple[int, int, int]:
    """Return the DC difference, the end of its bits, and the end of the block."""
    size, at = read_symbol(blob.dc[component], blob.scan, at)
    low = blob.scan[at : at + size]
    at = dc_end = at + size
    difference = 0 if not size else int(low, 2) - (0 if low[0] == "1" else 2**size - 1)
    k = 1
    while k < 64:
        symbol, at = read_symbol(blob.ac[component], blob.scan, at)
        at += symbol & 15
        if symbol == 0:
            break
        k += (symbol >> 4) + 1
    return difference, dc_end, at


def code_difference(codes: Codes, difference: int) -> str:
    size = abs(difference).bit_length()
    code = next(code for code, symbol in codes.items() if symbol == size)
    low = difference if difference >= 0 else difference + 2**size - 1
    return code + (f"{low:0{size}b}" if size else "")


def read_mcus(parts: Blob, count: int, at: int, dc: list[int]) -> tuple[int, list[int]]:
    """Return the end of ``count`` MCUs from bit ``at`` on, and the DC predictions there."""
    dc = list(dc)
    for _ in range(count):
        for component, blocks in enumerate(parts.blocks):
            for _ in range(blocks):
                difference, _, at = read_block(parts, component, at)
                dc[component] += difference
    return at, dc


def join_reference(
    blob: bytes,
    layout: SegmentLayout,
    mcus: tuple[int, int],
    rows: tuple[int, int],
    size: tuple[int, int],
) -> bytes:
    """Return the JPEG of ``size`` (width, height) of the MCUs [mcus) x [rows)."""
    parts = parse_blob(blob, layout)
    starts = [sum(parts.lengths[:segment]) for segment in range(len(parts.lengths) + 1)]

    def find(row: int, mcu: int) -> tuple[int, list[int]]:
        """Return the bit at which an MCU begins, and the DC predictions there."""
        column, within = divmod(mcu, layout.tile_mcus)
        segment = row * layout.tile_columns + column
        dc = parts.predictions[segment - 1] if column else [0, 0, 0]
        if column == layout.tile_columns:
            return starts[segment], dc
        return read_mcus(parts, within, starts[segment], dc)

    joined = []
    predicted = [0, 0, 0]
    for row in range(*rows):
        (at, before), (end, after) = (find(row, mcu) for mcu in mcus)
        for component, blocks in enumerate(parts.blocks):
            for block in range(blocks):
                difference, dc_end, block_end = read_block(parts, component, at)
                if block == 0:
                    difference += before[component] - predicted[component]
                    joined.append(code_difference(parts.dc[component], difference))
                    at = dc_end
                joined.append(parts.scan[at:block_end])
                at = block_end
        joined.append(parts.scan[at:end])
        predicted = after
    bits = "".join(joined)
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\x00")
    header = bytearray(parts.header)
    width, height = size
    header[layout.sof_offset + 5 : layout.sof_offset + 9] = (height << 16 | width).to_bytes(4)
    return bytes(header) + coded + b"\xff\xd9"
