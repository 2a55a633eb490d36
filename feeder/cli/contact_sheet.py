"""Draws pictures with captions into one PNG, for looking at a batch.

The sheet's size follows from the number and the size of the pictures alone.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from feeder.errors import ConfigError, ResourceError
from feeder.process.stop_signals import stop_signals_blocked

_SMALLEST_PX: Final = 128  # smaller pictures are hard to judge, and too narrow for a caption
_LARGEST_PX: Final = 256
_GAP_PX: Final = 8
_CAPTION_PX: Final = 20
_TITLE_PX: Final = 28
_ASPECT: Final = 1.5  # of the sheet, like most screens
_PAPER: Final = (250, 249, 246)
_INK: Final = (45, 45, 45)

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


def draw_contact_sheet(
    images: NDArray[np.uint8], captions: Sequence[str], path: Path, *, title: str = ""
) -> None:
    """Write ``images`` (n, height, width, 3) with a caption under each as a PNG to ``path``.

    Captions that are too long are shortened in the middle. The file is written atomically. Raises
    ConfigError when there is nothing to draw, ResourceError when ``path`` cannot be written.
    """
    if len(images) == 0:
        raise ConfigError(f"there are no images to draw in {path}")
    if len(images) != len(captions):
        raise ValueError(f"{len(images)} images but {len(captions)} captions")
    width, height = _shown_size(images.shape[2], images.shape[1])
    columns = choose_columns(len(images), width, height)
    rows = -(-len(images) // columns)
    top = _GAP_PX + (_TITLE_PX if title else 0)
    step_x, step_y = width + _GAP_PX, height + _CAPTION_PX + _GAP_PX
    sheet = Image.new("RGB", (columns * step_x + _GAP_PX, rows * step_y + top), _PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        font = _load_font(16)
        shown = shorten(title, sheet.width - 2 * _GAP_PX, font)
        draw.text((_GAP_PX, _GAP_PX), shown, fill=_INK, font=font)
    font = _load_font(13)
    for number, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(number, columns)
        x, y = _GAP_PX + column * step_x, top + row * step_y
        picture = Image.fromarray(pixels)
        if picture.size != (width, height):
            enlarged = width > picture.width
            method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
            picture = picture.resize((width, height), method)
        sheet.paste(picture, (x, y))
        shown = shorten(caption, width, font)
        draw.text((x, y + height + 2), shown, fill=_INK, font=font)
    with stop_signals_blocked():  # leaves no partial file
        _save(sheet, path)


def choose_columns(images: int, width: int, height: int) -> int:
    """Return the number of columns that brings the sheet closest to ``_ASPECT``."""
    columns = math.sqrt(images * _ASPECT * (height + _CAPTION_PX + _GAP_PX) / (width + _GAP_PX))
    return max(1, min(images, round(columns)))


def shorten(text: str, width_px: int, font: _Font) -> str:
    """Return ``text`` on one line, its middle left out if it is wider than ``width_px``."""
    line = " ".join(text.split())
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow's bitmap font has Latin-1 only
        line = line.encode("latin-1", "replace").decode("latin-1")
    dots = "…" if isinstance(font, ImageFont.FreeTypeFont) else "..."
    kept, shown = len(line), line
    while kept > 1 and font.getlength(shown) > width_px:
        kept -= 1
        shown = line[: -(-kept // 2)] + dots + line[len(line) - kept // 2 :]
    return shown


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Return the size at which a picture is shown: small ones enlarged, large ones shrunk."""
    longest = max(width, height)
    if longest > _LARGEST_PX:
        scale = _LARGEST_PX / longest
        return max(1, round(width * scale)), max(1, round(height * scale))
    times = -(-_SMALLEST_PX // longest)
    return width * times, height * times


def _load_font(size_px: int) -> _Font:
    """Return Pillow's own font: the bitmap font where Pillow was built without FreeType."""
    has_freetype = features.check("freetype2")
    return ImageFont.load_default(size_px if has_freetype else None)


def _save(sheet: Image.Image, path: Path) -> None:
    try:
        descriptor, staging = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".partial", dir=path.parent
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                sheet.save(file, "PNG")
            Path(staging).chmod(0o644)
            Path(staging).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(staging).unlink()
            raise
    except OSError as error:
        raise ResourceError(
            f"cannot write the contact sheet {path} ({error.strerror}): name a file in a folder "
            "that exists and is writable"
        ) from error
