"""Decoding the tiles of a crop equals decoding the whole image and cutting."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from feeder.tiles import TileGrids, cover_boxes, join_segments, join_segments_reference
from tests.jpegs import SAMPLINGS, class_files, decode, encode, picture

KINDS = [*SAMPLINGS, "grey"]


@dataclass(frozen=True)
class Window:
    """One sample's tile window, as plain integers."""

    first_column: int
    end_column: int
    first_row: int
    end_row: int
    x: int
    y: int
    width: int
    height: int


def grids(**fields: int) -> TileGrids:
    return TileGrids(**{name: np.array([value]) for name, value in fields.items()})


def cover(grid: TileGrids, x: int, y: int, end_x: int, end_y: int, scale: int = 1) -> Window:
    windows = cover_boxes(grid, *(np.array([value]) for value in (x, y, end_x, end_y, scale)))
    return Window(**{f.name: int(getattr(windows, f.name)[0]) for f in fields(Window)})


def check_crop(
    tiled: TiledJpeg,
    whole: NDArray[np.uint8],
    box: tuple[int, int, int, int],
    scale: int,
) -> None:
    """``whole`` is the full decode at 1/scale; ``box`` is x, y, w, h in source pixels."""
    x, y, w, h = box
    grid = grids(
        width=tiled.width,
        height=tiled.height,
        tile_width_px=tiled.tile_mcus * tiled.mcu_width_px,
        tile_height_px=tiled.mcu_height_px,
        mcu_width_px=tiled.mcu_width_px,
        columns=tiled.tile_columns,
        rows=tiled.tile_rows,
        chroma_reach_px=int(tiled.subsampling.name in ("S422", "S420", "S440")),
    )
    window = cover(grid, x, y, x + w, y + h, scale)
    blob = np.frombuffer(tiled.segment_bytes.astype("<u2").tobytes() + tiled.jpeg, np.uint8)
    arguments = (
        blob,
        tiled.tile_columns,
        tiled.tile_rows,
        tiled.header_bytes,
        tiled.sof_offset,
        *(window.first_column, window.end_column, window.first_row, window.end_row),
        *(window.width, window.height),
    )
    joined, reference = np.empty((2, len(tiled.jpeg)), np.uint8)
    length = join_segments(*arguments, joined)
    assert length == join_segments_reference(*arguments, reference)
    assert np.array_equal(joined[:length], reference[:length])

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
                check_crop(tiled, whole, box, scale)


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
    check_crop(tile_jpeg(source, tile_width_px), decode(source, scale), (x, y, w, h), scale)


def test_window_covers_the_box_and_stays_inside() -> None:
    grid = grids(
        width=500,
        height=375,
        tile_width_px=32,
        tile_height_px=8,
        mcu_width_px=8,
        columns=16,
        rows=47,
        chroma_reach_px=0,
    )
    window = cover(grid, -5, -5, 9999, 9999)
    assert (window.first_column, window.end_column) == (0, 16)
    assert (window.first_row, window.end_row) == (0, 47)
    assert (window.width, window.height) == (512, 375)  # 500 px are 63 MCUs, the tiles hold 64
    inner = cover(grid, 32, 16, 64, 24)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    chroma = replace(grid, chroma_reach_px=np.array([1]))
    inner = cover(chroma, 33, 17, 63, 23)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    touching = cover(chroma, 32, 16, 64, 24)
    assert (touching.x, touching.y, touching.width, touching.height) == (0, 8, 96, 24)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mangled_blob_never_reads_or_writes_outside(data: st.DataObject) -> None:
    blob = bytearray(_TILED.segment_bytes.astype("<u2").tobytes() + _TILED.jpeg)
    for _ in range(data.draw(st.integers(1, 5))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(blob[: data.draw(st.integers(0, len(blob)))])
    small = st.integers(0, 9)
    out = np.full(data.draw(st.integers(0, len(_TILED.jpeg))) + 64, 0xAA, np.uint8)
    room = out[:-64]
    columns, rows, first_column, end_column, first_row, end_row = (
        data.draw(small | st.integers(0, 2**32 - 1)) for _ in range(6)
    )
    try:
        length = join_segments(
            np.frombuffer(cut, np.uint8),
            columns,
            rows,
            data.draw(st.integers(0, 2 * _TILED.header_bytes)),
            data.draw(st.integers(0, _TILED.header_bytes)),
            *(first_column, end_column, first_row, end_row),
            *(data.draw(st.integers(0, 70000)), 17),
            room,
        )
    except ValueError:
        pass
    else:
        assert length <= room.size
    assert (out[-64:] == 0xAA).all()


_TILED = tile_jpeg(encode(picture(200, 60)), 32)
