"""Images with 16 bits a sample become 8 bits by the white level that is chosen or declared."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.deep_levels import WHITE_U16
from feeder.dataset.format import Oddity
from tests.convert.image_files import as_packed, outcome, png16, prepare, stored, tiff16
from tests.support.sources import encoded

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
    ramp = _ramp(4096)
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


@pytest.mark.parametrize("maximum", [1, 15, 200, 255, 4095, 65535])
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
