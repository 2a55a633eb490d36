"""Whatever packing accepts has one picture, whichever decoder, version and scale decodes it.

IDCTs agree until one of their sums overflows or saturates (``native/block_limits.h``). Packing
converts images beyond that, which no encoder makes of 8-bit pixels.
"""

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.prepare import SourceOptions, SourceSample, prepare_sample
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import RecodeError, tile_jpeg
from tests.exact.run import compare_damaged, differing_bytes, total
from tests.exact.windows import expected_pixels, own_pixels, scales_of, whole_window
from tests.support.jpegs import SAMPLINGS, cjpeg

_SIDE = 64


def _grey(at: object, value: int, around: int = 128) -> NDArray[np.uint8]:
    pixels = np.full((_SIDE, _SIDE), around, np.uint8)
    pixels[at] = value  # type: ignore[index]
    return np.repeat(pixels[..., None], 3, axis=2)


_BLACK = _grey((0, 0), 0, around=0)
_STRIPES = _grey((slice(None), slice(None, None, 2)), 255, around=0)
_DOTS = _grey((slice(3, None, 8), slice(4, None, 8)), 250)


def _with_quantisers(jpeg: bytes, table: NDArray[np.int64]) -> bytes:
    """Replace all quantisation tables; values above 255 make them of 16 bits."""
    is_wide = bool(table.max() > 255)
    values = table.astype(">u2" if is_wide else "u1").tobytes()
    out = jpeg
    at = jpeg.find(b"\xff\xdb")
    while at >= 0:
        segment = bytes([out[at + 4] | is_wide << 4]) + values
        end = at + 2 + int.from_bytes(out[at + 2 : at + 4])
        out = out[: at + 2] + (2 + len(segment)).to_bytes(2) + segment + out[end:]
        at = out.find(b"\xff\xdb", at + 4 + len(segment))
    return out.replace(b"\xff\xc0\x00", b"\xff\xc1\x00") if is_wide else out


def _check_agreement(sample: SourceSample) -> None:
    window = whole_window(sample.tiled)
    for scale in scales_of(window):
        expected = expected_pixels(sample.tiled.blob, window, scale)
        for version in ("portable", None):
            own = own_pixels(sample.tiled.blob, window, scale, version)
            assert own is None or np.array_equal(own, expected), (scale, version)


def _prepare(jpeg: bytes) -> SourceSample:
    return prepare_sample(
        jpeg, "a.jpg", SourceOptions(tile_width_px=32, apply_exif=False, quality=95)
    )


@pytest.mark.parametrize(
    ("pixels", "factor", "accepted"),
    [
        pytest.param(_BLACK, 1, True, id="DC of -1024"),
        pytest.param(_BLACK, 2, False, id="DC of -2048"),
        pytest.param(_STRIPES, 2, True, id="a norm of 2040"),
        pytest.param(_STRIPES, 3, False, id="a norm of 3060"),
        pytest.param(_DOTS, 4, True, id="samples of 488"),
        pytest.param(_DOTS, 5, False, id="samples of 610"),
        pytest.param(_DOTS, 60_000, False, id="quantisers above 32767"),
        pytest.param(_BLACK, 0, True, id="quantisers of zero"),
    ],
)
def test_coefficients_times_quantisers_have_a_limit(
    pixels: NDArray[np.uint8], factor: int, accepted: bool
) -> None:
    codings = itertools.cycle([["-progressive"], [], ["-arithmetic"]])
    for sampling, coding in zip(SAMPLINGS.values(), codings, strict=False):
        source = cjpeg(pixels, "-quality", "100", "-sample", sampling, *coding)
        jpeg = _with_quantisers(source, np.full(64, factor))
        sample = _prepare(jpeg)
        _check_agreement(sample)
        assert (Oddity.RARE_JPEG not in sample.flags) == accepted
        if not accepted:
            with pytest.raises(RecodeError, match="out of range for an 8-bit image") as caught:
                tile_jpeg(jpeg, 32)
            assert caught.value.kind == "unsupported"


def test_quantisers_of_absent_coefficients_do_not_matter() -> None:
    table = np.full(64, 65_535)
    table[0] = 1
    sample = _prepare(_with_quantisers(cjpeg(_BLACK, "-quality", "100"), table))
    assert not sample.flags
    _check_agreement(sample)


def test_what_is_converted_looks_as_pillow_decodes_it() -> None:
    jpeg = _with_quantisers(cjpeg(_DOTS, "-quality", "100"), np.full(64, 9))
    with Image.open(io.BytesIO(jpeg)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    tiled = _prepare(jpeg).tiled
    window = whole_window(tiled)
    got = expected_pixels(tiled.blob, window, 1).reshape(_SIDE, _SIDE, 4)[..., :3]
    assert np.abs(got - expected).mean() < 2


def test_what_encoders_make_of_extreme_pictures_is_accepted() -> None:
    rng = np.random.Generator(np.random.Philox(1))
    pictures = [
        rng.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8),
        rng.integers(0, 2, (_SIDE, _SIDE, 3), np.uint8) * np.uint8(255),
        _STRIPES,
        _BLACK,
        255 - _BLACK,
        ((np.indices((_SIDE, _SIDE)).sum(0) % 2)[..., None] * [255, 0, 255]).astype(np.uint8),
    ]
    for pixels in pictures:
        for quality in ("1", "2", "5", "10", "100"):
            for sampling in ("1x1", "2x2"):
                tile_jpeg(cjpeg(pixels, "-baseline", "-quality", quality, "-sample", sampling), 32)


def test_damaged_images(imagenet_sample: Path) -> None:
    """``make exact DAMAGED=100000`` is the long run."""
    log: list[str] = []
    outcomes, tally = compare_damaged(imagenet_sample, 300, 0, log.append)
    assert not log
    assert differing_bytes(tally) == 0
    assert total(tally)["decoded"] > 500
    assert set(outcomes) == {"as they are", "converted", "refused"}  # and none UNLIKE_PILLOW
