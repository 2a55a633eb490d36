"""Orientations of every spelling are applied as ``ImageOps.exif_transpose`` does, or counted."""

import contextlib
import io
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin
from PIL.Image import Transpose

from feeder.convert.decode_picture import UPRIGHT, read_orientation
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import Subsampling
from tests.convert.image_files import ORIENTATION, as_packed, prepare, stored, turned
from tests.support.sources import encoded, image, pixels

_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 11: "f", 12: "d"}
"""TIFF types by code, as struct names them: BYTE, SHORT, LONG, SBYTE, …"""
_XMP = "http://ns.adobe.com/xap/1.0/\0"
_TURNS = (
    *(Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM),
    *(Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90),
)
_PLAIN = encoded(image(32, 16), subsampling=0, quality=90)


def _tiff(orientation: int, kind: int = 3, order: str = "<", count: int = 1, ifd: int = 0) -> bytes:
    """Return EXIF's TIFF with the tag in directory 0, or in one after it."""
    value = struct.pack(order + _NUMBERS[kind] * count, *[orientation] * count)
    where = 8 + 6 * ifd
    inline = len(value) <= 4
    field = value.ljust(4, b"\0") if inline else struct.pack(order + "I", where + 18)
    empty = b"".join(struct.pack(order + "HI", 0, 14 + 6 * n) for n in range(ifd))
    entry = struct.pack(order + "HHHI", 1, ORIENTATION, kind, count) + field + bytes(4)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", 8) + empty + entry + (b"" if inline else value)


def _app1(body: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def _exif(tiff: bytes) -> bytes:
    return _app1(b"Exif\0\0" + tiff)


def _xmp(orientation: object, form: str = "attribute") -> bytes:
    inner = {
        "attribute": f'<rdf tiff:Orientation="{orientation}"/>',
        "element": f"<tiff:Orientation>{orientation}</tiff:Orientation>",
    }[form]
    return _app1(f"{_XMP}{inner}".encode())


def _with(*segments: bytes) -> bytes:
    jfif = 2 + 18  # sources begin with a marker, so that stray bytes can only follow it
    return _PLAIN[:jfif] + b"".join(segments) + _PLAIN[jfif:]


def _as_pillow_turns(data: bytes) -> int:
    """Return the orientation that Pillow applies; 0 where it raises, so that none is right."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        opened = stack.enter_context(Image.open(io.BytesIO(data)))
        opened.load()
        try:
            upright = np.asarray(ImageOps.exif_transpose(opened))
        except Exception:  # noqa: BLE001  # whatever damage makes it raise
            return 0
        turned = [opened, *(opened.transpose(turn) for turn in _TURNS)]
    return next(n for n, each in enumerate(turned, 1) if np.array_equal(np.asarray(each), upright))


def _spellings(n: int) -> dict[str, bytes]:
    spellings = {
        f"type {kind} {order}": _with(_exif(_tiff(n, kind, order)))
        for kind in _NUMBERS
        if kind != 1  # Pillow reads a BYTE as text
        for order in "<>"
    }
    return spellings | {
        "xmp attribute": _with(_xmp(n)),
        "xmp element": _with(_xmp(n, "element")),
        "xmp beside exif without it": _with(_exif(_tiff(1)[:8] + bytes(6)), _xmp(n)),
        "exif before xmp": _with(_exif(_tiff(n)), _xmp(9 - n)),
        "other APP1 first": _with(_app1(b"something else"), _exif(_tiff(n))),
        "after stray bytes": _with(b"\0\x17stray", _exif(_tiff(n))),
        "after a stray zero": _with(b"\xff\0", _exif(_tiff(n))),
        "after fill bytes": _with(b"\xff\xff\xff", _exif(_tiff(n))),
        "after an empty APP1": _with(_app1(b""), _exif(_tiff(n))),
        "prefix twice": _with(_exif(b"Exif\0\0" + _tiff(n))),
        "in two segments": _with(_exif(_tiff(n)[:12]), _exif(_tiff(n)[12:])),
        "two values": _with(_exif(_tiff(n, count=2))),
        "second exif": _with(_exif(_tiff(n)), _exif(_tiff(9 - n))),
    }


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_spelling_is_applied_as_pillow_does_and_counted_otherwise(orientation: int) -> None:
    for spelling, jpeg in _spellings(orientation).items():
        assert read_orientation(jpeg) == _as_pillow_turns(jpeg) == orientation, spelling
    for spelling in ("type 4 <", "xmp element", "after fill bytes"):
        _check_turns(_spellings(orientation)[spelling], orientation)
    _check_turns(turned(orientation, subsampling=0), orientation)


def _upright(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return ImageOps.exif_transpose(opened).convert("RGB")


def _check_turns(jpeg: bytes, orientation: int) -> None:
    """A JPEG whose sides are whole MCUs is turned without loss, or left as it is and counted."""
    is_turned = orientation != UPRIGHT
    ignored = prepare(jpeg)
    assert ignored.flags == (Oddity.EXIF_IGNORED if is_turned else Oddity(0))
    assert np.array_equal(stored(ignored), pixels(jpeg))
    applied = prepare(jpeg, apply_exif=True)
    assert applied.flags == (Oddity.EXIF_APPLIED if is_turned else Oddity(0))
    # the IDCT of a turned block rounds in another order, which costs a level here and there
    assert np.abs(stored(applied).astype(int) - np.asarray(_upright(jpeg))).max() <= 2


def test_a_turn_that_would_lose_edge_blocks_is_reencoded_and_counted() -> None:
    sample = prepare(turned(6, 61, 45, subsampling=0), apply_exif=True)
    assert sample.flags == Oddity.EXIF_REENCODED
    assert (sample.tiled.width, sample.tiled.height) == (45, 61)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    grey = prepare(encoded(image(61, 45).convert("L"), exif=exif), apply_exif=True)
    assert (grey.flags, grey.tiled.subsampling) == (Oddity.EXIF_REENCODED, Subsampling.GREY)
    cmyk = encoded(image().convert("CMYK"), exif=exif)
    assert prepare(cmyk).flags == Oddity.CMYK | Oddity.EXIF_IGNORED
    upright = prepare(cmyk, apply_exif=True).tiled
    assert (upright.width, upright.height) == (30, 40)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_jpeg_is_turned_resized_and_encoded_once(orientation: int) -> None:
    source = turned(orientation, 96, 64, subsampling=0)
    sample = prepare(source, max_side=48, apply_exif=True)
    size = (48, 32) if orientation < 5 else (32, 48)
    assert (sample.tiled.width, sample.tiled.height) == size
    expected = as_packed(_upright(source).resize(size, Image.Resampling.LANCZOS))
    assert np.array_equal(stored(sample), expected)
    is_turned = Oddity.EXIF_APPLIED if orientation > 1 else Oddity(0)
    resized = Oddity.RESIZED | Oddity.REENCODED
    assert sample.flags == resized | is_turned
    progressive = turned(orientation, 96, 64, subsampling=0, progressive=True)
    other = prepare(progressive, max_side=48, apply_exif=True)
    assert (other.tiled.blob, other.flags) == (sample.tiled.blob, sample.flags | Oddity.PROGRESSIVE)
    ignored = prepare(source, max_side=48)
    assert ignored.flags == resized | (Oddity.EXIF_IGNORED if is_turned else Oddity(0))
    expected = as_packed(Image.fromarray(pixels(source)).resize((48, 32), Image.Resampling.LANCZOS))
    assert np.array_equal(stored(ignored), expected)
    within = prepare(source, max_side=96, apply_exif=True)
    assert within.tiled == prepare(source, apply_exif=True).tiled
    png = prepare(
        turned(orientation, 96, 64, format_name="PNG"), "a.png", max_side=48, apply_exif=True
    )
    assert png.flags == Oddity.PNG | Oddity.RESIZED | is_turned


@settings(max_examples=200, deadline=None)
@given(
    orientation=st.integers(1, 8),
    kind=st.sampled_from(list(_NUMBERS)),
    order=st.sampled_from("<>"),
    count=st.sampled_from([1, 1, 1, 2]),
    before=st.binary(max_size=6).filter(lambda stray: b"\xff" not in stray),
    xmp=st.booleans(),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
def test_damaged_headers_turn_as_pillow_turns_them(
    orientation: int,
    kind: int,
    order: str,
    count: int,
    before: bytes,
    xmp: bool,
    damage: list[tuple[int, int]],
) -> None:
    tiff = bytearray(_tiff(orientation, kind, order, count))
    for position, value in damage:
        tiff[position % len(tiff)] = value
    jpeg = _with(before, _exif(bytes(tiff)), *([_xmp(9 - orientation)] if xmp else []))
    assert _as_pillow_turns(jpeg) in (read_orientation(jpeg), 0)


def _other_formats(n: int) -> dict[str, tuple[str, bytes]]:
    exif = Image.Exif()
    exif[ORIENTATION] = n
    xmp = _xmp(n)[4 + len(_XMP) :]
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    lossless: dict[str, Any] = {"lossless": True}
    drawn = image(32, 16)
    return {
        "PNG, EXIF": ("PNG", encoded(drawn, "PNG", exif=exif)),
        "PNG, XMP": ("PNG", encoded(drawn, "PNG", pnginfo=text)),
        "WebP, EXIF": ("WEBP", encoded(drawn, "WEBP", exif=exif, **lossless)),
        "WebP, XMP": ("WEBP", encoded(drawn, "WEBP", xmp=xmp, **lossless)),
    }


@pytest.mark.parametrize("orientation", range(1, 9))
def test_other_formats_are_turned_as_pillow_turns_them(orientation: int) -> None:
    is_turned = orientation != UPRIGHT
    for spelling, (name, data) in _other_formats(orientation).items():
        assert _as_pillow_turns(data) == orientation, spelling
        for apply_exif, shown, count in (
            (False, image(32, 16), Oddity.EXIF_IGNORED),
            (True, _upright(data), Oddity.EXIF_APPLIED),
        ):
            sample = prepare(data, f"a.{name.lower()}", apply_exif=apply_exif)
            assert sample.flags == Oddity[name] | (count if is_turned else Oddity(0)), spelling
            assert np.array_equal(stored(sample), as_packed(shown))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiffs_are_upright_whatever_the_options_because_pillow_turns_them(orientation: int) -> None:
    data = encoded(image(32, 16), "TIFF", tiffinfo={ORIENTATION: orientation})
    expected = as_packed(Image.fromarray(pixels(data)))
    assert expected.shape[:2] == ((32, 16) if orientation > 4 else (16, 32))
    for apply_exif in (False, True):
        sample = prepare(data, "a.tiff", apply_exif=apply_exif)
        assert sample.flags == Oddity.TIFF
        assert np.array_equal(stored(sample), expected)
