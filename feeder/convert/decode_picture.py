"""Decodes an image of any format with Pillow, or gives the reason why not; reads its orientation.

Pillow's errors get texts of our own, the same on every run. An orientation is what Pillow's
``ImageOps.exif_transpose`` goes by: in EXIF or XMP, of any type of number, wherever Pillow looks.
"""

import contextlib
import ctypes
import functools
import io
import struct
import warnings
import zlib
from typing import Final, NamedTuple

from PIL import ExifTags, Image, _imaging
from turbojpeg import TJPF_CMYK

from feeder.convert.deep_levels import Rgb, read_rawmode, to_rgb
from feeder.convert.jpeg_header import APP1, iterate_segments
from feeder.jpeg.decode import turbojpeg
from feeder.jpeg.installed_pillow import missing_libraries, remedy_for
from feeder.jpeg.recode import PIXELS_MAX
from feeder.source.item_bytes import JPEG, SourceError

UPRIGHT: Final = 1
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


class Picture(NamedTuple):
    """A decoded image, as it is stored: RGB, or L of a grey JPEG."""

    rgb: Rgb
    orientation: int
    """1..8, which is not applied; of TIFFs 1, because Pillow always applies it."""
    warned: bool
    """Whether Pillow had a complaint."""


def read_orientation(jpeg: bytes) -> int:
    """Return the orientation of ``jpeg``, 1..8.

    An orientation that is missing or cannot be parsed counts as 1 (upright), as in every viewer.
    """
    if all(marker != APP1 for marker, _ in iterate_segments(jpeg)):
        return UPRIGHT  # most files: Pillow takes 0.1 ms
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(jpeg), formats=[JPEG]) as image:
                return _orientation_of(image)
        except _PILLOW_ERRORS:
            return UPRIGHT


def _orientation_of(image: Image.Image) -> int:
    try:
        value = image.getexif().get(ExifTags.Base.Orientation)
    except _PILLOW_ERRORS:
        return UPRIGHT
    return next((number for number in range(1, 9) if number == value), UPRIGHT)


def decode_picture(data: bytes, format_name: str, white_u16: int) -> Picture:
    """Decode a file with Pillow; SourceError if that fails.

    ``white_u16`` is the level of 16-bit images that becomes white.
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
            rgb, orientation = _decode(data, format_name, white_u16)
        except SourceError:
            raise
        except _PILLOW_ERRORS as error:
            raise _explain(error, format_name) from None
    return Picture(rgb, orientation, bool(caught))


def _decode(data: bytes, format_name: str, white_u16: int) -> tuple[Rgb, int]:
    with Image.open(io.BytesIO(data), formats=[format_name]) as image:
        width, height = image.size
        if width * height > PIXELS_MAX or max(width, height) > _JPEG_SIDE_MAX:
            raise SourceError("too-large", f"{width} x {height} pixels")
        rawmode = read_rawmode(image)
        image.load()
        if format_name == JPEG:  # its orientation is read from its header
            return Rgb(image if image.mode == "L" else image.convert("RGB")), UPRIGHT
        return to_rgb(image, data, rawmode, white_u16), _orientation_of(image)


def _explain(error: Exception, format_name: str) -> SourceError:
    """Word Pillow's error in a text of our own: its texts may contain memory addresses."""
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
