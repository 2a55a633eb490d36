"""Draws pictures with captions into one PNG, for looking at a batch.

The sheet's size follows from the number and the size of the pictures alone.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from feeder.errors import ConfigError
from feeder.process.output_file import explain_write_errors, write_output

_SMALLEST_PX: Final = 128  # smaller pictures are hard to judge, and too narrow for a caption
_LARGEST_PX: Final = 256
_GAP_PX: Final = 8
_CAPTION_PX: Final = 20
_NOTE_PX: Final = 16  # a line of notes
_TITLE_PX: Final = 28
_SUBTITLE_PX: Final = 18
_BELOW_HEAD_PX: Final = 6
_ASPECT: Final = 1.5  # of the sheet, like most screens
_PAPER: Final = (250, 249, 246)
_INK: Final = (45, 45, 45)
_NOTE_INK: Final = (95, 95, 95)
_MIRROR_INK: Final = (38, 90, 170)
_INDENT_PX: Final = 16  # holds the mark of mirrored pictures, which no font of Pillow has
_MIRRORED: Final = "mirrored"

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is written about one picture, below its caption."""

    facts: tuple[str, ...]
    is_mirrored: bool = False
    """Marked by a double arrow before the operations."""
    operations: tuple[str, ...] = ()


def draw_contact_sheet(
    images: NDArray[np.uint8],
    captions: Sequence[str],
    path: Path,
    *,
    title: str = "",
    subtitles: Sequence[str] = (),
    notes: Sequence[Note] = (),
) -> None:
    """Write ``images`` (n, height, width, 3) with a caption under each as a PNG to ``path``.

    Captions that are too long are shortened in the middle; ``subtitles`` and ``notes``, one for
    each image or none, are wrapped. The file is written atomically. Raises ConfigError when there
    is nothing to draw, ResourceError when ``path`` cannot be written.
    """
    if len(images) == 0:
        raise ConfigError(f"there are no images to draw in {path}")
    if len(images) != len(captions):
        raise ValueError(f"{len(images)} images but {len(captions)} captions")
    if notes and len(images) != len(notes):
        raise ValueError(f"{len(images)} images but {len(notes)} notes")
    width, height = _shown_size(images.shape[2], images.shape[1])
    note_font = _load_font(12)
    blocks = [_lay_out_note(note, width, note_font) for note in notes]
    below = _CAPTION_PX + _NOTE_PX * max((len(lines) for lines in blocks), default=0)
    columns = choose_columns(len(images), width, height + below - _CAPTION_PX)
    rows = -(-len(images) // columns)
    step_x, step_y = width + _GAP_PX, height + below + _GAP_PX
    sheet_width = columns * step_x + _GAP_PX
    room = sheet_width - 2 * _GAP_PX
    head = [line for text in subtitles for line in wrap(text.split(" "), room, note_font, " ")]
    top = _GAP_PX + (_TITLE_PX if title else 0)
    top += _SUBTITLE_PX * len(head) + (_BELOW_HEAD_PX if head else 0)
    sheet = Image.new("RGB", (sheet_width, rows * step_y + top), _PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        font = _load_font(16)
        draw.text((_GAP_PX, _GAP_PX), shorten(title, room, font), fill=_INK, font=font)
    for number, line in enumerate(head):
        y = _GAP_PX + (_TITLE_PX if title else 0) + number * _SUBTITLE_PX
        draw.text((_GAP_PX, y), line, fill=_NOTE_INK, font=note_font)
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
        draw.text((x, y + height + 2), shorten(caption, width, font), fill=_INK, font=font)
        if notes:
            place = (x, y + height + _CAPTION_PX)
            _draw_note(draw, place, blocks[number], note_font)
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


def wrap(parts: Sequence[str], width_px: int, font: _Font, joint: str) -> list[str]:
    """Return lines of ``parts`` with ``joint`` between them, each at most ``width_px`` wide.

    A part that is too wide by itself is shortened.
    """
    lines: list[str] = []
    for number, part in enumerate(parts):
        ended = part + joint.rstrip() * (number + 1 < len(parts))
        joined = f"{lines[-1]} {ended}" if lines else ended
        if lines and font.getlength(joined) <= width_px:
            lines[-1] = joined
        else:
            lines.append(shorten(ended, width_px, font))
    return lines


def _lay_out_note(note: Note, width_px: int, font: _Font) -> list[tuple[int, str]]:
    """Return the note's lines with their indents in pixels, which leave room for the arrows."""
    indent = _INDENT_PX if note.is_mirrored else 0
    done = [_MIRRORED, *note.operations] if note.is_mirrored else note.operations
    lines = [(0, line) for line in wrap(note.facts, width_px, font, ", ")]
    return lines + [(indent, line) for line in wrap(done, width_px - indent, font, ", ")]


def _draw_note(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], lines: Sequence[tuple[int, str]], font: _Font
) -> None:
    x, y = place
    for indent, line in lines:
        draw.text((x + indent, y), line, fill=_NOTE_INK, font=font)
        if indent and line.startswith(_MIRRORED):
            draw.text((x + indent, y), _MIRRORED, fill=_MIRROR_INK, font=font)
            _draw_arrows(draw, x, y)
        y += _NOTE_PX


def _draw_arrows(draw: ImageDraw.ImageDraw, x: int, y: int) -> None:
    """Draw an arrow to the left and one to the right, about an axis: left and right exchanged."""
    middle, axis = y + 8, x + 6
    draw.line((axis, middle - 5, axis, middle + 5), fill=_MIRROR_INK)
    draw.polygon(((axis - 2, middle - 4), (axis - 2, middle + 4), (axis - 6, middle)), _MIRROR_INK)
    draw.polygon(((axis + 2, middle - 4), (axis + 2, middle + 4), (axis + 6, middle)), _MIRROR_INK)


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
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    remedy = "name a file in a folder that exists, is writable and has room"
    with explain_write_errors(f"the contact sheet {path}", remedy):
        write_output(path, encoded.getvalue())
