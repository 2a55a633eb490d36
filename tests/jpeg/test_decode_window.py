"""Every version of Feeder's decoder gives TurboJPEG's bytes.

``own_pixels`` checks each time that only the rows of pixels are written.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.exact.windows import (
    Window,
    expected_pixels,
    is_left_to_turbojpeg,
    own_pixels,
    scales_of,
    whole_window,
    window_of,
)
from tests.support.blobs import Blob
from tests.support.coefficient_jpegs import coefficient_jpeg, draw_blocks, mcu_grid, size_px
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import cjpeg, class_files, encode, mcus_of, picture

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


@settings(max_examples=400, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


@pytest.mark.parametrize("kind", KINDS)
def test_windows_at_every_edge(kind: str) -> None:
    for number, width in enumerate((1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 161)):
        height = 1 + 37 * number % 150
        jpeg = hard_jpeg(number, kind, width, height, 1 + number * 7)
        tiled = tile_jpeg(jpeg, TILE_WIDTHS_PX[number % 4])
        mcus, rows = mcus_of(tiled)
        middle, tile = mcus // 2, Blob.parse(tiled.blob).tile_mcus
        for across in ((0, mcus), (mcus - 1, mcus), (middle, middle + 1), (0, min(tile, mcus))):
            for down in ((0, rows), (rows - 1, rows), (rows // 2, rows)):
                window = window_of(tiled, *across, *down)
                for scale in scales_of(window):
                    check_window(tiled, window, scale, is_ycc=kind != "rgb")


def test_every_window_of_an_image() -> None:
    tiled = tile_jpeg(hard_jpeg(3, "4:2:0", 75, 42, 90), 32)
    mcus, rows = mcus_of(tiled)
    for first_mcu, end_mcu in ((a, b) for b in range(1, mcus + 1) for a in range(b)):
        for first_row, end_row in ((a, b) for b in range(1, rows + 1) for a in range(b)):
            window = window_of(tiled, first_mcu, end_mcu, first_row, end_row)
            for scale in scales_of(window):
                check_window(tiled, window, scale)


def test_windows_of_real_images(imagenet_sample: Path) -> None:
    rng = np.random.Generator(np.random.Philox(5))
    for path in class_files(imagenet_sample)[::3]:
        tiled = tile_jpeg(path.read_bytes(), 32)
        edges = [
            sorted(int(edge) for edge in rng.choice(count + 1, 2, replace=False))
            for count in mcus_of(tiled)
        ]
        check_window(tiled, window_of(tiled, *edges[0], *edges[1]), int(rng.choice(SCALES)))


@pytest.mark.parametrize("quality", [1, 5, 20])
def test_sixteen_bit_quantisers_of_cjpeg(quality: int) -> None:
    noise = np.random.Generator(np.random.Philox(1)).integers(0, 256, (90, 130, 3), np.uint8)
    tiled = tile_jpeg(cjpeg(noise, "-quality", str(quality), "-sample", "2x2"), 32)
    assert b"\xff\xdb\x00\x83\x10" in tiled.blob
    for scale in SCALES:
        check_window(tiled, whole_window(tiled), scale)


@pytest.mark.parametrize(
    "options", [["-progressive"], ["-optimize"], ["-arithmetic"], ["-restart", "1"]]
)
def test_other_codings_of_the_source(options: list[str]) -> None:
    tiled = tile_jpeg(cjpeg(picture(130, 90), *options, "-sample", "2x1"), 64)
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
