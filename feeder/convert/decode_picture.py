"""Decodes an image of any format with Pillow, or gives the reason why not; reads its orientation.

Pillow's errors get texts of our own, the same on every run. An orientation is what Pillow's
``ImageOps.exif_transpose`` goes by: in EXIF or XMP, of any type of number, wherever Pillow looks.

Of images with 16 bits a sample, Pillow alone clips grey to 255, and drops the lower bytes of
colour; here the level that is to become white decides. A PNG has the number of bits that it stores,
not of those that it uses: 12 bits in 16 come out nearly black unless the user names their white
level. PGM, PPM and TIFF of 12 bits declare theirs, which is used.
"""

import contextlib
import ctypes
import functools
import io
import re
import struct
import warnings
import zlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, _imaging
from turbojpeg import TJPF_CMYK

from feeder.convert.jpeg_header import APP1, iterate_segments
from feeder.jpeg.decode import turbojpeg
from feeder.jpeg.installed_pillow import missing_libraries, remedy_for
from feeder.jpeg.recode import PIXELS_MAX
from feeder.source.item_bytes import JPEG, SourceError

UPRIGHT: Final = 1
WHITE_U16: Final = 65_535
_WHITE_U12: Final = 4_095
_COLOUR_MODES: Final = re.compile(r"(?:RGB[AX]?|LA);16")
_SPLIT_MODES: Final = re.compile(r"(RGB[AX]?;16)([BLN])")
_OTHER_BYTE: Final = {"B": "L", "L": "B", "N": "B"}  # N is this machine's order, little-endian
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
    """A decoded image, as it is stored: RGB of 8 bits, or L of a grey JPEG."""

    image: Image.Image
    level_max: int = 0
    """Highest 16-bit level; of colour up to 255 above it. 0 of images that declare their white."""
    clips: bool = False
    """Whether a level is above the white one."""
    orientation: int = UPRIGHT
    """1..8, which is not applied; of TIFFs 1, because Pillow always applies it."""
    warned: bool = False
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
            picture = _decode(data, format_name, white_u16)
        except SourceError:
            raise
        except _PILLOW_ERRORS as error:
            raise _explain(error, format_name) from None
    return picture._replace(warned=bool(caught))


def _decode(data: bytes, format_name: str, white_u16: int) -> Picture:
    with Image.open(io.BytesIO(data), formats=[format_name]) as image:
        width, height = image.size
        if width * height > PIXELS_MAX or max(width, height) > _JPEG_SIDE_MAX:
            raise SourceError("too-large", f"{width} x {height} pixels")
        rawmode = _read_rawmode(image)
        image.load()
        if format_name == JPEG:  # its orientation is read from its header
            return Picture(image if image.mode == "L" else image.convert("RGB"))
        picture = _to_rgb(image, data, rawmode, white_u16)
        return picture._replace(orientation=_orientation_of(image))


def _read_rawmode(image: Image.Image) -> str:
    """Return how Pillow unpacks the samples of an image that it has opened and not loaded."""
    tiles: list[tuple[object, ...]] = getattr(image, "tile", [])
    arguments = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _to_rgb(image: Image.Image, data: bytes, rawmode: str, white: int) -> Picture:
    """Return the loaded ``image`` of the file ``data``; ``white`` is the level that becomes 255.

    Raises SourceError for 32 bits a sample, and for 16 bits of which Pillow shows only 8 where
    ``white`` needs all.
    """
    if image.format == "PPM" and image.mode == "I":  # Pillow scales by the file's maximum
        return Picture(_scale(np.asarray(image), WHITE_U16).image)
    if rawmode == "I;12":
        return Picture(_scale(np.asarray(image), _WHITE_U12).image)
    if image.mode.startswith("I;16"):
        return _scale(np.asarray(image), white)
    if image.mode in ("I", "F"):
        raise SourceError("unsupported", "32 bits a sample: its white level is unknown")
    rgb = image.convert("RGB")
    if ";16" not in rawmode:
        return Picture(rgb)
    if white == WHITE_U16:
        if _COLOUR_MODES.match(rawmode) is None:
            return Picture(rgb)
        high = max(int(band[1]) for band in np.reshape(rgb.getextrema(), (-1, 2)))
        return Picture(rgb, level_max=high << 8 | 0xFF)
    low = _read_low_bytes(data, str(image.format), rawmode)
    return _scale(np.asarray(rgb).astype(np.uint32) << 8 | np.asarray(low), white)


def _scale(levels: NDArray[np.generic], white: int) -> Picture:
    wide = levels.astype(np.uint32)
    level_max = int(wide.max())
    level_u8 = ((np.minimum(wide, white) * 255 + white // 2) // white).astype(np.uint8)
    rgb = Image.fromarray(level_u8).convert("RGB")
    return Picture(rgb, level_max=level_max, clips=level_max > white)


def _read_low_bytes(data: bytes, format_name: str, rawmode: str) -> Image.Image:
    """Return the lower bytes of 16-bit colour: Pillow drops them, so it gets the other order."""
    match = _SPLIT_MODES.fullmatch(rawmode)
    if match is None:
        raise SourceError(
            "unsupported",
            f"16 bits a sample, of which Pillow reads 8 ({rawmode}): --png16-max cannot scale it",
        )
    swapped = match[1] + _OTHER_BYTE[match[2]]
    with Image.open(io.BytesIO(data), formats=[format_name]) as image:
        tiles = []
        for tile in image.tile:
            arguments = tile.args
            arguments = (swapped, *arguments[1:]) if isinstance(arguments, tuple) else swapped
            tiles.append(tile._replace(args=arguments))
        image.tile = tiles
        return image.convert("RGB")


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
