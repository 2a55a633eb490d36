"""Blobs that no encoder writes: all that the format permits is read, everything else refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.jpeg.crop_decode import check_blob, rebuild_jpeg
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import tile_jpeg
from tests.exact.windows import Window, expected_pixels, own_pixels, whole_window
from tests.support.blobs import ABSENT, CLASSES, ZIGZAG, Blob, BlockClass, Blocks, low_bits_of
from tests.support.coefficient_jpegs import FACTORS, header_of, mcu_grid, size_px
from tests.support.jpegs import encode, picture

LOW_BITS_MAX = 7
ROW_BITS_MAX = 50
DAMAGE = "its blob is damaged"


def whole_of(kind: str, mcus: int, rows: int) -> Window:
    return Window(0, mcus, 0, rows, *size_px(kind, mcus, rows))


def draw_class(rng: np.random.Generator) -> BlockClass:
    """Return a class of any length, with any low bits that a row has room for."""
    nibbles, of_row = [int(rng.integers(0, 13))], [0] * 8
    common = int(rng.integers(0, LOW_BITS_MAX + 1))
    for k in range(1, int(rng.integers(1, 65))):
        low = int(rng.choice([0, common, common, rng.integers(0, LOW_BITS_MAX + 1), ABSENT]))
        bits = 0 if low in (0, ABSENT) else low + 1
        if of_row[ZIGZAG[k] // 8] + bits > ROW_BITS_MAX:
            low = bits = 0
        of_row[ZIGZAG[k] // 8] += bits
        nibbles.append(low)
    return tuple(nibbles)


def draw_values(rng: np.random.Generator, own: BlockClass, dc: int) -> list[int]:
    """Return a block that the class can code, with samples within those of a picture."""
    values = [0] * 64
    reach = int(rng.choice([1, 2, 4, 8, 300]))
    low_bits = low_bits_of(own)
    for position in rng.permutation(list(low_bits)).tolist():
        most = min(int(480 - np.linalg.norm(values)), reach << low_bits[position])
        values[position] = int(rng.integers(-most, most + 1)) // 2
    values[0] = int(rng.integers(-232, 233)) if own[0] > 0 else dc
    return values


@settings(max_examples=100)
@given(
    kind=st.sampled_from(["grey", "4:4:4", "4:2:0"]),
    mcus=st.integers(1, 12),
    rows=st.integers(1, 2),
    tile_mcus=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_that_the_format_permits_is_read_by_all_versions(
    kind: str, mcus: int, rows: int, tile_mcus: int, seed: int
) -> None:
    rng = np.random.Generator(np.random.Philox(seed))
    components, *_ = mcu_grid(kind, 1, 1)
    head, scan = header_of(kind, *size_px(kind, mcus, rows), 1)
    groups = 1 if kind == "grey" else 2
    blob = Blob(
        header=head + scan,
        tile_mcus=tile_mcus,
        length_bits=int(rng.integers(16, 25)),
        dc_bits=(11,) + (int(rng.integers(9, 12)),) * 2 if groups == 2 else (9, 0, 0),
        classes=tuple(draw_class(rng) for _ in range(groups * CLASSES)),
    )
    choice, blocks = [], []
    for _ in range(rows):
        dc = [0, 0, 0]
        for c in components * mcus:
            choice.append(int(rng.integers(CLASSES)))
            blocks.append(draw_values(rng, blob.class_of(c, choice[-1]), dc[c]))
            dc[c] = blocks[-1][0]
    expected_blocks: Blocks = np.array(blocks, np.int16)
    blob = blob.with_blocks(expected_blocks, choice)
    assert np.array_equal(blob.read_blocks(), expected_blocks)
    check_everywhere(blob, whole_of(kind, mcus, rows))


def check_everywhere(blob: Blob, window: Window) -> None:
    data = blob.encode()
    assert check_blob(data)[0] == blob.content_checksum()
    expected = expected_pixels(data, window, 1)
    for version in VERSIONS:
        assert np.array_equal(own_pixels(data, window, 1, version), expected), version


def grey_blob(classes: list[BlockClass], blocks: list[list[int]], tile_mcus: int = 4) -> Blob:
    """Return a row of blocks, the k-th of class k % len(classes)."""
    head, scan = header_of("grey", 8 * len(blocks), 8, 1)
    blob = Blob(
        header=head + scan,
        tile_mcus=tile_mcus,
        classes=tuple(classes[k % len(classes)] for k in range(CLASSES)),
    )
    return blob.with_blocks(np.array(blocks, np.int16), [k % CLASSES for k in range(len(blocks))])


def block_of(dc: int, ac: Callable[[int], int]) -> list[int]:
    return [dc, *(ac(position) for position in range(1, 64))]


FULL: BlockClass = (12, *[0] * 63)


@pytest.mark.parametrize("tile_mcus", [1, 3, 64])
def test_the_longest_blocks(tile_mcus: int) -> None:
    """All coefficients escape, or have all planes but the last."""
    blocks = [
        block_of(100, lambda p: 3 * (-1) ** (p // 3)),
        block_of(-100, lambda p: 2 * (-1) ** p),
        block_of(200, lambda p: (-1) ** (p // 8)),
    ]
    small = [[v // 2 if k else v for k, v in enumerate(block)] for block in blocks]
    blob = grey_blob([FULL, (1, *[0] * 63), (2, *[1] * 63)], (blocks + small) * 5, tile_mcus)
    check_everywhere(blob, whole_of("grey", 30, 1))


def test_signs_and_planes_of_any_length_from_any_bit_on() -> None:
    """An unaligned 64-bit load has only 57 usable bits: longer runs take several."""
    blocks = []
    empty, of_three_bits = ([0, value] + [0] * 62 for value in (0, 2))
    for ones in range(26, 33):
        for twos in range(5):
            last = [0] * (64 - ones) + [1] * (ones - twos) + [2] * twos
            for before in range(8):  # a tile of eight blocks for each bit in a byte
                blocks += [of_three_bits] * before + [empty] * (7 - before) + [last]
    blob = grey_blob([FULL], blocks, 8)
    check_everywhere(blob, whole_of("grey", len(blocks), 1))


def test_values_at_the_ends_of_their_fields() -> None:
    for low in range(LOW_BITS_MAX + 1):
        edges = [v << low for v in (-4, -3, -2, -1, 1, 2, 3, 4)]
        values = sorted({min(max(edge + d, -480), 480) for edge in edges for d in (-1, 0, 1)})
        own = [12, ABSENT, low, ABSENT, 0, low]
        blocks = []
        for value in values:
            blocks.append([0] * 64)
            blocks[-1][ZIGZAG[2]] = value
        blob = grey_blob([tuple(own[: 3 + k]) for k in range(3)], blocks)
        check_everywhere(blob, whole_of("grey", len(blocks), 1))


def test_a_row_of_the_most_bits() -> None:
    row = [p for p in range(64) if p // 8 == 3]
    own = [12] + [ABSENT] * 63
    for position, low in zip(row, (7, 7, 7, 7, 7, 7, 1, 0), strict=True):
        own[ZIGZAG.index(position)] = low
    blocks = []
    for sign in (1, -1):
        blocks.append(block_of(5, lambda p, s=sign: s * 64 if p in row[:6] else s * (p in row)))
    blob = grey_blob([tuple(own)], blocks)
    assert sum(bits + (bits > 0) for bits in low_bits_of(tuple(own)).values()) == ROW_BITS_MAX
    check_everywhere(blob, whole_of("grey", 2, 1))
    own[ZIGZAG.index(row[6])] = 2
    assert_refused(grey_blob([tuple(own)], blocks), whole_of("grey", 2, 1))


def assert_refused(
    blob: Blob | bytes, window: Window, versions: tuple[str, ...] = VERSIONS
) -> None:
    data = blob if isinstance(blob, bytes) else blob.encode()
    with pytest.raises(ValueError, match=DAMAGE):
        check_blob(data)
    with pytest.raises(ValueError, match=DAMAGE):
        rebuild_jpeg(data, *window)
    for version in versions:
        with pytest.raises(ValueError, match=DAMAGE):
            own_pixels(data, window, 1, version)


def valid(kind: str = "grey") -> tuple[Blob, Window]:
    """Return a blob of two rows of three tiles, each of two MCUs, and its whole window."""
    tiled = tile_jpeg(encode(picture(*size_px(kind, 6, 2)), kind), 16 if kind != "4:2:0" else 32)
    blob = Blob.parse(tiled.blob)
    assert blob.tile_mcus == 2
    return blob, whole_of(kind, 6, 2)


def full_blob(kind: str, mcus: int, **sizes: Any) -> Blob:
    """Return a row of MCUs, all of class FULL."""
    components, *_ = mcu_grid(kind, 1, 1)
    head, scan = header_of(kind, *size_px(kind, mcus, 1), 1)
    blob = Blob(
        header=head + scan, classes=(FULL,) * (CLASSES * (1 + max(components) // 2)), **sizes
    )
    blocks = [block_of(k % 130, lambda p: p % 2) for k in range(mcus * len(components))]
    return blob.with_blocks(np.array(blocks, np.int16), [0] * len(blocks))


def test_sizes_out_of_range_are_refused() -> None:
    """A tile has 64 blocks at most; DCs before it 11 bits, and none without component."""
    for kind, most in (("grey", 64), ("4:4:4", 21), ("4:2:0", 10), ("4:2:2", 16)):
        dc_bits = (11, 0, 0) if kind == "grey" else (11, 11, 11)
        window = whole_of(kind, 130, 1)
        check_everywhere(full_blob(kind, 130, tile_mcus=most, dc_bits=dc_bits), window)
        for tile_mcus in (most + 1, 255):
            assert_refused(full_blob(kind, 130, tile_mcus=tile_mcus, dc_bits=dc_bits), window)
    window = whole_of("grey", 2, 1)
    blob = full_blob("grey", 2, tile_mcus=1)
    for dc_bits in ((12, 0, 0), (11, 1, 0), (11, 0, 1)):
        assert_refused(full_blob("grey", 2, tile_mcus=1, dc_bits=dc_bits), window)
        assert_refused(replace(blob, dc_bits=dc_bits), window)  # the tiles have no such bits
    colours = full_blob("4:4:4", 2, tile_mcus=1, dc_bits=(11, 11, 12))
    assert_refused(colours, whole_of("4:4:4", 2, 1))
    blob, window = valid()
    for change in ({"tile_mcus": 0}, {"length_bits": 0}, {"length_bits": 25}):
        assert_refused(replace(blob, **change), window)


def test_impossible_classes_are_refused() -> None:
    """Even if no block uses the class."""
    blob, window = valid("4:4:4")

    def with_class(own: BlockClass) -> Blob:
        return replace(blob, classes=(*blob.classes[:CLASSES], own, *blob.classes[CLASSES + 1 :]))

    check_everywhere(with_class(FULL), window)
    own: BlockClass
    for own in (
        (13,),
        (15,),
        *((12, nibble) for nibble in range(LOW_BITS_MAX + 1, ABSENT)),
        (12, *[0] * 62, 8),
        (12, *[7] * 63),
        (12, *[0] * 64),
        (12, *[0] * 254),
    ):
        assert_refused(with_class(own), window)


@pytest.mark.parametrize("tile", range(6))
def test_lengths_and_bytes_that_do_not_fit_are_refused(tile: int) -> None:
    blob, window = valid()
    check_everywhere(blob, window)
    for change in (-1, 1, 1000):
        lengths = [*blob.lengths]
        lengths[tile] += change
        assert_refused(replace(blob, length_bits=24, lengths=tuple(lengths)), window)
    tiles = [*blob.tiles]
    tiles[tile] += b"\0"  # more than its blocks
    longer = tuple(map(len, tiles))
    assert_refused(replace(blob, length_bits=24, tiles=tuple(tiles), lengths=longer), window)


def test_bytes_that_belong_to_no_tile_are_refused_where_all_is_read() -> None:
    blob, window = valid()
    data = blob.encode() + b"\0"
    with pytest.raises(ValueError, match=DAMAGE):
        check_blob(data)
    expected = expected_pixels(blob.encode(), window, 1)
    assert all(np.array_equal(own_pixels(data, window, 1, v), expected) for v in VERSIONS)


@pytest.mark.parametrize("kind", ["grey", "4:2:0"])
def test_every_flipped_bit_of_a_dc_before_a_tile_is_found(kind: str) -> None:
    blob, window = valid(kind)
    for tile in range(6):
        for bit in range(sum(blob.dc_bits)):
            tiles = [*blob.tiles]
            flipped = int.from_bytes(tiles[tile], "little") ^ 1 << bit
            tiles[tile] = flipped.to_bytes(len(tiles[tile]), "little")
            assert_refused(replace(blob, tiles=tuple(tiles)), window)


def test_coefficients_that_baseline_has_no_codes_for_are_refused() -> None:
    """check_blob and rebuild_jpeg refuse them; all decoder versions give the same pixels."""
    for position, value in ((0, 1024), (0, -1025), (1, 1024), (63, -1024)):
        block = [0] * 64
        block[position] = value
        data = grey_blob([FULL], [block]).encode()
        window = whole_of("grey", 1, 1)
        assert_refused(data, window, ())
        expected = own_pixels(data, window, 1, VERSIONS[0])
        assert expected is not None
        assert all(np.array_equal(own_pixels(data, window, 1, v), expected) for v in VERSIONS)


@pytest.mark.parametrize("kind", sorted(FACTORS))
def test_a_blob_that_is_cut_anywhere_is_refused(kind: str) -> None:
    tiled = tile_jpeg(encode(picture(*size_px(kind, 3, 2)), kind), 16)
    for kept in range(len(tiled.blob)):
        # decode_window leaves the other kinds to TurboJPEG
        versions = () if kind in ("4:4:0", "4:1:1") else (VERSIONS[kept % len(VERSIONS)],)
        assert_refused(tiled.blob[:kept], whole_of(kind, 3, 2), versions)


@pytest.mark.parametrize("marker", [0xDD, 0xC0, 0xC1, 0xC2, 0xD8, 0xF0])
@pytest.mark.parametrize("before", [b"\xff\xe0", b"\xff\xda"])
def test_segments_that_packing_does_not_write_are_refused(marker: int, before: bytes) -> None:
    """libjpeg refuses a second frame; with DRI it expects markers in the rebuilt scan."""
    tiled = tile_jpeg(encode(picture(40, 24), "grey"), 16)
    frame = tiled.blob.index(b"\xff\xc0")
    body = b"\0\4\0\1" if marker == 0xDD else tiled.blob[frame + 2 : frame + 13]
    at = tiled.blob.index(before)
    crafted = tiled.blob[:at] + bytes([0xFF, marker]) + body + tiled.blob[at:]
    assert_refused(crafted, whole_window(tiled))
