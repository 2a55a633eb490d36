"""Every version of Feeder's decoder gives TurboJPEG's bytes, and a window's are the image's.

``own_pixels`` checks each time that only the rows of pixels are written.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.jpeg.crop_decode import McuGrids, cover_boxes, rebuild_jpeg
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import MCU_PX, TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.exact.windows import (
    Window,
    expected_pixels,
    is_left_to_turbojpeg,
    own_pixels,
    scales_of,
    whole_window,
    window_of,
)
from tests.support.coefficient_jpegs import coefficient_jpeg, draw_blocks, mcu_grid, size_px
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import (
    SAMPLINGS,
    cjpeg,
    decode,
    encode,
    mcus_of,
    picture,
)

SCALES = (1, 2, 4, 8)


def check_window(
    tiled: TiledJpeg,
    window: Window,
    scale: int,
    *,
    spare_bytes: int = 0,
    slack: int = 0,
    is_ycc: bool = True,
) -> None:
    """Compare all versions, each with other bytes after the blob."""
    expected = None
    if not is_left_to_turbojpeg(tiled, window, scale, is_ycc=is_ycc):
        expected = expected_pixels(tiled.blob, window, scale)
    for number, version in enumerate(VERSIONS):
        after = (slack + 77 * number) % 256
        got = own_pixels(tiled.blob, window, scale, version, spare_bytes=spare_bytes, slack=after)
        assert (got is None) == (expected is None), (window, scale, version)
        assert np.array_equal(got, expected) or got is None, (window, scale, version)


@settings(max_examples=250)
@given(
    kind=st.sampled_from(KINDS),
    width=st.integers(1, 24) | st.integers(1, 200),
    height=st.integers(1, 24) | st.integers(1, 200),
    quality=st.integers(1, 100),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_window_of_any_image(
    kind: str,
    width: int,
    height: int,
    quality: int,
    tile_width_px: int,
    seed: int,
    data: st.DataObject,
) -> None:
    tiled = tile_jpeg(hard_jpeg(seed, kind, width, height, quality), tile_width_px)
    mcus, rows = mcus_of(tiled)
    first_mcu = data.draw(st.just(0) | st.integers(0, mcus - 1))
    first_row = data.draw(st.just(0) | st.integers(0, rows - 1))
    end_mcu = data.draw(st.just(mcus) | st.integers(first_mcu + 1, mcus))
    end_row = data.draw(st.just(rows) | st.integers(first_row + 1, rows))
    window = window_of(tiled, first_mcu, end_mcu, first_row, end_row)
    check_window(
        tiled,
        window,
        data.draw(st.sampled_from(scales_of(window))),
        spare_bytes=data.draw(st.integers(0, 70)),
        slack=data.draw(st.integers(0, 255)),
        is_ycc=kind != "rgb",
    )


@given(
    kind=st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "grey"]),
    mcus=st.integers(1, 9),
    rows=st.integers(1, 3),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    ac_limit=st.sampled_from([1, 2, 3, 20, 127, 128, 129, 480]),
    share=st.sampled_from([0, 0.01, 0.1, 0.5, 1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_coefficients_of_a_picture(
    kind: str, mcus: int, rows: int, tile_width_px: int, ac_limit: int, share: float, seed: int
) -> None:
    components, *_ = mcu_grid(kind, 1, 1)
    rng = np.random.Generator(np.random.Philox(seed))
    blocks = draw_blocks(rng, mcus * rows * len(components), 232, ac_limit, share)
    norms = np.linalg.norm(blocks[:, 1:].astype(float), axis=1)
    ac = blocks[:, 1:] / np.maximum(1, norms / 480)[:, None]  # samples are within -509..509
    blocks[:, 1:] = np.trunc(ac)
    source = coefficient_jpeg(kind, *size_px(kind, mcus, rows), blocks, 1)
    tiled = tile_jpeg(source, tile_width_px)
    window = whole_window(tiled)
    for scale in scales_of(window):
        check_window(tiled, window, scale)


@pytest.mark.parametrize(
    "options",
    [
        *(["-quality", quality, "-sample", "2x2"] for quality in ("1", "5", "20")),
        *([option, "-sample", "2x1"] for option in ("-progressive", "-optimize", "-arithmetic")),
        ["-restart", "1", "-sample", "2x1"],
    ],
    ids=" ".join,
)
def test_coarse_quantisers_and_other_codings_of_the_source(options: list[str]) -> None:
    noise = np.random.Generator(np.random.Philox(1)).integers(0, 256, (90, 130, 3), np.uint8)
    tiled = tile_jpeg(cjpeg(noise, *options), 32)
    assert (b"\xff\xdb\x00\x83\x10" in tiled.blob) == ("-quality" in options)  # of 16 bits
    for scale in SCALES:
        check_window(tiled, whole_window(tiled), scale)


def patched(
    tiled: TiledJpeg, *, marker: int = 0, ids: bytes = b"", transform: int = -1
) -> TiledJpeg:
    """Return a sample whose APP0 or APP14 has another marker, or Adobe transform; other ids."""
    blob, at = bytearray(tiled.blob), 2
    while blob[at] == 0xFF:
        body = at + 4
        if blob[at + 1] in (0xE0, 0xEE):
            if transform >= 0:
                blob[body + 11] = transform
            blob[at + 1] = marker or blob[at + 1]
        first = {0xC0: body + 6, 0xDA: body + 1}.get(blob[at + 1])
        if first is not None and ids:
            step = 3 if blob[at + 1] == 0xC0 else 2
            blob[first : first + 3 * step : step] = ids
        at += 2 + int.from_bytes(blob[at + 2 : at + 4])
    return replace(tiled, blob=bytes(blob))


JFIF = tile_jpeg(encode(picture(40, 24)), 16)
ADOBE = tile_jpeg(hard_jpeg(0, "rgb", 40, 24, 90), 16)


@pytest.mark.parametrize(
    ("tiled", "is_ycc"),
    [
        (JFIF, True),
        (patched(JFIF, ids=b"RGB"), True),
        (patched(JFIF, marker=0xE5), True),
        (patched(JFIF, marker=0xE5, ids=b"RGB"), False),
        (patched(JFIF, marker=0xE5, ids=b"rgb"), True),
        (patched(JFIF, marker=0xE5, ids=b"\0\1\2"), True),
        (ADOBE, False),
        (patched(ADOBE, ids=b"\1\2\3"), False),
        (patched(ADOBE, transform=1), True),
        (patched(ADOBE, marker=0xED), False),
        (patched(ADOBE, marker=0xED, ids=b"\1\2\3"), True),
    ],
)
def test_colours_of_three_components_are_as_libjpeg_guesses(tiled: TiledJpeg, is_ycc: bool) -> None:
    check_window(tiled, whole_window(tiled), 1, is_ycc=is_ycc)


@pytest.mark.parametrize("version", VERSIONS)
def test_other_kinds_and_little_chroma_are_left_to_turbojpeg(version: str) -> None:
    def declines(kind: str, width: int, scale: int) -> bool:
        tiled = tile_jpeg(hard_jpeg(0, kind, width, 20, 80), 16)
        return own_pixels(tiled.blob, whole_window(tiled), scale, version) is None

    assert all(declines(kind, 40, 1) for kind in ("4:4:0", "4:1:1", "rgb"))
    assert [declines("4:2:0", width, 1) for width in (1, 4, 5, 6)] == [True, True, False, False]
    assert [declines("4:2:2", width, 2) for width in (8, 9, 10)] == [True, False, False]
    assert declines("4:2:2", 200, 8)
    assert not any(declines("4:2:0", 40, scale) for scale in (1, 2, 4, 8))
    assert not any(declines(kind, 1, 1) for kind in ("4:4:4", "grey"))


@settings(max_examples=150)
@given(
    width=st.integers(1, 170),
    height=st.integers(1, 70),
    kind=st.sampled_from([*SAMPLINGS, "grey", "rgb"]),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    scale=st.sampled_from(SCALES),
    data=st.data(),
)
def test_the_window_of_any_crop_decodes_to_its_part_of_the_whole_image(
    width: int, height: int, kind: str, tile_width_px: int, scale: int, data: st.DataObject
) -> None:
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    end_x = data.draw(st.just(width) | st.integers(x + 1, width))
    end_y = data.draw(st.just(height) | st.integers(y + 1, height))
    shown = picture(width, height)
    source = cjpeg(shown, "-rgb") if kind == "rgb" else encode(shown, kind, 75)
    tiled = tile_jpeg(source, tile_width_px)
    mcu_width_px, mcu_height_px = MCU_PX[tiled.subsampling]
    grid = McuGrids(
        width=np.array([width]),
        height=np.array([height]),
        mcu_width_px=np.array([mcu_width_px]),
        mcu_height_px=np.array([mcu_height_px]),
        chroma_reach_px=np.array([int(tiled.subsampling.name in ("S422", "S420", "S440"))]),
    )
    first_mcu, end_mcu, first_row, end_row, left, top, *size = cover(
        grid, x, y, end_x, end_y, scale
    )
    part = decode(rebuild_jpeg(tiled.blob, first_mcu, end_mcu, first_row, end_row, *size), scale)
    rows, columns = slice(y // scale, -(-end_y // scale)), slice(x // scale, -(-end_x // scale))
    whole = np.zeros_like(decode(source, scale))
    whole[top // scale :, left // scale :][: len(part), : part.shape[1]] = part
    assert np.array_equal(whole[rows, columns], decode(source, scale)[rows, columns])


def cover(grid: McuGrids, *box: int) -> list[int]:
    """Return the fields of the window of left, top, right, bottom and scale."""
    window = cover_boxes(grid, *(np.array([value]) for value in box))
    return [int(getattr(window, field.name)[0]) for field in fields(window)]


@pytest.mark.parametrize(
    ("reach", "box", "window"),
    [
        (0, (-5, -5, 9999, 9999), [0, 63, 0, 47, 0, 0, 500, 375]),
        (0, (32, 16, 64, 24), [4, 8, 2, 3, 32, 16, 32, 8]),
        (0, (41, 17, 73, 23), [5, 10, 2, 3, 40, 16, 40, 8]),
        (1, (33, 17, 63, 23), [4, 8, 2, 3, 32, 16, 32, 8]),
        (1, (32, 16, 64, 24), [3, 9, 1, 4, 24, 8, 48, 24]),
    ],
)
def test_a_window_has_no_more_blocks_than_its_box_needs(
    reach: int, box: tuple[int, ...], window: list[int]
) -> None:
    sides = {"width": 500, "height": 375, "mcu_width_px": 8, "mcu_height_px": 8}
    grid = McuGrids(**{k: np.array([v]) for k, v in (sides | {"chroma_reach_px": reach}).items()})
    assert cover(grid, *box, 1) == window
