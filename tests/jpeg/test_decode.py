"""The reused decoder gives PyTurboJPEG's pixels, and refuses damaged images."""

from collections.abc import Callable

import numpy as np
import pytest

from feeder.jpeg.decode import decode_rgbx, decode_rgbx_reference
from feeder.jpeg.recode import tile_jpeg
from tests.support.jpegs import SAMPLINGS, encode, ordinary, picture


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [*SAMPLINGS, "grey"])
def test_equals_the_reference(kind: str, scale: int) -> None:
    for width, height in [(1, 1), (17, 40), (160, 64), (321, 57)]:
        tiled = tile_jpeg(encode(picture(width, height), kind), 32)
        jpeg = np.frombuffer(ordinary(tiled), np.uint8)
        row_bytes, rows = 4 * -(-width // scale), -(-height // scale)
        for stride in (row_bytes, row_bytes + 20):
            room = stride * (rows - 1) + row_bytes
            got, expected = np.full((2, room + 16), 171, np.uint8)
            decode_rgbx(jpeg, width, height, scale, stride, got)
            decode_rgbx_reference(jpeg, width, height, scale, stride, expected)
            assert np.array_equal(got, expected)
            assert (got[room:] == 171).all()


@pytest.mark.parametrize("decode", [decode_rgbx, decode_rgbx_reference])
def test_damage_is_an_error_and_the_next_image_decodes(decode: Callable[..., None]) -> None:
    jpeg = np.frombuffer(encode(picture(64, 48)), np.uint8)
    out = np.empty(4 * 64 * 48, np.uint8)
    for bad in (jpeg[: jpeg.size // 2], jpeg[:100], jpeg[:0], np.zeros(500, np.uint8)):
        with pytest.raises(ValueError, match=r"\w"):
            decode(bad, 64, 48, 1, 256, out)
    decode(jpeg, 64, 48, 1, 256, out)


def test_an_output_that_is_too_small_is_refused() -> None:
    jpeg = np.frombuffer(encode(picture(64, 48)), np.uint8)
    with pytest.raises(ValueError, match="must hold"):
        decode_rgbx(jpeg, 64, 48, 1, 256, np.empty(4 * 64 * 48 - 1, np.uint8))
    with pytest.raises(ValueError, match="must hold"):
        decode_rgbx(jpeg, 64, 48, 1, 255, np.empty(4 * 64 * 48, np.uint8))
