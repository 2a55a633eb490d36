"""Loss by choice: the longer side, the quality and the subsampling of images, and what is kept."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.lossy import SUBSAMPLINGS, SubsamplingName, limit_size
from feeder.convert.prepare import SourceSample
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import Subsampling, tile_jpeg
from tests.convert.image_files import as_packed, damaged, outcome, prepare, stored
from tests.support.jpegs import cjpeg, encode, picture
from tests.support.sources import encoded, image

_REENCODED = Oddity.REENCODED
_RESIZED = Oddity.RESIZED | Oddity.REENCODED
_STORED = {
    "4:4:4": Subsampling.S444,
    "4:2:2": Subsampling.S422,
    "4:2:0": Subsampling.S420,
    "4:4:0": Subsampling.S440,
    "4:1:1": Subsampling.S411,
}


def _size(sample: SourceSample) -> tuple[int, int]:
    return sample.tiled.width, sample.tiled.height


def _decoded(data: bytes, mode: str = "RGB") -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return opened.convert(mode)


def _once(upright: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The pixels of a picture that was resized once and encoded once."""
    return as_packed(upright.resize(size, Image.Resampling.LANCZOS))


# --max-side


def test_larger_jpeg_is_resized_and_encoded_once() -> None:
    source = encode(picture(90, 61), "4:4:4")
    sample = prepare(source, max_side=50)
    assert _size(sample) == (50, 34)
    assert sample.flags == _RESIZED
    assert np.array_equal(stored(sample), _once(_decoded(source), (50, 34)))


@pytest.mark.parametrize("sampling", _STORED)
def test_jpeg_within_the_limit_keeps_every_coefficient_and_larger_ones_their_subsampling(
    sampling: str,
) -> None:
    source = encode(picture(90, 61), sampling)
    sample = prepare(source, max_side=90)
    assert sample.flags == Oddity(0)
    assert sample.tiled == tile_jpeg(source, 32)
    rare = sampling in ("4:4:0", "4:1:1")
    kept = Subsampling.S444 if rare else _STORED[sampling]
    assert prepare(source, max_side=50).tiled.subsampling is kept


def test_converted_images_are_resized_and_encoded_once() -> None:
    for name, modes in {"PNG": "RGB RGBA L", "GIF": "P", "BMP": "RGB", "TIFF": "RGB"}.items():
        for mode in modes.split():
            source = encoded(image(90, 61).convert(mode), name)
            sample = prepare(source, f"a/b.{name.lower()}", max_side=50)
            assert sample.flags == Oddity[name] | Oddity.RESIZED
            assert sample.tiled.subsampling is Subsampling.S444
            assert np.array_equal(stored(sample), _once(_decoded(source), (50, 34)))
    for source, flag in (
        (encoded(image(90, 61).convert("CMYK")), Oddity.CMYK),
        (cjpeg(picture(90, 61), "-sample", "4x2"), Oddity.RARE_JPEG),
    ):
        assert prepare(source).flags == flag
        assert prepare(source, reencode=True).flags == flag
        sample = prepare(source, max_side=50)
        assert sample.flags == flag | Oddity.RESIZED
        assert np.array_equal(stored(sample), _once(_decoded(source), (50, 34)))
    png = encoded(image(90, 61), "PNG")
    within = prepare(png, "a/b.png", max_side=90, reencode=True)
    assert within.flags == Oddity.PNG
    assert within.tiled == prepare(png, "a/b.png").tiled


def test_grey_jpeg_stays_grey_and_needs_no_subsampling() -> None:
    source = encode(picture(90, 61), "grey")
    for options in ({"max_side": 50}, {"max_side": 50, "subsampling": "420"}, {"reencode": True}):
        sample = prepare(source, **options)
        assert sample.tiled.subsampling is Subsampling.GREY
        assert Oddity.REENCODED in sample.flags
    expected = _once(_decoded(source, "L"), (50, 34))
    assert np.array_equal(stored(prepare(source, max_side=50)), expected)
    for wanted in SUBSAMPLINGS:
        assert prepare(source, subsampling=wanted).tiled == tile_jpeg(source, 32)


_SIDES = st.integers(1, 65_500)


@given(width=_SIDES, height=_SIDES, max_side=_SIDES)
@example(500, 2, 31)
@example(33, 31, 32)
def test_longer_side_never_exceeds_the_limit_and_the_aspect_is_kept(
    width: int, height: int, max_side: int
) -> None:
    limited = limit_size(width, height, max_side)
    assert limit_size(width, height, None) == (width, height)
    assert limit_size(*limited, max_side) == limited
    if max(width, height) <= max_side:
        assert limited == (width, height)
        return
    assert max(limited) == max_side
    for side, source in zip(limited, (width, height), strict=True):
        exact = source * max_side / max(width, height)
        assert abs(side - exact) <= 0.5 + 1e-9 or (side == 1 and exact < 1)


# --quality and --subsampling


def test_quality_on_request_reencodes_every_jpeg_once() -> None:
    source = encode(picture(90, 61), "4:2:0")
    sample = prepare(source, quality=70, reencode=True)
    assert sample.flags == _REENCODED
    assert sample.tiled.subsampling is Subsampling.S420
    expected = as_packed(_decoded(source), quality=70, subsampling=2)
    assert np.array_equal(stored(sample), expected)


@pytest.mark.parametrize("wanted", SUBSAMPLINGS)
def test_images_of_another_subsampling_are_reencoded(wanted: SubsamplingName) -> None:
    by_name = {"444": Subsampling.S444, "422": Subsampling.S422, "420": Subsampling.S420}
    for sampling, kept in _STORED.items():
        source = encode(picture(64, 48), sampling)
        sample = prepare(source, subsampling=wanted)
        assert sample.tiled.subsampling is by_name[wanted]
        if kept is by_name[wanted]:
            assert sample.flags == Oddity(0)
            assert sample.tiled == tile_jpeg(source, 32)
        else:
            assert sample.flags == _REENCODED
            expected = as_packed(_decoded(source), subsampling=SUBSAMPLINGS[wanted])
            assert np.array_equal(stored(sample), expected)
    png = prepare(encoded(image(64, 48), "PNG"), "a/b.png", subsampling=wanted)
    assert png.flags == Oddity.PNG
    assert png.tiled.subsampling is by_name[wanted]
    expected = as_packed(image(64, 48), subsampling=SUBSAMPLINGS[wanted])
    assert np.array_equal(stored(png), expected)


# Damage, and what is the same on every run


_WHOLE = [
    encoded(image(64, 48)),
    encoded(image(64, 48).convert("L")),
    encoded(image(64, 48), progressive=True),
    encoded(image(64, 48).convert("CMYK")),
]
_LOSSY: tuple[dict[str, Any], ...] = (
    {"max_side": 20},
    {"reencode": True, "quality": 60},
    {"subsampling": "444", "max_side": 5},
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(_WHOLE),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from(_LOSSY),
    st.floats(0.1, 1),
)
def test_loss_options_do_not_change_which_files_are_refused(
    whole: bytes, changes: list[tuple[int, int]], options: dict[str, Any], share: float
) -> None:
    data = damaged(whole[: max(3, int(len(whole) * share))], changes, 2)
    plain, lossy = outcome(data), outcome(data, **options)
    if isinstance(plain, SourceSample):
        assert isinstance(lossy, SourceSample)
        assert lossy == outcome(data, **options)
    else:
        assert lossy == plain
