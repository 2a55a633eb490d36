"""Decoding the window of a crop equals decoding the whole image and cutting."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.jpeg.crop_decode import McuGrids, cover_boxes, rebuild_jpeg
from feeder.jpeg.recode import MCU_PX, TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.support.jpegs import SAMPLINGS, cjpeg, class_files, decode, encode, picture

KINDS = [*SAMPLINGS, "grey", "rgb"]


def encode_kind(pixels: NDArray[np.uint8], kind: str) -> bytes:
    return cjpeg(pixels, "-rgb") if kind == "rgb" else encode(pixels, kind, 75)


@dataclass(frozen=True)
class Window:
    """One sample's window, as plain integers."""

    first_mcu: int
    end_mcu: int
    first_row: int
    end_row: int
    x: int
    y: int
    width: int
    height: int


def grids(**fields: int) -> McuGrids:
    return McuGrids(**{name: np.array([value]) for name, value in fields.items()})


def cover(grid: McuGrids, x: int, y: int, end_x: int, end_y: int, scale: int = 1) -> Window:
    arrays = (np.array([value]) for value in (x, y, end_x, end_y, scale))
    windows = cover_boxes(grid, *arrays)
    return Window(**{f.name: int(getattr(windows, f.name)[0]) for f in fields(Window)})


def check_crop(
    tiled: TiledJpeg, whole: NDArray[np.uint8], box: tuple[int, int, int, int], scale: int
) -> None:
    """``whole`` is the full decode at 1/scale; ``box`` is x, y, w, h in source pixels."""
    x, y, w, h = box
    mcu_width_px, mcu_height_px = MCU_PX[tiled.subsampling]
    grid = grids(
        width=tiled.width,
        height=tiled.height,
        mcu_width_px=mcu_width_px,
        mcu_height_px=mcu_height_px,
        chroma_reach_px=int(tiled.subsampling.name in ("S422", "S420", "S440")),
    )
    window = cover(grid, x, y, x + w, y + h, scale)
    mcus = window.first_mcu, window.end_mcu, window.first_row, window.end_row
    part = decode(rebuild_jpeg(tiled.blob, *mcus, window.width, window.height), scale)
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
        source = encode_kind(picture(width, height, seed=width), kind)
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
    source = encode_kind(picture(width, height), kind)
    tiled = tile_jpeg(source, tile_width_px)
    check_crop(tiled, decode(source, scale), (x, y, w, h), scale)


def test_window_covers_the_box_and_stays_inside() -> None:
    grid = grids(
        width=500,
        height=375,
        mcu_width_px=8,
        mcu_height_px=8,
        chroma_reach_px=0,
    )
    window = cover(grid, -5, -5, 9999, 9999)
    assert (window.first_mcu, window.end_mcu) == (0, 63)
    assert (window.first_row, window.end_row) == (0, 47)
    assert (window.width, window.height) == (500, 375)
    inner = cover(grid, 32, 16, 64, 24)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    within = cover(grid, 41, 17, 73, 23)
    assert (within.x, within.y, within.width, within.height) == (40, 16, 40, 8)
    chroma = replace(grid, chroma_reach_px=np.array([1]))
    inner = cover(chroma, 33, 17, 63, 23)
    assert (inner.x, inner.y, inner.width, inner.height) == (32, 16, 32, 8)
    touching = cover(chroma, 32, 16, 64, 24)
    assert (touching.x, touching.y, touching.width, touching.height) == (24, 8, 48, 24)
