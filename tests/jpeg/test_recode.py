"""Re-coding any JPEG into tiles and back loses nothing; equal images have equal checksums."""

import hashlib
import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feeder.jpeg import _native
from feeder.jpeg.crop_decode import check_blob
from feeder.jpeg.recode import (
    MCU_PX,
    TILE_WIDTHS_PX,
    RecodeError,
    Subsampling,
    TiledJpeg,
    tile_jpeg,
    transform_jpeg,
)
from tests.support.blobs import Blob
from tests.support.coefficient_jpegs import (
    FACTORS,
    coefficient_jpeg,
    draw_blocks,
    mcu_grid,
    size_px,
)
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import (
    SAMPLINGS,
    check_blob_of,
    cjpeg,
    class_files,
    decode,
    encode,
    jpegtran,
    mcus_of,
    ordinary,
    picture,
)


def check_geometry(tiled: TiledJpeg, tile_width_px: int = 32) -> None:
    """The blob is of the image, its tiles have their full width, and ``Blob`` encodes it again."""
    mcu_width_px, _ = MCU_PX[tiled.subsampling]
    mcus, _ = mcus_of(tiled)
    assert check_blob_of(tiled) == min(max(1, tile_width_px // mcu_width_px), mcus)
    blob = Blob.parse(tiled.blob)
    assert blob.encode() == tiled.blob
    assert b"\xff\xc4" not in blob.header


def test_real_images_come_back_with_their_pixels(imagenet_sample: Path) -> None:
    sizes = np.zeros(2)
    for path in class_files(imagenet_sample)[::2]:
        source = path.read_bytes()
        tiled = tile_jpeg(source, 32)
        check_geometry(tiled)
        assert np.array_equal(decode(ordinary(tiled)), decode(source)), path.name
        assert _native.tile_jpeg(source, 32, True)[0] == tiled.blob, "the portable encoder"
        sizes += len(source), len(tiled.blob)
    assert sizes[1] / sizes[0] < 1.04  # without Huffman codes; with the best ones 1.015


@settings(max_examples=60)
@given(
    sampling=st.sampled_from([*SAMPLINGS, "grey"]),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    width=st.integers(1, 140) | st.sampled_from([1, 7, 8, 16, 17, 31, 65, 130]),
    height=st.integers(1, 50) | st.sampled_from([1, 2, 8, 9, 15, 33, 47]),
)
def test_coefficients_survive_at_any_size(
    sampling: str, tile_width_px: int, width: int, height: int
) -> None:
    source = encode(picture(width, height), sampling)
    tiled = tile_jpeg(source, tile_width_px)
    assert (tiled.width, tiled.height) == (width, height)
    assert tiled.subsampling == Subsampling([*SAMPLINGS, "grey"].index(sampling))
    check_geometry(tiled, tile_width_px)
    back = ordinary(tiled)
    assert np.array_equal(decode(back), decode(source))
    plain, again = (jpegtran(jpeg, "-copy", "none", "-optimize") for jpeg in (source, back))
    assert again == plain


@settings(max_examples=150)
@given(
    kind=st.sampled_from(sorted(FACTORS)),
    mcus=st.integers(1, 9),
    rows=st.integers(1, 3),
    tile_width_px=st.sampled_from(TILE_WIDTHS_PX),
    dc_limit=st.sampled_from([0, 1, 60, 1024]),
    ac_limit=st.sampled_from([1, 2, 3, 20, 127, 128, 129, 1023]),
    share=st.sampled_from([0, 0.01, 0.1, 0.5, 1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_coefficients_survive(
    kind: str,
    mcus: int,
    rows: int,
    tile_width_px: int,
    dc_limit: int,
    ac_limit: int,
    share: float,
    seed: int,
) -> None:
    """With quantisers of zero, any coefficients that baseline can code are a valid picture's."""
    components, *_ = mcu_grid(kind, 1, 1)
    rng = np.random.Generator(np.random.Philox(seed))
    blocks = draw_blocks(rng, mcus * rows * len(components), dc_limit, ac_limit, share)
    source = coefficient_jpeg(kind, *size_px(kind, mcus, rows), blocks, 0)
    tiled = tile_jpeg(source, tile_width_px)
    check_geometry(tiled, tile_width_px)
    blob = Blob.parse(tiled.blob)
    assert np.array_equal(blob.read_blocks(), blocks)
    assert tiled.content_checksum == blob.content_checksum(), "xxh64 of the documented bytes"
    again = tile_jpeg(ordinary(tiled), tile_width_px)
    assert again.blob == tiled.blob
    assert _native.tile_jpeg(source, tile_width_px, True)[0] == tiled.blob, "the portable encoder"


GOLDEN = {
    "4:1:1": "103ddd1605b34cd54def0b51723e0f78",
    "4:2:0": "ac71bda0e066021198832c017480ebd5",
    "4:2:2": "20f44f363774c0612e33c40391d1f4d3",
    "4:4:0": "9483f9234f348d7a99b58e2da6822574",
    "4:4:4": "a7ffc2678fd7798348e328b2d92183d3",
    "grey": "3bab7e95ec97d0b2f65706d6c785d0a8",
}
"""MD5 of what ``feeder unpack`` wrote of images in shard format 2."""


def test_rebuilt_jpegs_are_those_of_format_2() -> None:
    for number, (kind, expected) in enumerate(GOLDEN.items()):
        components, mcus, rows = mcu_grid(kind, 150, 75)
        rng = np.random.Generator(np.random.Philox(number))
        blocks = draw_blocks(rng, len(components) * mcus * rows, 60, 3, 0.2)
        source = coefficient_jpeg(kind, 150, 75, blocks, 8)
        assert hashlib.md5(ordinary(tile_jpeg(source, 32))).hexdigest() == expected, kind
    # which always have an end of block code
    blocks = draw_blocks(np.random.Generator(np.random.Philox(9)), 6, 60, 3, 0.2)
    blocks[:, 63] = 1
    rebuilt = ordinary(tile_jpeg(coefficient_jpeg("grey", 24, 16, blocks, 8), 32))
    assert hashlib.md5(rebuilt).hexdigest() == "80e40a46b9eff60db284bde4fb09efc0"


@pytest.mark.parametrize(
    "options",
    [
        *("-progressive", "-arithmetic", "-arithmetic -progressive", "-optimize", "-rgb"),
        *("-restart 1", "-restart 3B", "-quality 3", "-quality 100"),
    ],
)
def test_every_coding_becomes_baseline_without_loss(options: str) -> None:
    source = cjpeg(picture(101, 67), "-sample", "2x2", *options.split())
    tiled = tile_jpeg(source, 32)
    check_geometry(tiled)
    assert tiled.was_progressive == ("-progressive" in options)
    assert tiled.was_arithmetic == ("-arithmetic" in options)
    assert np.array_equal(decode(ordinary(tiled)), decode(source))


def test_reading_stops_at_damage_before_hundreds_of_scans() -> None:
    jpeg = bytearray(cjpeg(picture(53, 37), "-progressive", "-sample", "1x1"))
    size_at = jpeg.index(b"\xff\xc2") + 5
    jpeg[size_at : size_at + 4] = (2000).to_bytes(2, "big") + (8000).to_bytes(2, "big")
    last_scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    taken_s = []
    for scans in (0, 400):
        started_s = time.process_time()
        with pytest.raises(RecodeError) as caught:
            tile_jpeg(bytes(jpeg[:-2] + last_scan * scans + b"\xff\xd9"), 32)
        taken_s.append(time.process_time() - started_s)
        assert caught.value.kind == "truncated"
    assert taken_s[1] < 3 * taken_s[0] + 0.1, "without stopping it was eight times as long"


def test_subsampling_is_derived_from_ratios_not_factors() -> None:
    source = cjpeg(picture(40, 40), "-sample", "2x1,2x1,2x1")
    tiled = tile_jpeg(source, 32)
    assert tiled.subsampling == Subsampling.S444
    assert np.array_equal(decode(ordinary(tiled)), decode(source))


def _cmyk() -> bytes:
    buffer = io.BytesIO()
    Image.new("CMYK", (20, 20), (10, 20, 30, 40)).save(buffer, "JPEG")
    return buffer.getvalue()


def _giant() -> bytes:
    source = encode(picture(32, 32))
    at = source.index(b"\xff\xc0")
    return source[: at + 5] + b"\xff\xdc\xff\xdc" + source[at + 9 :]


def _without_its_last_scan() -> bytes:
    source = cjpeg(picture(64, 64), "-progressive")
    return source[: source.rindex(b"\xff\xda")] + b"\xff\xd9"


def _beyond_baseline() -> bytes:
    """Each DC difference may be legal and their sum exceed the range of a picture of 8 bits."""
    source = encode(np.full((8, 16, 3), 128, np.uint8), "grey", 100)
    # size 10, -1000, end of block (T.81 K.3)
    bits = 2 * ("11111110" + f"{-1000 + 1023:010b}" + "1010")
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\x00")
    return source[: source.index(b"\xff\xda") + 10] + scan + b"\xff\xd9"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: b"", "corrupt"),
        (lambda: b"\xff\xd8", "truncated"),
        (lambda: b"GIF89a" + bytes(100), "corrupt"),
        *((lambda cut=cut: encode(picture(120, 90))[:cut], "truncated") for cut in (2000, -40, -2)),
        (_without_its_last_scan, "incomplete"),
        (_cmyk, "cmyk"),
        (_giant, "too-large"),
        (_beyond_baseline, "unsupported"),
    ],
)
def test_other_files_and_damage_are_refused_with_a_reason(
    make: Callable[[], bytes], kind: str
) -> None:
    with pytest.raises(RecodeError) as caught:
        tile_jpeg(make(), 32)
    assert caught.value.kind == kind
    assert caught.value.reason


def test_stray_bytes_are_not_damage() -> None:
    source = encode(picture(120, 90))
    after_app0 = 4 + int.from_bytes(source[4:6])
    tiled = tile_jpeg(source[:after_app0] + b"\x00\x12\x34" + source[after_app0:], 32)
    assert tiled.warnings
    assert np.array_equal(decode(ordinary(tiled)), decode(source))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_orientation_is_applied_without_loss_or_not_at_all(orientation: int) -> None:
    pillow = [0, 0, 0, 3, 1, 5, 4, 6, 2][orientation]  # Image.Transpose of each EXIF orientation
    source = encode(picture(48, 32), quality=95)
    turned = transform_jpeg(source, orientation)
    assert turned is not None
    expected = np.asarray(Image.fromarray(decode(source)).transpose(pillow)).astype(int)
    assert decode(turned).shape == expected.shape
    assert np.abs(decode(turned) - expected).max() <= 2  # IDCT of turned blocks rounds
    odd = transform_jpeg(encode(picture(45, 31)), orientation)
    assert (odd is None) == (orientation != 5)  # a transposition alone moves no partial block


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey"])
def test_the_scan_is_as_short_as_libjpegs_best(sampling: str) -> None:
    for width, height, quality in [(64, 64, 60), (256, 128, 100), (97, 61, 5)]:
        source = encode(picture(width, height), sampling, quality)
        back = ordinary(tile_jpeg(source, 32))
        best = jpegtran(source, "-copy", "none", "-optimize")
        # DC tables must have a code for each of the 12 sizes, and rows begin at 0
        assert len(back) < 1.01 * len(best) + 40, (width, height)


@pytest.mark.parametrize("kind", KINDS)
def test_the_content_checksum_does_not_depend_on_how_an_image_is_packed(kind: str) -> None:
    source = hard_jpeg(5, kind, 150, 40, 90)
    packed = [tile_jpeg(source, tile_width_px) for tile_width_px in TILE_WIDTHS_PX]
    packed.append(tile_jpeg(ordinary(packed[0]), 32))
    for options in (["-optimize"], ["-progressive"], ["-arithmetic"], ["-restart", "1"]):
        packed.append(tile_jpeg(jpegtran(source, *options), 32))
    assert len({tiled.content_checksum for tiled in packed}) == 1
    assert {check_blob(tiled.blob)[0] for tiled in packed} == {packed[0].content_checksum}
    assert len({tiled.blob for tiled in packed}) > 1
