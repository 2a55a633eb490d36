"""Makes 8 bits of images with 16 bits a sample, by the level that is to become white.

Pillow alone clips 16-bit grey to 255, and drops the lower bytes of 16-bit colour. A PNG has the
number of bits that it stores, not of those that it uses: 12 bits in 16 come out nearly black unless
the user names their white level. PGM, PPM and TIFF of 12 bits declare theirs, which is used.
"""

import io
import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.source.item_bytes import SourceError

WHITE_U16: Final = 65_535
_WHITE_U12: Final = 4_095
_COLOUR_MODES: Final = re.compile(r"(?:RGB[AX]?|LA);16")
_SPLIT_MODES: Final = re.compile(r"(RGB[AX]?;16)([BLN])")
_OTHER_BYTE: Final = {"B": "L", "L": "B", "N": "B"}  # N is this machine's order, little-endian


class Rgb(NamedTuple):
    """An image as RGB of 8 bits."""

    image: Image.Image
    level_max: int = 0
    """Highest 16-bit level; of colour up to 255 above it. 0 of images that declare their white."""
    clips: bool = False
    """Whether a level is above the white one."""


def read_rawmode(image: Image.Image) -> str:
    """Return how Pillow unpacks the samples of an image that it has opened and not loaded."""
    tiles: list[tuple[object, ...]] = getattr(image, "tile", [])
    arguments = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def to_rgb(image: Image.Image, data: bytes, rawmode: str, white: int) -> Rgb:
    """Return the loaded ``image`` of the file ``data``; ``white`` is the level that becomes 255.

    Raises SourceError for 32 bits a sample, and for 16 bits of which Pillow shows only 8 where
    ``white`` needs all.
    """
    if image.format == "PPM" and image.mode == "I":  # Pillow scales by the file's maximum
        return Rgb(_scale(np.asarray(image), WHITE_U16).image)
    if rawmode == "I;12":
        return Rgb(_scale(np.asarray(image), _WHITE_U12).image)
    if image.mode.startswith("I;16"):
        return _scale(np.asarray(image), white)
    if image.mode in ("I", "F"):
        raise SourceError("unsupported", "32 bits a sample: its white level is unknown")
    rgb = image.convert("RGB")
    if ";16" not in rawmode:
        return Rgb(rgb)
    if white == WHITE_U16:
        if _COLOUR_MODES.match(rawmode) is None:
            return Rgb(rgb)
        high = max(int(band[1]) for band in np.reshape(rgb.getextrema(), (-1, 2)))
        return Rgb(rgb, level_max=high << 8 | 0xFF)
    low = _read_low_bytes(data, str(image.format), rawmode)
    return _scale(np.asarray(rgb).astype(np.uint32) << 8 | np.asarray(low), white)


def _scale(levels: NDArray[np.generic], white: int) -> Rgb:
    wide = levels.astype(np.uint32)
    level_max = int(wide.max())
    level_u8 = ((np.minimum(wide, white) * 255 + white // 2) // white).astype(np.uint8)
    rgb = Image.fromarray(level_u8).convert("RGB")
    return Rgb(rgb, level_max=level_max, clips=level_max > white)


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
