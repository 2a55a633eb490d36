"""Sources of every kind: recognised, re-coded without loss or converted, or refused."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from feeder.convert.prepare import SourceOptions, SourceSample, prepare_sample
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import Subsampling, tile_jpeg
from feeder.source.item_bytes import SNIFF_BYTES, SourceError, read_source, sniff_file, sniff_format
from tests.support.jpegs import cjpeg, ordinary, picture
from tests.support.sources import encoded, image, pixels

_OPTIONS = SourceOptions(tile_width_px=32, apply_exif=False, quality=95)
_UPRIGHT = SourceOptions(tile_width_px=32, apply_exif=True, quality=95)
_ORIENTATION = 0x0112


def _ordinary(sample: SourceSample) -> bytes:
    return ordinary(sample.tiled)


def _as_rgb_jpeg(rgb: Image.Image) -> bytes:
    return encoded(rgb, quality=95, subsampling=0)


def _turned(orientation: int, width: int = 64, height: int = 48, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return encoded(image(width, height), exif=exif, quality=90, **options)


def _refusal(data: bytes, options: SourceOptions = _OPTIONS, name: str = "a/b.jpg") -> SourceError:
    with pytest.raises(SourceError) as caught:
        prepare_sample(data, name, options)
    assert caught.value.reason
    assert " at 0x" not in caught.value.reason
    return caught.value


def _png16(grey_u16: "np.ndarray[Any, np.dtype[np.uint16]]") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    height, width = grey_u16.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in grey_u16)
    header = struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_baseline_jpeg_is_lossless_and_not_odd() -> None:
    source = encoded(image(), quality=80)
    sample = prepare_sample(source, "a/b.jpg", _OPTIONS)
    assert sample.flags == Oddity(0)
    assert sample.tiled.subsampling is Subsampling.S420
    assert np.array_equal(pixels(_ordinary(sample)), pixels(source))


@pytest.mark.parametrize(
    ("option", "flag"), [("-progressive", Oddity.PROGRESSIVE), ("-arithmetic", Oddity.ARITHMETIC)]
)
def test_progressive_and_arithmetic_become_baseline_without_loss(option: str, flag: Oddity) -> None:
    drawn = picture(40, 30)
    sample = prepare_sample(cjpeg(drawn, option), "a/b.jpg", _OPTIONS)
    assert sample.flags == flag
    assert np.array_equal(pixels(_ordinary(sample)), pixels(cjpeg(drawn)))


@pytest.mark.parametrize(
    ("format_name", "mode", "flag"),
    [
        ("PNG", "RGB", Oddity.PNG),
        ("PNG", "RGBA", Oddity.PNG),
        ("PNG", "LA", Oddity.PNG),
        ("PNG", "L", Oddity.PNG),
        ("PNG", "P", Oddity.PNG),
        ("PNG", "1", Oddity.PNG),
        ("WEBP", "RGB", Oddity.WEBP),
        ("WEBP", "RGBA", Oddity.WEBP),
        ("GIF", "P", Oddity.GIF),
        ("BMP", "RGB", Oddity.BMP),
        ("TIFF", "RGB", Oddity.TIFF),
        ("TIFF", "CMYK", Oddity.TIFF),
    ],
)
def test_other_formats_become_what_pillow_decodes(
    format_name: str, mode: str, flag: Oddity
) -> None:
    source = encoded(image().convert(mode), format_name)
    sample = prepare_sample(source, "a/b.jpg", _OPTIONS)
    assert sample.flags == flag | Oddity.WRONG_SUFFIX
    assert sample.tiled.subsampling is Subsampling.S444
    expected = _as_rgb_jpeg(Image.fromarray(pixels(source)))
    assert np.array_equal(pixels(_ordinary(sample)), pixels(expected))


def test_suffixes_are_compared_to_the_bytes() -> None:
    png = encoded(image(), "PNG")
    assert prepare_sample(png, "a/b.PNG", _OPTIONS).flags == Oddity.PNG
    assert prepare_sample(png, "a/b", _OPTIONS).flags == Oddity.PNG
    jpeg = encoded(image())
    assert prepare_sample(jpeg, "a/b.png", _OPTIONS).flags == Oddity.WRONG_SUFFIX
    assert prepare_sample(jpeg, "a/b.JPEG", _OPTIONS).flags == Oddity(0)


def test_alpha_is_dropped_not_blended() -> None:
    rgba = image().convert("RGBA")
    rgba.putalpha(0)
    sample = prepare_sample(encoded(rgba, "PNG"), "a/b.png", _OPTIONS)
    assert np.array_equal(pixels(_ordinary(sample)), pixels(_as_rgb_jpeg(image())))


def test_first_frame_of_an_animation_is_taken() -> None:
    first, second = image(seed=1).convert("P"), image(seed=2).convert("P")
    source = encoded(first, "GIF", save_all=True, append_images=[second])
    sample = prepare_sample(source, "a/b.gif", _OPTIONS)
    expected = _as_rgb_jpeg(Image.fromarray(pixels(encoded(first, "GIF"))))
    assert np.array_equal(pixels(_ordinary(sample)), pixels(expected))


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (16, 1))
    for source in (_png16(ramp), encoded(Image.fromarray(ramp), "TIFF")):
        decoded = pixels(_ordinary(prepare_sample(source, "a/b", _OPTIONS)))
        expected = np.round(ramp / 257.0)
        assert np.abs(decoded.mean(axis=2) - expected).max() <= 3  # JPEG at quality 95
        assert decoded.max() >= 253
        assert len(np.unique(decoded[..., 0])) > 40  # clipping would leave white


def test_floating_point_and_32_bit_images_are_refused() -> None:
    for kind in (np.float32, np.int32):
        source = encoded(Image.fromarray(np.ones((8, 8), kind)), "TIFF")
        assert _refusal(source).kind == "unsupported"


def test_cmyk_jpeg_is_converted_as_pillow_does() -> None:
    source = encoded(image().convert("CMYK"), quality=95)
    sample = prepare_sample(source, "a/b.jpg", _OPTIONS)
    assert sample.flags == Oddity.CMYK
    expected = _as_rgb_jpeg(Image.fromarray(pixels(source)))
    assert np.array_equal(pixels(_ordinary(sample)), pixels(expected))


def test_exif_of_cmyk_is_counted_or_applied() -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    source = encoded(image().convert("CMYK"), exif=exif)
    assert prepare_sample(source, "a/b.jpg", _OPTIONS).flags == Oddity.CMYK | Oddity.EXIF_IGNORED
    upright = prepare_sample(source, "a/b.jpg", _UPRIGHT)
    assert (upright.tiled.width, upright.tiled.height) == (30, 40)


def test_quality_applies_to_converted_images_only() -> None:
    low = SourceOptions(tile_width_px=32, apply_exif=False, quality=20)
    png, jpeg = encoded(image(), "PNG"), encoded(image())
    small, large = (prepare_sample(png, "a/b.png", o).tiled.blob for o in (low, _OPTIONS))
    assert len(small) < len(large)
    assert prepare_sample(jpeg, "a/b.jpg", low).tiled.blob == tile_jpeg(jpeg, 32).blob


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_ignored_and_counted_by_default(orientation: int) -> None:
    source = _turned(orientation)
    sample = prepare_sample(source, "a/b.jpg", _OPTIONS)
    assert np.array_equal(pixels(_ordinary(sample)), pixels(source))
    assert sample.flags == (Oddity.EXIF_IGNORED if orientation != 1 else Oddity(0))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_orientation_is_applied_without_loss_where_possible(orientation: int) -> None:
    source = _turned(orientation, subsampling=0)
    sample = prepare_sample(source, "a/b.jpg", _UPRIGHT)
    assert sample.flags == Oddity.EXIF_APPLIED
    with Image.open(io.BytesIO(source)) as opened:
        upright = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    # the IDCT of a turned block rounds in another order, which costs a level here and there
    difference = np.abs(pixels(_ordinary(sample)).astype(int) - upright.astype(int))
    assert difference.max() <= 2


def test_exif_turn_that_would_lose_edge_blocks_is_reencoded_and_counted() -> None:
    source = _turned(6, 61, 45, subsampling=0)
    sample = prepare_sample(source, "a/b.jpg", _UPRIGHT)
    assert sample.flags == Oddity.EXIF_REENCODED
    assert (sample.tiled.width, sample.tiled.height) == (45, 61)


def test_grey_jpeg_that_is_reencoded_stays_grey() -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    sample = prepare_sample(encoded(image(61, 45).convert("L"), exif=exif), "a/b.jpg", _UPRIGHT)
    assert sample.flags == Oddity.EXIF_REENCODED
    assert (sample.tiled.width, sample.tiled.height) == (45, 61)
    assert sample.tiled.subsampling is Subsampling.GREY


def test_exif_orientation_of_other_formats_is_applied_too() -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    sample = prepare_sample(encoded(image(), "PNG", exif=exif), "a/b.png", _UPRIGHT)
    assert (sample.tiled.width, sample.tiled.height) == (30, 40)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"hello, I am no image", "not-image"),
        (b"\xff\xd8", "not-image"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "truncated"),
        (b"\x89PNG\r\n\x1a\n", "corrupt"),
        (b"GIF89a", "corrupt"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "corrupt"),
    ],
)
def test_files_that_are_no_images_are_refused(data: bytes, kind: str) -> None:
    assert _refusal(data).kind == kind


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_truncated_files_are_refused(format_name: str) -> None:
    whole = encoded(image(120, 90), format_name)
    for share in (0.3, 0.6, 0.9):
        assert _refusal(whole[: int(len(whole) * share)]).kind == "truncated"


def test_truncated_progressive_and_cmyk_jpegs_are_refused() -> None:
    cmyk = encoded(image(120, 90).convert("CMYK"))
    progressive = encoded(image(120, 90), progressive=True)
    for whole in (cmyk, progressive):
        for cut in (whole[: len(whole) // 2], whole[: len(whole) * 2 // 3] + b"\xff\xd9"):
            assert _refusal(cut).kind in ("truncated", "corrupt")


def test_decompression_bombs_are_refused_by_their_headers() -> None:
    def png_of(width: int, height: int) -> bytes:
        data = bytearray(_png16(np.zeros((2, 2), np.uint16)))
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        return bytes(data)

    assert _refusal(png_of(20_000, 20_000)).kind == "too-large"
    assert _refusal(png_of(10_001, 10_000)).kind == "too-large"
    assert _refusal(png_of(70_000, 10)).kind == "too-large"
    jpeg = bytearray(encoded(image().convert("L")))
    sof = jpeg.index(b"\xff\xc0")
    jpeg[sof + 5 : sof + 9] = struct.pack(">HH", 50_000, 50_000)
    assert _refusal(bytes(jpeg)).kind == "too-large"
    cmyk = bytearray(encoded(image().convert("CMYK")))
    sof = cmyk.index(b"\xff\xc0")
    cmyk[sof + 5 : sof + 9] = struct.pack(">HH", 50_000, 50_000)
    assert _refusal(bytes(cmyk)).kind == "too-large"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_files_become_samples_or_source_errors_only(
    format_name: str, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(_WHOLE[format_name])
    for position, value in changes:
        data[16 + position % (len(data) - 16)] = value
    assert _outcome(bytes(data)) == _outcome(bytes(data))


def _outcome(data: bytes) -> tuple[bytes | str, str]:
    try:
        sample = prepare_sample(data, "a/b.jpg", _OPTIONS)
    except SourceError as error:
        return error.kind, error.reason
    return sample.tiled.blob, str(sample.flags)


_WHOLE = {
    name: encoded(image(40, 30), name)
    for name in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
}


def test_formats_are_recognised_by_their_first_bytes() -> None:
    for name, data in _WHOLE.items():
        assert sniff_format(data[:SNIFF_BYTES]) == name
    for data in (b"", b"\xff\xd8", b"BMP is a format", b"RIFF....WAVE", b"<svg"):
        assert sniff_format(data) is None


def test_unreadable_files_have_reasons(tmp_path: Path) -> None:
    def refusal(path: Path) -> tuple[str, str]:
        with pytest.raises(SourceError) as caught:
            read_source(os.fsencode(path), bytes_max=1000)
        return caught.value.kind, caught.value.reason

    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(1001))
    (tmp_path / "fine").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "dangling") == ("unreadable", "a dangling link")
    assert refusal(tmp_path / "missing") == ("unreadable", "no such file or directory")
    assert refusal(tmp_path) == ("unreadable", "is a directory")
    pipe = "it is a named pipe (FIFO), not a regular file"
    assert refusal(tmp_path / "pipe") == ("unreadable", pipe)
    assert refusal(tmp_path / "empty") == ("empty", "the file has no bytes")
    assert refusal(tmp_path / "large") == ("too-large", "1001 bytes, more than 1000")
    assert read_source(os.fsencode(tmp_path / "fine")) == b"x"
    for name in ("dangling", "pipe", "empty", "fine", "."):
        assert sniff_file(os.fsencode(tmp_path / name)) is None
