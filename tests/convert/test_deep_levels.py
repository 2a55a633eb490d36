"""Images with 16 bits a sample become 8 bits by the white level that is chosen or declared."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.deep_levels import WHITE_U16
from feeder.convert.prepare import SourceOptions, SourceSample, prepare_sample
from feeder.dataset.format import Oddity
from feeder.source.item_bytes import SourceError
from tests.support.jpegs import ordinary
from tests.support.sources import encoded, pixels

_Levels = NDArray[np.uint16]
_GREY, _COLOUR, _GREY_ALPHA, _COLOUR_ALPHA = 0, 2, 4, 6  # colour types of PNG


def png16(levels: _Levels, colour_type: int) -> bytes:
    """Return a PNG of levels (height, width, channels)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checked = kind + body
        return struct.pack(">I", len(body)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width, _ = levels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff16(levels: _Levels, order: str, bits: int = 16) -> bytes:
    """Return an uncompressed TIFF of RGB levels (height, width, 3), or grey ones of ``bits``."""
    height, width, channels = levels.shape
    body = levels.astype(order + "u2").tobytes()
    if bits == 12:  # two samples in three bytes
        even, odd = levels.reshape(-1, 2).T
        body = (
            np.stack([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255], 1)
            .astype(np.uint8)
            .tobytes()
        )
    shorts = {258: [bits] * channels, 262: [2 if channels == 3 else 1], 277: [channels]}
    longs = {256: width, 257: height, 259: 1, 273: 8, 278: height, 279: len(body)}
    at = 8 + len(body) + 2 + 12 * (len(shorts) + len(longs)) + 4
    entries = []
    for tag in sorted(shorts | longs):
        if tag in longs:
            entries.append(struct.pack(order + "HHII", tag, 4, 1, longs[tag]))
        elif len(shorts[tag]) == 1:
            entries.append(struct.pack(order + "HHIHH", tag, 3, 1, shorts[tag][0], 0))
        else:
            entries.append(struct.pack(order + "HHII", tag, 3, 3, at))
    mark = b"II*\0" if order == "<" else b"MM\0*"
    directory = struct.pack(order + "H", len(entries)) + b"".join(entries) + bytes(4)
    start = mark + struct.pack(order + "I", 8 + len(body))
    return start + body + directory + struct.pack(order + "3H", *[bits] * 3)


def _ramp(high: int, channels: int = 1) -> _Levels:
    """Return levels 0..high in steps that look alike in all channels but the first."""
    ramp = np.linspace(0, high, 64).round().astype(np.uint16)
    return np.broadcast_to(ramp[None, :, None], (16, 64, channels)).copy()


def _prepare(data: bytes, **options: Any) -> SourceSample:
    chosen = SourceOptions(tile_width_px=32, apply_exif=False, quality=95, **options)
    return prepare_sample(data, "a", chosen)


def _shown(sample: SourceSample) -> NDArray[np.int64]:
    return pixels(ordinary(sample.tiled)).astype(np.int64)


def _as_packed(level_u8: NDArray[np.float64]) -> NDArray[np.int64]:
    rgb = np.broadcast_to(level_u8.round().astype(np.uint8), (*level_u8.shape[:2], 3))
    jpeg = encoded(Image.fromarray(np.ascontiguousarray(rgb)), quality=95, subsampling=0)
    return pixels(jpeg).astype(np.int64)


@pytest.mark.parametrize("high", [255, 1023, 4095, 65535])
def test_grey_is_scaled_by_the_chosen_white_level(high: int) -> None:
    ramp = _ramp(high)
    for data in (png16(ramp, _GREY), encoded(Image.fromarray(ramp[..., 0]), "TIFF")):
        sample = _prepare(data, png16_max=high)
        assert np.array_equal(_shown(sample), _as_packed(ramp / high * 255))
        assert (sample.level_max, Oddity.CLIPPED in sample.flags) == (high, False)
        dark = _prepare(data)
        assert np.array_equal(_shown(dark), _as_packed(ramp / 65535 * 255))
        assert dark.level_max == high


def test_levels_above_white_are_clipped_and_counted() -> None:
    ramp = _ramp(4096)
    sample = _prepare(png16(ramp, _GREY), png16_max=4095)
    assert sample.flags == Oddity.PNG | Oddity.CLIPPED
    assert np.array_equal(_shown(sample), _as_packed(np.minimum(ramp / 4095 * 255, 255)))


@pytest.mark.parametrize("high", [255, 4095, 65535])
def test_colour_is_scaled_from_all_its_bits_where_a_white_level_is_chosen(high: int) -> None:
    ramp = _ramp(high, 4)
    ramp[..., 1] = ramp[:, ::-1, 1]
    ramp[..., 3] = 65535
    rgb = np.ascontiguousarray(ramp[..., :3])
    for data in (
        png16(rgb, _COLOUR),
        png16(ramp, _COLOUR_ALPHA),
        tiff16(rgb, "<"),
        tiff16(rgb, ">"),
    ):
        sample = _prepare(data, png16_max=high)
        expected = rgb // 256 if high == WHITE_U16 else rgb / high * 255
        assert np.array_equal(_shown(sample), _as_packed(expected))
        as_pillow = _prepare(data)
        assert np.array_equal(_shown(as_pillow), _as_packed(rgb // 256))
        assert as_pillow.level_max == high | 255


def test_sixteen_bits_of_which_pillow_reads_eight_are_refused_where_they_are_to_be_scaled() -> None:
    data = png16(_ramp(4095, 2), _GREY_ALPHA)
    assert _prepare(data).level_max == 4095
    with pytest.raises(SourceError, match="unsupported: 16 bits a sample, of which Pillow reads 8"):
        _prepare(data, png16_max=4095)


@pytest.mark.parametrize("maximum", [1, 15, 200, 255, 4095, 65535])
def test_pgm_and_ppm_declare_their_white_level(maximum: int) -> None:
    for channels, kinds in ((1, ("P2", "P5")), (3, ("P3", "P6"))):
        ramp = _ramp(maximum, channels)
        for kind in kinds:
            plain = kind in ("P2", "P3")
            body = " ".join(map(str, ramp.ravel())).encode()
            stored = ramp.astype(">u2" if maximum > 255 else "u1").tobytes()
            data = f"{kind}\n# made here\n64 16\n{maximum}\n".encode() + (body if plain else stored)
            sample = _prepare(data, png16_max=4095)
            assert sample.flags == Oddity.PPM
            assert sample.level_max == 0
            assert np.abs(_shown(sample) - _as_packed(ramp / maximum * 255)).max() <= 4


def test_tiff_of_twelve_bits_declares_its_white_level() -> None:
    ramp = _ramp(4095)
    sample = _prepare(tiff16(ramp, "<", bits=12))
    assert np.array_equal(_shown(sample), _as_packed(ramp / 4095 * 255))
    assert sample.level_max == 0


def test_ordinary_images_have_no_level() -> None:
    for name in ("PNG", "JPEG", "TIFF"):
        assert _prepare(encoded(Image.new("RGB", (16, 16)), name)).level_max == 0
