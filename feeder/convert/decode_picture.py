"""Decodes an image of any format with Pillow, or gives the reason why not.

Pillow's errors get texts of our own, the same on every run.
"""

import contextlib
import ctypes
import functools
import io
import struct
import warnings
import zlib
from typing import Final

import numpy as np
from PIL import Image, ImageOps, _imaging
from turbojpeg import TJPF_CMYK

from feeder.jpeg.decode import turbojpeg
from feeder.jpeg.installed_pillow import missing_libraries, remedy_for
from feeder.jpeg.recode import PIXELS_MAX
from feeder.source.item_bytes import JPEG, SourceError

NO_MEMORY: Final = "not enough memory to decode it"
_JPEG_SIDE_MAX: Final = 65_500  # libjpeg's

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


def decode_picture(data: bytes, format_name: str, *, apply_exif: bool) -> tuple[Image.Image, bool]:
    """Return the picture as RGB, and whether Pillow warned; SourceError if it cannot be decoded.

    A grey JPEG stays grey (L). ``apply_exif`` turns the picture upright.
    """
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
            picture = _decode(data, format_name, apply_exif=apply_exif)
        except SourceError:
            raise
        except _PILLOW_ERRORS as error:
            raise _explain(error, format_name) from None
        except MemoryError:
            raise SourceError("too-large", NO_MEMORY) from None
    return picture, bool(caught)


def _decode(data: bytes, format_name: str, *, apply_exif: bool) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=[format_name]) as image:
        width, height = image.size
        if width * height > PIXELS_MAX or max(width, height) > _JPEG_SIDE_MAX:
            raise SourceError("too-large", f"{width} x {height} pixels")
        image.load()
        upright = ImageOps.exif_transpose(image) if apply_exif else image
        return upright if format_name == JPEG and upright.mode == "L" else _to_rgb(upright)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        grey_u16 = np.asarray(image).astype(np.uint32)
        grey_u8 = ((grey_u16 + 128) // 257).astype(np.uint8)  # 65535 becomes 255, rounded
        return Image.fromarray(grey_u8).convert("RGB")
    if image.mode in ("I", "F"):
        raise SourceError("unsupported", "32 bits a sample: its white level is unknown")
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


def check_cmyk(jpeg: bytes) -> None:
    """Raise SourceError for a truncated or corrupt four-component JPEG that Pillow accepts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            width, height, _, _ = turbojpeg().decode_header(jpeg)
            if width * height > PIXELS_MAX:
                raise SourceError("too-large", f"{width} x {height} pixels")
            turbojpeg().decode(jpeg, pixel_format=TJPF_CMYK)
        except OSError as error:
            raise SourceError("corrupt", str(error)) from None
    for warning in caught:
        text = str(warning.message)
        if "premature end" in text.lower():
            raise SourceError("truncated", text)
        if "extraneous bytes" not in text:  # libjpeg's only cosmetic warning
            raise SourceError("corrupt", text)
