"""Loss by choice: the longer side, the quality and the subsampling of images, and what is kept."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from feeder.convert.jpeg_header import read_frame
from feeder.convert.lossy import SUBSAMPLINGS, SubsamplingName, limit_size
from feeder.convert.prepare import SourceOptions, SourceSample, prepare_sample
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import Subsampling, tile_jpeg
from feeder.source.item_bytes import SourceError
from tests.support.hard_jpegs import SAMPLINGS
from tests.support.jpegs import cjpeg, encode, ordinary, picture
from tests.support.sources import encoded, image, pixels

_ORIENTATION = 0x0112
_REENCODED = Oddity.REENCODED
_RESIZED = Oddity.RESIZED | Oddity.REENCODED
_JPEG_SAMPLINGS = tuple(name for name in SAMPLINGS if name != "grey")
_STORED = {
    "4:4:4": Subsampling.S444,
    "4:2:2": Subsampling.S422,
    "4:2:0": Subsampling.S420,
    "4:4:0": Subsampling.S440,
    "4:1:1": Subsampling.S411,
}
_BY_NAME = {"444": Subsampling.S444, "422": Subsampling.S422, "420": Subsampling.S420}


def _options(**options: Any) -> SourceOptions:
    return SourceOptions(**{"tile_width_px": 32, "apply_exif": False, "quality": 95, **options})


def _prepare(data: bytes, **options: Any) -> SourceSample:
    return prepare_sample(data, "a/b.jpg", _options(**options))


def _size(sample: SourceSample) -> tuple[int, int]:
    return sample.tiled.width, sample.tiled.height


def _decoded(data: bytes, mode: str = "RGB") -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return opened.convert(mode)


def _once(upright: Image.Image, size: tuple[int, int], **options: Any) -> NDArray[np.uint8]:
    """Return the pixels of a picture that was resized once and encoded once."""
    smaller = upright.resize(size, Image.Resampling.LANCZOS)
    return pixels(encoded(smaller, **{"quality": 95, "subsampling": 0, **options}))


def _stored(sample: SourceSample) -> NDArray[np.uint8]:
    return pixels(ordinary(sample.tiled))


def _psnr_db(found: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    error = np.square(found.astype(float) - expected).mean()
    return float(10 * np.log10(255**2 / error))


def _smooth(width: int, height: int) -> Image.Image:
    """Return a picture with the detail of a photograph, which JPEG keeps well."""
    size = (width, height)
    return image(*size).resize(size, Image.Resampling.BICUBIC, box=(0, 0, 60, 45))


# --max-side


def test_larger_jpeg_is_resized_and_encoded_once() -> None:
    source = encode(picture(90, 61), "4:4:4")
    sample = _prepare(source, max_side=50)
    assert _size(sample) == (50, 34)
    assert sample.flags == _RESIZED
    assert np.array_equal(_stored(sample), _once(_decoded(source), (50, 34)))


@pytest.mark.parametrize("sampling", _JPEG_SAMPLINGS)
def test_jpeg_within_the_limit_keeps_every_coefficient(sampling: str) -> None:
    source = encode(picture(90, 61), sampling)
    sample = _prepare(source, max_side=90)
    assert sample.flags == Oddity(0)
    assert sample.tiled == tile_jpeg(source, 32)


def test_resized_image_stays_close_to_the_source() -> None:
    drawn = _smooth(400, 300)
    source = encoded(drawn, quality=98, subsampling=0)
    expected = np.asarray(drawn.resize((200, 150), Image.Resampling.BOX))
    assert _psnr_db(_stored(_prepare(source, max_side=200)), expected) > 42
    # What the bound excludes: a lower quality, every other pixel, a picture that is one pixel off.
    poor = _stored(_prepare(source, max_side=200, quality=60))
    assert _psnr_db(poor, expected) < 40
    assert _psnr_db(np.asarray(drawn)[::2, ::2], expected) < 42
    assert _psnr_db(np.roll(expected, 1, axis=1), expected) < 36


@pytest.mark.parametrize(
    ("format_name", "mode", "flag"),
    [
        ("PNG", "RGB", Oddity.PNG),
        ("PNG", "RGBA", Oddity.PNG),
        ("PNG", "L", Oddity.PNG),
        ("GIF", "P", Oddity.GIF),
        ("BMP", "RGB", Oddity.BMP),
        ("TIFF", "RGB", Oddity.TIFF),
        ("JPEG", "CMYK", Oddity.CMYK),
    ],
)
def test_converted_image_is_resized_and_encoded_once(
    format_name: str, mode: str, flag: Oddity
) -> None:
    source = encoded(image(90, 61).convert(mode), format_name)
    sample = prepare_sample(source, f"a/b.{format_name.lower()}", _options(max_side=50))
    assert sample.flags == flag | Oddity.RESIZED
    assert sample.tiled.subsampling is Subsampling.S444
    assert np.array_equal(_stored(sample), _once(_decoded(source), (50, 34)))


def test_converted_image_within_the_limit_is_not_counted_as_resized() -> None:
    source = encoded(image(90, 61), "PNG")
    sample = prepare_sample(source, "a/b.png", _options(max_side=90, reencode=True))
    assert sample.flags == Oddity.PNG
    assert sample.tiled == prepare_sample(source, "a/b.png", _options()).tiled


@pytest.mark.parametrize("option", ["-progressive", "-arithmetic"])
def test_progressive_and_arithmetic_jpegs_are_resized_the_same_way(option: str) -> None:
    drawn = picture(90, 61)
    sample = _prepare(cjpeg(drawn, option), max_side=50)
    flag = Oddity.PROGRESSIVE if option == "-progressive" else Oddity.ARITHMETIC
    assert sample.flags == flag | _RESIZED
    assert sample.tiled.blob == _prepare(cjpeg(drawn), max_side=50).tiled.blob


def test_jpeg_with_a_cosmetic_warning_is_resized_the_same_way() -> None:
    source = encode(picture(90, 61))
    scan = source.index(b"\xff\xda")
    stray = source[:scan] + b"\0\0\0" + source[scan:]
    sample = _prepare(stray, max_side=50)
    assert sample.flags == Oddity.WARNED | _RESIZED
    assert sample.tiled.blob == _prepare(source, max_side=50).tiled.blob


def test_grey_jpeg_stays_grey() -> None:
    source = encode(picture(90, 61), "grey")
    for options in ({"max_side": 50}, {"max_side": 50, "subsampling": "420"}, {"reencode": True}):
        sample = _prepare(source, **options)
        assert sample.tiled.subsampling is Subsampling.GREY
        assert Oddity.REENCODED in sample.flags
    expected = _once(_decoded(source, "L"), (50, 34))
    assert np.array_equal(_stored(_prepare(source, max_side=50)), expected)


def test_jpeg_of_a_rare_kind_is_resized_once_and_keeps_its_own_flag() -> None:
    source = cjpeg(picture(90, 61), "-sample", "4x2")
    assert _prepare(source).flags == Oddity.RARE_JPEG
    assert _prepare(source, reencode=True).flags == Oddity.RARE_JPEG
    sample = _prepare(source, max_side=50)
    assert sample.flags == Oddity.RARE_JPEG | Oddity.RESIZED
    assert np.array_equal(_stored(sample), _once(_decoded(source), (50, 34)))


@given(width=st.integers(1, 65_500), height=st.integers(1, 65_500), max_side=st.integers(1, 65_500))
def test_longer_side_never_exceeds_the_limit_and_the_aspect_is_kept(
    width: int, height: int, max_side: int
) -> None:
    limited = limit_size(width, height, max_side)
    if max(width, height) <= max_side:
        assert limited == (width, height)
        return
    assert max(limited) == max_side
    for side, source in zip(limited, (width, height), strict=True):
        exact = source * max_side / max(width, height)
        assert abs(side - exact) <= 0.5 + 1e-9 or (side == 1 and exact < 1)
    assert limit_size(width, height, None) == (width, height)
    assert limit_size(*limited, max_side) == limited


@pytest.mark.parametrize(
    ("width", "height", "max_side", "size"),
    [
        (1, 97, 10, (1, 10)),
        (97, 1, 10, (10, 1)),
        (500, 2, 31, (31, 1)),
        (33, 31, 32, (32, 30)),
        (9, 7, 1, (1, 1)),
        (101, 53, 47, (47, 25)),
    ],
)
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0", "grey"])
def test_odd_sizes_are_resized(
    width: int, height: int, max_side: int, size: tuple[int, int], sampling: str
) -> None:
    source = encode(picture(width, height), sampling)
    sample = _prepare(source, max_side=max_side)
    assert _size(sample) == size
    assert _stored(sample).shape[:2] == size[::-1]


# --quality and --subsampling


def test_quality_on_request_reencodes_every_jpeg_once() -> None:
    source = encode(picture(90, 61), "4:2:0")
    sample = _prepare(source, quality=70, reencode=True)
    assert sample.flags == _REENCODED
    assert sample.tiled.subsampling is Subsampling.S420
    expected = pixels(encoded(_decoded(source), quality=70, subsampling=2))
    assert np.array_equal(_stored(sample), expected)


def test_lower_quality_is_smaller_and_further_from_the_source() -> None:
    source = encoded(_smooth(256, 192), quality=98, subsampling=0)
    made = [_prepare(source, quality=q, reencode=True) for q in (30, 75, 95)]
    sizes = [len(sample.tiled.blob) for sample in made]
    psnrs_db = [_psnr_db(_stored(sample), pixels(source)) for sample in made]
    assert sizes == sorted(set(sizes))
    assert psnrs_db == sorted(set(psnrs_db))
    assert psnrs_db[-1] > 40
    assert psnrs_db[0] < 38


@pytest.mark.parametrize("wanted", SUBSAMPLINGS)
@pytest.mark.parametrize("sampling", _JPEG_SAMPLINGS)
def test_jpegs_of_another_subsampling_are_reencoded(sampling: str, wanted: SubsamplingName) -> None:
    source = encode(picture(64, 48), sampling)
    sample = _prepare(source, subsampling=wanted)
    assert sample.tiled.subsampling is _BY_NAME[wanted]
    if _STORED[sampling] is _BY_NAME[wanted]:
        assert sample.flags == Oddity(0)
        assert sample.tiled == tile_jpeg(source, 32)
    else:
        assert sample.flags == _REENCODED
        pillow = SUBSAMPLINGS[wanted]
        expected = pixels(encoded(_decoded(source), quality=95, subsampling=pillow))
        assert np.array_equal(_stored(sample), expected)


def test_grey_jpeg_needs_no_subsampling() -> None:
    source = encode(picture(64, 48), "grey")
    for wanted in SUBSAMPLINGS:
        assert _prepare(source, subsampling=wanted).tiled == tile_jpeg(source, 32)


@pytest.mark.parametrize("sampling", _JPEG_SAMPLINGS)
def test_resized_jpeg_keeps_its_subsampling_and_rare_ones_become_444(sampling: str) -> None:
    sample = _prepare(encode(picture(90, 61), sampling), max_side=50)
    rare = sampling in ("4:4:0", "4:1:1")
    assert sample.tiled.subsampling is (Subsampling.S444 if rare else _STORED[sampling])


def test_images_of_other_formats_get_the_subsampling() -> None:
    source = encoded(image(64, 48), "PNG")
    sample = prepare_sample(source, "a/b.png", _options(subsampling="420"))
    assert sample.flags == Oddity.PNG
    assert sample.tiled.subsampling is Subsampling.S420
    expected = pixels(encoded(image(64, 48), quality=95, subsampling=2))
    assert np.array_equal(_stored(sample), expected)


# EXIF


def _turned(orientation: int, sampling: int = 0) -> bytes:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return encoded(image(96, 64), exif=exif, quality=90, subsampling=sampling)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_jpeg_is_turned_resized_and_encoded_once(orientation: int) -> None:
    source = _turned(orientation)
    sample = _prepare(source, max_side=48, apply_exif=True)
    with Image.open(io.BytesIO(source)) as opened:
        upright = ImageOps.exif_transpose(opened)
    size = (48, 32) if orientation < 5 else (32, 48)
    assert _size(sample) == size
    assert np.array_equal(_stored(sample), _once(upright, size))
    turned = Oddity.EXIF_APPLIED if orientation > 1 else Oddity(0)
    assert sample.flags == _RESIZED | turned


@pytest.mark.parametrize("orientation", [3, 6])
def test_ignored_rotation_is_counted_and_the_image_is_resized_as_it_is(orientation: int) -> None:
    source = _turned(orientation)
    sample = _prepare(source, max_side=48)
    assert sample.flags == Oddity.EXIF_IGNORED | _RESIZED
    assert np.array_equal(_stored(sample), _once(_decoded(source), (48, 32)))


def test_progressive_jpeg_is_turned_like_a_baseline_one() -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    drawn = image(96, 64)
    options = {"exif": exif, "quality": 90}
    made = [
        _prepare(encoded(drawn, progressive=progressive, **options), max_side=48, apply_exif=True)
        for progressive in (False, True)
    ]
    assert made[0].tiled.blob == made[1].tiled.blob
    assert made[1].flags == made[0].flags | Oddity.PROGRESSIVE


def test_rotation_without_loss_stays_without_loss_within_the_limit() -> None:
    source = _turned(6)
    sample = _prepare(source, max_side=96, apply_exif=True)
    assert sample.flags == Oddity.EXIF_APPLIED
    assert sample.tiled == _prepare(source, apply_exif=True).tiled


def test_422_that_a_rotation_would_make_440_is_reencoded_where_422_is_asked_for() -> None:
    source = _turned(6, sampling=1)
    assert _prepare(source, apply_exif=True).tiled.subsampling is Subsampling.S440
    sample = _prepare(source, apply_exif=True, subsampling="422")
    assert sample.tiled.subsampling is Subsampling.S422
    assert sample.flags == Oddity.EXIF_APPLIED | _REENCODED
    assert _prepare(source, subsampling="422").flags == Oddity.EXIF_IGNORED


def test_rotated_images_of_other_formats_are_resized_once() -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    source = encoded(image(96, 64), "PNG", exif=exif)
    sample = prepare_sample(source, "a/b.png", _options(max_side=48, apply_exif=True))
    assert sample.flags == Oddity.PNG | Oddity.RESIZED | Oddity.EXIF_APPLIED
    upright = image(96, 64).transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(_stored(sample), _once(upright, (32, 48)))


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


def _outcome(data: bytes, **options: Any) -> tuple[str, str] | SourceSample:
    try:
        return _prepare(data, **options)
    except SourceError as error:
        return error.kind, error.reason


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
    data = bytearray(whole[: max(3, int(len(whole) * share))])
    for position, value in changes:
        data[2 + position % (len(data) - 2)] = value
    plain, lossy = _outcome(bytes(data)), _outcome(bytes(data), **options)
    if isinstance(plain, SourceSample):
        assert isinstance(lossy, SourceSample)
        assert lossy == _outcome(bytes(data), **options)
    else:
        assert lossy == plain


def test_truncated_jpegs_are_refused_whatever_the_options() -> None:
    for whole in _WHOLE[:3]:
        for options in _LOSSY:
            for share in (0.5, 0.8, 0.97):
                outcome = _outcome(whole[: int(len(whole) * share)], **options)
                assert isinstance(outcome, tuple)
                assert outcome[0] == "truncated"


@given(st.binary(max_size=80))
def test_frame_of_arbitrary_bytes_never_fails(data: bytes) -> None:
    for start in (b"\xff\xd8\xff\xc0", b"\xff\xd8", b"\xff\xd8\xff\xc0\x00\x11\x08"):
        frame = read_frame(start + data)
        assert frame is None or frame.width * frame.height > 0


def test_frame_is_read_from_ordinary_jpegs_only() -> None:
    for sampling, stored in _STORED.items():
        frame = read_frame(encode(picture(33, 21), sampling))
        assert frame is not None
        assert (frame.width, frame.height, frame.subsampling) == (33, 21, stored)
    grey = read_frame(encode(picture(33, 21), "grey"))
    assert grey is not None
    assert grey.subsampling is Subsampling.GREY
    assert read_frame(_WHOLE[2]) is None
    assert read_frame(_WHOLE[3]) is None
    assert read_frame(cjpeg(picture(33, 21), "-arithmetic")) is None
