"""Decoding the tiles of a crop equals decoding the whole image and cutting."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.jpeg.crop_decode import (
    DECODER_SLACK_BYTES,
    TileGrids,
    check_segments,
    cover_boxes,
    join_segments,
    joined_room_bytes,
)
from feeder.jpeg.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.support.jpegs import SAMPLINGS, class_files, decode, encode, picture
from tests.support.reference_join import join_reference

KINDS = [*SAMPLINGS, "grey"]


@dataclass(frozen=True)
class Window:
    """One sample's tile window, as plain integers."""

    first_mcu: int
    end_mcu: int
    first_row: int
    end_row: int
    x: int
    y: int
    width: int
    height: int


def grids(**fields: int) -> TileGrids:
    return TileGrids(**{name: np.array([value]) for name, value in fields.items()})


def cover(grid: TileGrids, x: int, y: int, end_x: int, end_y: int, scale: int = 1) -> Window:
    arrays = (np.array([value]) for value in (x, y, end_x, end_y, scale))
    windows = cover_boxes(grid, *arrays, for_joining=True)
    return Window(**{f.name: int(getattr(windows, f.name)[0]) for f in fields(Window)})


def check_crop(
    tiled: TiledJpeg,
    whole: NDArray[np.uint8],
    box: tuple[int, int, int, int],
    scale: int,
    *,
    compare: bool = False,
) -> None:
    """``whole`` is the full decode at 1/scale; ``box`` is x, y, w, h in source pixels.

    ``compare`` also compares the JPEG with the reference's, which is slow.
    """
    x, y, w, h = box
    grid = grids(
        width=tiled.width,
        height=tiled.height,
        mcu_width_px=tiled.mcu_width_px,
        mcu_height_px=tiled.mcu_height_px,
        tile_mcus=tiled.layout.tile_mcus,
        columns=tiled.layout.tile_columns,
        rows=tiled.layout.tile_rows,
        chroma_reach_px=int(tiled.subsampling.name in ("S422", "S420", "S440")),
    )
    window = cover(grid, x, y, x + w, y + h, scale)
    joined = np.full(joined_room_bytes(len(tiled.blob), tiled.layout.tile_rows), 171, np.uint8)
    mcus = window.first_mcu, window.end_mcu
    rows = window.first_row, window.end_row
    size = window.width, window.height
    length = join_segments(tiled.blob, *tiled.layout, *mcus, *rows, *size, joined)
    assert not joined[length : length + DECODER_SLACK_BYTES].any()
    if compare:
        expected_bytes = join_reference(tiled.blob, tiled.layout, mcus, rows, size)
        assert joined[:length].tobytes() == expected_bytes

    part = decode(joined[:length], scale)
    first_x, first_y = x // scale, y // scale
    end_x, end_y = -(-(x + w) // scale), -(-(y + h) // scale)
    left, top = window.x // scale, window.y // scale
    expected = whole[first_y:end_y, first_x:end_x]
    got = part[first_y - top : end_y - top, first_x - left : end_x - left]
    assert np.array_equal(got, expected), (box, scale, window)


@pytest.mark.parametrize("tile_width_px", TILE_WIDTHS_PX)
@pytest.mark.parametrize("kind", KINDS)
def test_crops_around_every_boundary(kind: str, tile_width_px: int) -> None:
    rng = np.random.Generator(np.random.Philox(tile_width_px))
    edges = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 66, 127, 129, 161]
    for width in edges:
        height = edges[int(rng.integers(len(edges)))]
        source = encode(picture(width, height, seed=width), kind)
        tiled = tile_jpeg(source, tile_width_px)
        for scale in (1, 2, 4, 8):
            whole = decode(source, scale)
            boxes = [(0, 0, width, height), (width - 1, height - 1, 1, 1), (0, 0, 1, 1)]
            for _ in range(6):
                w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
                x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
                boxes += [(x, y, w, h), (width - w, y, w, h), (x, height - h, w, h)]
            for box in boxes:
                check_crop(tiled, whole, box, scale, compare=scale == 1 and width < 40)


def test_crops_of_every_real_image(imagenet_sample: Path) -> None:
    rng = np.random.Generator(np.random.Philox(7))
    for path in class_files(imagenet_sample):
        source = path.read_bytes()
        tiled = tile_jpeg(source, 32)
        for scale in (1, 2):
            whole = decode(source, scale)
            for _ in range(2):
                w = int(rng.integers(1, tiled.width + 1))
                h = int(rng.integers(1, tiled.height + 1))
                x = int(rng.integers(tiled.width - w + 1))
                y = int(rng.integers(tiled.height - h + 1))
                check_crop(tiled, whole, (x, y, w, h), scale)


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 140),
    height=st.integers(1, 70),
    kind=st.sampled_from(KINDS),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    scale=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
def test_any_crop_of_any_image(
    width: int, height: int, kind: str, tile_width_px: int, scale: int, data: st.DataObject
) -> None:
    w, h = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
    x, y = data.draw(st.integers(0, width - w)), data.draw(st.integers(0, height - h))
    source = encode(picture(width, height), kind, quality=60)
    tiled = tile_jpeg(source, tile_width_px)
    check_crop(tiled, decode(source, scale), (x, y, w, h), scale, compare=True)


def test_window_covers_the_box_and_stays_inside() -> None:
    grid = grids(
        width=500,
        height=375,
        mcu_width_px=8,
        mcu_height_px=8,
        tile_mcus=4,
        columns=16,
        rows=47,
        chroma_reach_px=0,
    )
    window = cover(grid, -5, -5, 9999, 9999)
    assert (window.first_mcu, window.end_mcu) == (0, 64)
    assert (window.first_row, window.end_row) == (0, 47)
    assert (window.width, window.height) == (500, 375)
    inner = cover(grid, 32, 16, 64, 24)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    within = cover(grid, 41, 17, 73, 23)  # from the second MCU of a tile to the second of the next
    assert (within.x, within.y, within.width, within.height) == (40, 16, 40, 8)
    assert cover(grid, 41, 17, 81, 23).width == 56, "the third MCU of four: the tile is not cut"
    chroma = replace(grid, chroma_reach_px=np.array([1]))
    inner = cover(chroma, 33, 17, 63, 23)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    touching = cover(chroma, 32, 16, 64, 24)
    assert (touching.x, touching.y, touching.width, touching.height) == (24, 8, 48, 24)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_blob_never_reads_or_writes_outside_its_buffers(data: st.DataObject) -> None:
    tiled = data.draw(st.sampled_from(_TILED))
    blob = bytearray(tiled.blob)
    for _ in range(data.draw(st.integers(0, 5))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(blob[: data.draw(st.just(len(blob)) | st.integers(0, len(blob)))])
    guard = 64
    most = joined_room_bytes(len(tiled.blob), tiled.layout.tile_rows)
    out = np.full(data.draw(st.just(most) | st.integers(0, most)) + guard, 0xAA, np.uint8)
    room = out[:-guard]
    any_32_bits = st.integers(0, 9) | st.integers(0, 2**32 - 1)
    columns, rows, tile_mcus, *_ = tiled.layout
    numbers = [*tiled.layout, 0, columns * tile_mcus, 0, rows, 99, 17]
    for damaged in data.draw(st.sets(st.integers(0, len(numbers) - 1), max_size=3)):
        numbers[damaged] = data.draw(any_32_bits)
    layout, window = numbers[: len(tiled.layout)], numbers[len(tiled.layout) :]
    try:
        length = join_segments(cut, *layout, *window, room)
    except ValueError:
        pass
    else:
        assert length + DECODER_SLACK_BYTES <= room.size
    assert (out[-guard:] == 0xAA).all()
    mcus = data.draw(st.just(25) | any_32_bits)
    try:
        check_segments(cut, *layout, mcus)
    except ValueError:
        pass
    else:
        assert len(cut) == len(tiled.blob)


def test_wrong_offset_of_the_frame_header_is_refused() -> None:
    tiled = _TILED[0]
    out = np.empty(joined_room_bytes(len(tiled.blob), tiled.layout.tile_rows), np.uint8)
    window = (0, tiled.layout.tile_columns * tiled.layout.tile_mcus, 0, 1, 200, 8)
    join_segments(tiled.blob, *tiled.layout, *window, out)
    for wrong in (0, 2, tiled.layout.sof_offset - 1, tiled.layout.sof_offset + 1):
        with pytest.raises(ValueError, match="do not fit its record"):
            join_segments(tiled.blob, *tiled.layout._replace(sof_offset=wrong), *window, out)


@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_wrong_lengths_and_predictions(kind: str) -> None:
    tiled = tile_jpeg(encode(picture(200, 60), kind), 32)
    mcus = -(-tiled.width // tiled.mcu_width_px)
    check_segments(tiled.blob, *tiled.layout, mcus)
    for byte in range(0, tiled.layout.tables_bytes, 3):
        wrong = bytearray(tiled.blob)
        wrong[byte] ^= 1
        with pytest.raises(ValueError, match=r"segment|no sense"):
            check_segments(wrong, *tiled.layout, mcus)
    for at in (-1, -8):
        wrong = bytearray(tiled.blob)
        wrong[at] = 1
        with pytest.raises(ValueError, match="segment"):
            check_segments(wrong, *tiled.layout, mcus)


_TILED = [tile_jpeg(encode(picture(200, 60), kind), 32) for kind in ("4:4:4", "4:2:0", "grey")]
