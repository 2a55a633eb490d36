"""Sources of every kind: recognised, re-coded without loss or converted, or refused."""

import os
import re
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.decode_picture import WHITE_U16
from feeder.dataset.format import Oddity
from feeder.dataset.manifest import load_manifest
from feeder.jpeg.recode import Subsampling
from feeder.source.item_bytes import SNIFF_BYTES, SourceError, read_source, sniff_file, sniff_format
from tests.convert.image_files import (
    FORMATS,
    as_packed,
    damaged,
    outcome,
    png16,
    prepare,
    refusal,
    stored,
    tiff16,
)
from tests.support.jpegs import cjpeg, picture
from tests.support.sources import call_feeder, encoded, image, pixels

_INCOMPLETE = Oddity.RARE_JPEG | Oddity.WARNED
_EOI = b"\xff\xd9"
_WHOLE = {name: encoded(image(), name) for name in FORMATS}


def _check_converted(data: bytes, flags: Oddity, name: str = "a/b.jpg") -> None:
    """Check that a file becomes what Pillow decodes, encoded once."""
    sample = prepare(data, name)
    assert sample.flags == flags
    assert sample.tiled.subsampling is Subsampling.S444
    assert np.array_equal(stored(sample), as_packed(Image.fromarray(pixels(data))))


def test_baseline_jpeg_is_lossless_and_not_odd() -> None:
    source = encoded(image(), quality=80)
    sample = prepare(source)
    assert sample.flags == Oddity(0)
    assert sample.tiled.subsampling is Subsampling.S420
    assert np.array_equal(stored(sample), pixels(source))


@pytest.mark.parametrize(
    ("option", "flag"), [("-progressive", Oddity.PROGRESSIVE), ("-arithmetic", Oddity.ARITHMETIC)]
)
def test_progressive_and_arithmetic_become_baseline_without_loss(option: str, flag: Oddity) -> None:
    drawn = picture(40, 30)
    sample = prepare(cjpeg(drawn, option))
    assert sample.flags == flag
    assert np.array_equal(stored(sample), pixels(cjpeg(drawn)))


def test_other_formats_become_what_pillow_decodes() -> None:
    modes = {"PNG": "RGB RGBA LA L P 1", "WEBP": "RGB RGBA", "GIF": "P", "BMP": "RGB"}
    for name, each in (modes | {"TIFF": "RGB CMYK"}).items():
        for mode in each.split():
            source = encoded(image().convert(mode), name)
            _check_converted(source, Oddity[name] | Oddity.WRONG_SUFFIX)
    _check_converted(encoded(image().convert("CMYK"), quality=95), Oddity.CMYK)


def test_suffixes_are_compared_to_the_bytes() -> None:
    png, jpeg = _WHOLE["PNG"], _WHOLE["JPEG"]
    flags = [prepare(png, name).flags for name in ("a/b.PNG", "a/b")]
    assert flags == [Oddity.PNG, Oddity.PNG]
    flags = [prepare(jpeg, name).flags for name in ("a/b.png", "a/b.JPEG")]
    assert flags == [Oddity.WRONG_SUFFIX, Oddity(0)]


def test_alpha_is_dropped_and_the_first_frame_of_an_animation_taken() -> None:
    rgba = image().convert("RGBA")
    rgba.putalpha(0)
    assert np.array_equal(stored(prepare(encoded(rgba, "PNG"))), as_packed(image()))
    first, second = image(seed=1).convert("P"), image(seed=2).convert("P")
    animation = encoded(first, "GIF", save_all=True, append_images=[second])
    expected = as_packed(Image.fromarray(pixels(encoded(first, "GIF"))))
    assert np.array_equal(stored(prepare(animation)), expected)


def _tiffs() -> dict[str, tuple[bytes, Image.Image]]:
    """Files and their images, by name: every compression and mode without loss."""
    rgb = image(61, 47)
    kinds = {
        **{f"{compression}-RGB": {"compression": compression} for compression in _LOSSLESS},
        **{f"{compression}-1": {"compression": compression} for compression in _BLACK_OR_WHITE},
        **{f"lzw-{mode}": {"compression": "tiff_lzw"} for mode in ("RGBA", "L", "P", "CMYK")},
        "predictor-RGB": {"compression": "tiff_lzw", "tiffinfo": {317: 2}},
        "big-RGB": {"big_tiff": True},
    }
    images = {name: rgb.convert(name.rpartition("-")[2]) for name in kinds}
    return {name: (encoded(images[name], "TIFF", **kinds[name]), images[name]) for name in kinds}


_BLACK_OR_WHITE = ("group3", "group4", "tiff_ccitt")
_LOSSLESS = ("tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "lzma", "zstd")


def test_tiffs_of_every_compression_survive_pack_verify_and_unpack(tmp_path: Path) -> None:
    files = _tiffs()
    folder = tmp_path / "source" / "tiffs"
    folder.mkdir(parents=True)
    for name, (data, _) in files.items():
        (folder / f"{name}.tif").write_bytes(data)
    packed = tmp_path / "packed"
    for verb, *arguments in (
        ("pack", folder.parent, packed),
        ("verify", packed),
        ("unpack", packed, tmp_path / "back"),
    ):
        result = call_feeder(str(verb), *arguments)
        assert result.returncode == 0, result.stderr
    manifest = load_manifest(packed)
    assert (manifest.samples, manifest.quarantined) == (len(files), 0)
    assert manifest.odd == {"tiff": len(files)}
    for name, (_, shown) in files.items():
        (back,) = (tmp_path / "back" / "tiffs").glob(f"{name}.*")
        assert np.array_equal(pixels(back.read_bytes()), as_packed(shown.convert("RGB"))), name


# What is refused


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"hello, I am no image", "not-image"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "truncated"),
        (b"\x89PNG\r\n\x1a\n", "corrupt"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "corrupt"),
    ],
)
def test_files_that_are_no_images_are_refused(data: bytes, kind: str) -> None:
    assert refusal(data) == kind


def test_truncated_files_are_refused() -> None:
    for name in FORMATS:
        whole = encoded(image(120, 90), name)
        for share in (0.3, 0.6, 0.9):
            assert refusal(whole[: int(len(whole) * share)]) == "truncated"
    cmyk = encoded(image(120, 90).convert("CMYK"))
    for whole in (cmyk, encoded(image(120, 90), progressive=True)):
        for cut in (whole[: len(whole) // 2], whole[: len(whole) * 2 // 3] + _EOI):
            assert refusal(cut) in ("truncated", "corrupt")


@pytest.mark.parametrize("compression", [*_LOSSLESS, "jpeg"])
def test_damaged_tiffs_are_refused_and_libtiff_writes_nothing(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = encoded(image(200, 150), "TIFF", compression=compression)
    for cut_bytes in (20, len(data) // 2, len(data) - 30):
        assert refusal(data[:cut_bytes]) in ("truncated", "corrupt", "unsupported")
    assert capfd.readouterr().err == ""


def test_decompression_bombs_are_refused_by_their_headers() -> None:
    for size in ((20_000, 20_000), (10_001, 10_000), (70_000, 10)):
        png = bytearray(png16(np.zeros((2, 2, 1), np.uint16), 0))
        png[16:24] = struct.pack(">II", *size)
        png[29:33] = struct.pack(">I", zlib.crc32(bytes(png[12:29])))
        assert refusal(bytes(png)) == "too-large"
    for mode in ("L", "CMYK"):
        jpeg = bytearray(encoded(image().convert(mode)))
        sof = jpeg.index(b"\xff\xc0")
        jpeg[sof + 5 : sof + 9] = struct.pack(">HH", 50_000, 50_000)
        assert refusal(bytes(jpeg)) == "too-large"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_files_become_samples_or_source_errors_only(
    name: str, changes: list[tuple[int, int]]
) -> None:
    data = damaged(_WHOLE[name], changes, 16)
    assert outcome(data) == outcome(data)


def test_formats_are_recognised_by_their_first_bytes() -> None:
    assert {name: sniff_format(data[:SNIFF_BYTES]) for name, data in _WHOLE.items()} == {
        name: name for name in FORMATS
    }
    for big in (b"II+\0\x08\0\0\0", b"MM\0+\0\x08\0\0"):
        assert sniff_format(big) == "TIFF"
    for data in (b"", b"\xff\xd8", b"BMP is a format", b"RIFF....WAVE", b"<svg"):
        assert sniff_format(data) is None


def test_unreadable_files_have_reasons(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(1001))
    (tmp_path / "fine").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    for name, kind, reason in (
        ("dangling", "unreadable", "a dangling link"),
        ("missing", "unreadable", "no such file or directory"),
        (".", "unreadable", "is a directory"),
        ("pipe", "unreadable", "it is a named pipe (FIFO), not a regular file"),
        ("empty", "empty", "the file has no bytes"),
        ("large", "too-large", "1001 bytes, more than 1000"),
    ):
        with pytest.raises(SourceError) as caught:
            read_source(os.fsencode(tmp_path / name), bytes_max=1000)
        assert (caught.value.kind, caught.value.reason) == (kind, reason)
        assert sniff_file(os.fsencode(tmp_path / name)) is None
    assert read_source(os.fsencode(tmp_path / "fine")) == b"x"


# JPEGs that Pillow decodes and a JPEG of one scan cannot hold: converted, not dropped


def _scan_starts(jpeg: bytes) -> list[int]:
    return [match.start() for match in re.finditer(rb"\xff\xda", jpeg)]


def test_progressive_jpegs_without_their_last_scans_are_what_pillow_decodes() -> None:
    whole = cjpeg(picture(64, 48), "-progressive")
    starts = _scan_starts(whole)
    assert len(starts) > 5
    for at in starts[1:]:
        _check_converted(whole[:at] + _EOI, _INCOMPLETE)
    for begin, end in pairwise([*starts, len(whole) - len(_EOI)]):
        assert refusal(whole[:end]) == "truncated"  # between scans, as in Pillow
        middle = whole[: (2 * begin + end) // 3]
        assert refusal(middle) == "truncated"
        assert refusal(middle + _EOI) == "truncated"


def test_arithmetic_jpegs_without_scans_are_refused_because_a_cut_one_looks_whole() -> None:
    whole = cjpeg(picture(64, 48), "-progressive", "-arithmetic")
    for at in _scan_starts(whole)[1:]:
        assert refusal(whole[:at] + _EOI) == "truncated"


@pytest.fixture
def three_scans(tmp_path: Path) -> bytes:
    """A baseline JPEG with a scan and a quantisation table for each component."""
    script = tmp_path / "scans.txt"
    script.write_text("0;\n1;\n2;\n")
    return cjpeg(picture(64, 48), "-scans", str(script), "-sample", "1x1")


def test_components_without_a_scan_are_what_pillow_decodes(three_scans: bytes) -> None:
    assert prepare(three_scans).flags == Oddity(0)
    for at in _scan_starts(three_scans)[1:]:
        _check_converted(three_scans[:at] + _EOI, _INCOMPLETE)


def test_tables_that_change_between_scans_are_what_pillow_decodes(three_scans: bytes) -> None:
    table = three_scans.index(b"\xff\xdb")
    coarse = b"\xff\xdb\x00\x43\x00" + bytes([40] * 64)
    fine = three_scans[table : table + 69]
    assert fine[2:5] == b"\x00\x43\x00"
    first, second, third = _scan_starts(three_scans)
    for at in (second, third):
        # the luma's table changes after its scan, and once more before the last
        _check_converted(three_scans[:at] + coarse + three_scans[at:], Oddity.RARE_JPEG)
    same = three_scans[:first] + fine + three_scans[first:third] + fine + three_scans[third:]
    assert prepare(same).flags == Oddity(0)
    # All components use table 0, which gets other values before the second scan, and its old ones
    # before the third.
    frame = three_scans.index(b"\xff\xc0")
    shared: Any = bytearray(three_scans)
    for component in range(3):
        shared[frame + 12 + 3 * component] = 0
    shared = bytes(shared)
    in_turns = shared[:second] + coarse + shared[second:third] + fine + shared[third:]
    _check_converted(in_turns, Oddity.RARE_JPEG)


# Levels of 16 bits a sample


_GREY, _COLOUR, _GREY_ALPHA, _COLOUR_ALPHA = 0, 2, 4, 6  # colour types of PNG


def _ramp(high: int, channels: int = 1) -> NDArray[np.uint16]:
    """Levels 0..high."""
    ramp = np.linspace(0, high, 64).round().astype(np.uint16)
    return np.broadcast_to(ramp[None, :, None], (16, 64, channels)).copy()


@pytest.mark.parametrize("high", [255, 1023, 4095, 65535])
def test_grey_is_scaled_by_the_chosen_white_level(high: int) -> None:
    ramp = _ramp(high)
    grey = Image.fromarray(ramp[..., 0])
    tiffs = (encoded(grey, "TIFF", compression=c) for c in (None, "tiff_lzw", "tiff_adobe_deflate"))
    for data in (png16(ramp, _GREY), *tiffs):
        sample = prepare(data, png16_max=high)
        assert np.array_equal(stored(sample), as_packed(ramp / high * 255))
        assert (sample.level_max, Oddity.CLIPPED in sample.flags) == (high, False)
        dark = prepare(data)
        assert np.array_equal(stored(dark), as_packed(ramp / 65535 * 255))
        assert dark.level_max == high


def test_levels_above_white_are_clipped_and_counted() -> None:
    ramp = _ramp(9000)
    sample = prepare(png16(ramp, _GREY), "a", png16_max=4095)
    assert sample.flags == Oddity.PNG | Oddity.CLIPPED
    assert np.array_equal(stored(sample), as_packed(np.minimum(ramp / 4095 * 255, 255)))


@pytest.mark.parametrize("high", [255, 4095, 65535])
def test_colour_is_scaled_from_all_its_bits_where_a_white_level_is_chosen(high: int) -> None:
    ramp = _ramp(high, 4)
    ramp[..., 1] = ramp[:, ::-1, 1]
    ramp[..., 3] = 65535
    rgb = np.ascontiguousarray(ramp[..., :3])
    pngs = png16(rgb, _COLOUR), png16(ramp, _COLOUR_ALPHA)
    for data in (*pngs, tiff16(rgb, "<"), tiff16(rgb, ">")):
        expected = rgb // 256 if high == WHITE_U16 else rgb / high * 255
        assert np.array_equal(stored(prepare(data, png16_max=high)), as_packed(expected))
        as_pillow = prepare(data)
        assert np.array_equal(stored(as_pillow), as_packed(rgb // 256))
        assert as_pillow.level_max == high | 255


def test_sixteen_bits_of_which_pillow_reads_eight_are_refused_where_they_are_to_be_scaled() -> None:
    data = png16(_ramp(4095, 2), _GREY_ALPHA)
    assert prepare(data).level_max == 4095
    kind, reason = outcome(data, png16_max=4095)[:2]
    assert kind == "unsupported"
    assert str(reason).startswith("16 bits a sample, of which Pillow reads 8")


@pytest.mark.parametrize("maximum", [1, 200, 4095])
def test_pgm_and_ppm_declare_their_white_level(maximum: int) -> None:
    for channels, kinds in ((1, ("P2", "P5")), (3, ("P3", "P6"))):
        ramp = _ramp(maximum, channels)
        for kind in kinds:
            plain = kind in ("P2", "P3")
            body = " ".join(map(str, ramp.ravel())).encode()
            binary = ramp.astype(">u2" if maximum > 255 else "u1").tobytes()
            data = f"{kind}\n# made here\n64 16\n{maximum}\n".encode() + (body if plain else binary)
            sample = prepare(data, "a", png16_max=4095)
            assert (sample.flags, sample.level_max) == (Oddity.PPM, 0)
            shown = stored(sample).astype(int)
            assert np.abs(shown - as_packed(ramp / maximum * 255)).max() <= 4


def test_tiff_of_twelve_bits_declares_its_white_level() -> None:
    ramp = _ramp(4095)
    sample = prepare(tiff16(ramp, "<", bits=12))
    assert np.array_equal(stored(sample), as_packed(ramp / 4095 * 255))
    assert sample.level_max == 0


def test_ordinary_images_have_no_level_and_those_of_32_bits_are_refused() -> None:
    for name in ("PNG", "JPEG", "TIFF"):
        assert prepare(encoded(Image.new("RGB", (16, 16)), name)).level_max == 0
    for kind in (np.float32, np.int32):
        tiff = encoded(Image.fromarray(np.ones((8, 8), kind)), "TIFF")
        assert outcome(tiff)[0] == "unsupported"
