"""Turns a source file into a tiled JPEG, or gives the reason for its quarantine.

The first bytes of a file decide its format, not its suffix. JPEGs are re-coded without loss; the
few that cannot be (CMYK and YCCK, rare codings) and images of other formats become RGB as Pillow's
``convert("RGB")`` makes it, which is what training code sees through torchvision: alpha is dropped,
an animation's first frame is taken, ICC profiles are ignored. They are encoded as JPEG at the given
quality without chroma subsampling, then tiled. 16-bit grey is scaled to 8 bits; Pillow alone would
clip it.
"""

import contextlib
import ctypes
import functools
import io
import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import turbojpeg
from PIL import Image, ImageOps, _imaging

from feeder.dataset.format import Oddity
from feeder.jpeg.installed_pillow import missing_libraries, remedy_for
from feeder.jpeg.recode import PIXELS_MAX, RecodeError, TiledJpeg, tile_jpeg, transform_jpeg
from feeder.pack.exif import UPRIGHT, read_orientation
from feeder.source.item_bytes import JPEG, JPEG_SUFFIXES, SNIFF_BYTES, SourceError, sniff_format

_JPEG_SIDE_MAX: Final = 65_500  # libjpeg's

_FLAGS = {
    "PNG": Oddity.PNG,
    "WEBP": Oddity.WEBP,
    "GIF": Oddity.GIF,
    "BMP": Oddity.BMP,
    "TIFF": Oddity.TIFF,
}
_FORMAT_BY_SUFFIX = {
    **dict.fromkeys(JPEG_SUFFIXES, JPEG),
    ".png": "PNG",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
    ".dib": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
# What Pillow's parsers raise on damaged files; the docs promise only the first two.
_PILLOW_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    ZeroDivisionError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The packing options that shape a sample's bytes."""

    tile_width_px: int
    apply_exif: bool
    quality: int
    """JPEG quality of re-encoded images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSample:
    """A source file as a tiled JPEG, and its oddities."""

    tiled: TiledJpeg
    flags: Oddity


def prepare_sample(data: bytes, name: str, options: SourceOptions) -> SourceSample:
    """Turn the content of the file ``name`` into a tiled JPEG; SourceError if that fails."""
    format_name = sniff_format(data[:SNIFF_BYTES])
    if format_name is None:
        raise SourceError("not-image", f"starts with {data[:8].hex(' ')}")
    flags = Oddity(0)
    if _FORMAT_BY_SUFFIX.get(PurePosixPath(name).suffix.lower(), format_name) != format_name:
        flags |= Oddity.WRONG_SUFFIX
    if format_name == JPEG:
        return _prepare_jpeg(data, flags, options)
    return _convert(data, format_name, flags | _FLAGS[format_name], options)


def _prepare_jpeg(data: bytes, flags: Oddity, options: SourceOptions) -> SourceSample:
    orientation = read_orientation(data)
    if orientation != UPRIGHT and not options.apply_exif:
        flags |= Oddity.EXIF_IGNORED
    try:
        tiled = tile_jpeg(data, options.tile_width_px)
        if tiled.was_progressive:
            flags |= Oddity.PROGRESSIVE
        if tiled.was_arithmetic:
            flags |= Oddity.ARITHMETIC
        if tiled.warnings:
            flags |= Oddity.WARNED
        if orientation != UPRIGHT and options.apply_exif:
            upright = transform_jpeg(data, orientation)
            if upright is None:
                return _convert(data, JPEG, flags | Oddity.EXIF_REENCODED, options)
            tiled = tile_jpeg(upright, options.tile_width_px)
            flags |= Oddity.EXIF_APPLIED
    except RecodeError as error:
        if error.kind == "cmyk":
            _check_cmyk(data)
            return _convert(data, JPEG, flags | Oddity.CMYK, options)
        if error.kind == "unsupported":
            return _convert(data, JPEG, flags | Oddity.RARE_JPEG, options)
        raise SourceError(error.kind, error.reason) from None
    return SourceSample(tiled=tiled, flags=flags)


def _convert(data: bytes, format_name: str, flags: Oddity, options: SourceOptions) -> SourceSample:
    """Decode with Pillow, encode as JPEG, tile."""
    if format_name == "WEBP":
        if "libwebp" in missing_libraries():
            raise _library_missing(format_name, "libwebp")
        if int.from_bytes(data[4:8], "little") + 8 > len(data):
            raise SourceError("truncated", "WEBP: the file ends too early")
    if format_name == "TIFF":
        _silence_libtiff()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            encoded = _encode_as_jpeg(data, format_name, options)
        except SourceError:
            raise
        except _PILLOW_ERRORS as error:
            raise _explain(error, format_name) from None
        except MemoryError:
            raise SourceError("too-large", "not enough memory to decode it") from None
    if caught:
        flags |= Oddity.WARNED
    try:
        tiled = tile_jpeg(encoded, options.tile_width_px)
    except RecodeError as error:
        raise SourceError(error.kind, error.reason) from None
    return SourceSample(tiled=tiled, flags=flags)


def _encode_as_jpeg(data: bytes, format_name: str, options: SourceOptions) -> bytes:
    with Image.open(io.BytesIO(data), formats=[format_name]) as image:
        width, height = image.size
        if width * height > PIXELS_MAX or max(width, height) > _JPEG_SIDE_MAX:
            raise SourceError("too-large", f"{width} x {height} pixels")
        image.load()
        upright = ImageOps.exif_transpose(image) if options.apply_exif else image
        encoded = io.BytesIO()
        rgb = _to_rgb(upright)
        rgb.save(encoded, JPEG, quality=options.quality, subsampling=0)
    return encoded.getvalue()


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        grey_u16 = np.asarray(image).astype(np.uint32)
        grey_u8 = ((grey_u16 + 128) // 257).astype(np.uint8)  # 65535 becomes 255, rounded
        return Image.fromarray(grey_u8).convert("RGB")
    if image.mode in ("I", "F"):
        raise SourceError("unsupported", "32 bits a sample: there is no telling what is white")
    return image.convert("RGB")


def _explain(error: Exception, format_name: str) -> SourceError:
    """Return Pillow's error in a text of our own: its texts may contain memory addresses."""
    text = str(error).lower()
    if "decoder libtiff not available" in text:
        return _library_missing(format_name, "libtiff")
    if isinstance(error, Image.DecompressionBombError):
        return SourceError("too-large", f"{format_name}: more pixels than any image should have")
    if "truncated" in text or "not enough" in text or isinstance(error, EOFError):
        return SourceError("truncated", f"{format_name}: the file ends too early")
    if isinstance(error, NotImplementedError) or "unsupported" in text or "not available" in text:
        return SourceError("unsupported", f"{format_name}: a variant that Pillow cannot decode")
    return SourceError("corrupt", f"{format_name}: Pillow cannot decode it")


def _library_missing(format_name: str, library: str) -> SourceError:
    return SourceError(
        "unsupported",
        f"{format_name}: this Pillow was built without {library}: {remedy_for(library)}",
    )


@functools.cache
def _silence_libtiff() -> None:
    """Keep libtiff from writing to stderr: the quarantine list has the reason."""
    with contextlib.suppress(OSError, AttributeError):  # Pillow lacks libtiff, or hides its symbols
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


@functools.cache
def _turbojpeg() -> turbojpeg.TurboJPEG:
    return turbojpeg.TurboJPEG()


def _check_cmyk(jpeg: bytes) -> None:
    """Raise SourceError for a truncated or corrupt four-component JPEG that Pillow accepts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            width, height, _, _ = _turbojpeg().decode_header(jpeg)
            if width * height > PIXELS_MAX:
                raise SourceError("too-large", f"{width} x {height} pixels")
            _turbojpeg().decode(jpeg, pixel_format=turbojpeg.TJPF_CMYK)
        except OSError as error:
            raise SourceError("corrupt", str(error)) from None
    for warning in caught:
        text = str(warning.message)
        if "premature end" in text.lower():
            raise SourceError("truncated", text)
        if "extraneous bytes" not in text:  # libjpeg's only cosmetic warning
            raise SourceError("corrupt", text)
