"""What a contact sheet shows of samples, and the drawing of it as one PNG.

Crops come from ``SampleReader`` and notes from the plan, by (seed, epoch, sample), so a sheet shows
what a batch of the recipe contains. Its size follows from the number and the size of the pictures.
Notes are ASCII and degree signs, which all fonts of Pillow can draw.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from feeder.dataset.opened import Dataset
from feeder.plan.augment import plan_augmentations
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.labels import LabelRows, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.plan.rng import crop_words
from feeder.process.output_file import explain_write_errors, write_output
from feeder.survey.pictures import open_image

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
MIRRORED: Final = "mirrored"
_LABELS_SHOWN_MAX: Final = 8  # more names or numbers have no room under a picture
_MARGIN_LEVEL: Final = 232  # of the margins around an image that is not square
_DIM: Final = 0.45  # share of their brightness that pixels outside the crop keep

_AMOUNTS: Final = {
    "shear-x": "{:+.2f}",
    "shear-y": "{:+.2f}",
    "translate-x": "{:+.0f} px",
    "translate-y": "{:+.0f} px",
    "rotate": "{:+.0f}°",
    "brightness": "x {:.2f}",
    "saturation": "x {:.2f}",
    "contrast": "x {:.2f}",
    "sharpness": "x {:.2f}",
    "posterise": "to {:.0f} bits",
    "solarise": "from {:.0f}",
    "hue": "{:+.2f} turns",
    "blur": "of {0.sigma:.2f} px",
    "augmix": "(own {0.own_weight:.2f})",
}
"""By operation; those without an amount are absent."""

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Widths and heights (n,) of originals."""


class Note(NamedTuple):
    """What is written about one picture, below its caption."""

    facts: Sequence[str]
    operations: Sequence[str] = ()
    """What was done to the crop; two arrows mark one that was MIRRORED, which comes first."""


def note_samples(
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    sizes: Sizes | None,
    words: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    crop: int = 0,
) -> list[Note]:
    """The notes of a crop of n samples; ``recipe`` is the crop's, which is drawn by ``words``.

    Without the ``sizes``, which a client does not know, the notes have no sizes of crops.
    """
    # Whether a sample is mirrored does not depend on its size.
    ones = np.ones(len(sample_ids), np.int64)
    drawn = crop_words(words, crop)
    crops = _plan_crops(recipe, drawn, sizes or (ones, ones), seed, epoch)
    augmentations = plan_augmentations(recipe, seed=seed, epoch=epoch, sample_ids=drawn)
    notes = []
    for row, augmentation in enumerate(augmentations):
        facts = [f"sample {sample_ids[row]}"]
        if sizes is not None:
            width, height = crops.boxes[row, 2:].tolist()
            facts.append(f"crop {width:.0f} x {height:.0f} px")
            if crops.scales[row] > 1:
                facts.append(f"decoded at 1/{crops.scales[row]}")
        operations = [MIRRORED] if crops.flips[row] else []
        for name, amount in augmentation.steps:
            form = f"{name} {_AMOUNTS[name]}" if name in _AMOUNTS else name
            operations.append(form.format(amount))
        erasure = augmentation.erasure
        if erasure is not None:
            operations.append(f"erase {erasure.width} x {erasure.height} px")
        notes.append(Note(facts, operations))
    return notes


def _plan_crops(
    recipe: Recipe, words: NDArray[np.int64], sizes: Sizes, seed: int, epoch: int
) -> CropPlan:
    return plan_crops(
        recipe, seed=seed, epoch=epoch, sample_ids=words, widths=sizes[0], heights=sizes[1]
    )


def name_labels(labels: LabelSpec, rows: LabelRows, classes: Sequence[str]) -> list[str]:
    """A caption for each of n label rows (n, *row_shape), none of them padding.

    It is the class, all classes or the numbers of the sample, empty where there are no labels.
    Raises IndexError for a class that does not exist.
    """
    match labels.kind:
        case "index":
            return [classes[number] for number in rows.tolist()]
        case "multi":
            return [_join([classes[at] for at in np.flatnonzero(row).tolist()]) for row in rows]
        case "float":
            return [_join([f"{value:g}" for value in row.tolist()]) for row in rows]
        case "none":
            return [""] * len(rows)


def _join(texts: Sequence[str]) -> str:
    more = len(texts) - _LABELS_SHOWN_MAX
    shown = ", ".join(texts[:_LABELS_SHOWN_MAX])
    return f"{shown}, {more:,} more" if more > 0 else shown


def outline_crops(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    sizes: Sizes,
    words: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    crop: int = 0,
) -> NDArray[np.uint8]:
    """The whole images of n samples in squares (n, side, side, 3), dimmed outside a crop of each;
    ``recipe`` is the crop's, which is drawn by ``words``."""
    side = max(recipe.image_size, _SMALLEST_PX)
    pictures = []
    crops = _plan_crops(recipe, crop_words(words, crop), sizes, seed, epoch)
    for sample_id, (x, y, w, h) in zip(sample_ids.tolist(), crops.boxes.tolist(), strict=True):
        whole = open_image(dataset, sample_id)
        shrink = side / max(whole.size)
        width, height = (max(1, round(length * shrink)) for length in whole.size)
        bright = whole.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        left, top = round(x * shrink), round(y * shrink)
        right = min(max(round((x + w) * shrink), left + 1), width)
        bottom = min(max(round((y + h) * shrink), top + 1), height)
        image = bright.point([round(level * _DIM) for level in range(256)] * 3)
        image.paste(bright.crop((left, top, right, bottom)), (left, top))
        ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), outline="white")
        square = Image.new("RGB", (side, side), (_MARGIN_LEVEL,) * 3)
        square.paste(image, ((side - width) // 2, (side - height) // 2))
        pictures.append(np.asarray(square))
    return np.stack(pictures)


def beside_each_other(crops: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The crops of n samples, each (n, side, side, 3), as pictures: those of the first sample, then
    of the second. Small ones are in the middle of the size of the largest."""
    side = max(crop.shape[1] for crop in crops)
    shape = len(crops[0]), len(crops), side, side, 3
    pictures: NDArray[np.uint8] = np.full(shape, _MARGIN_LEVEL, np.uint8)
    for number, crop in enumerate(crops):
        own = crop.shape[1]
        start = (side - own) // 2
        pictures[:, number, start : start + own, start : start + own] = crop
    return pictures.reshape(-1, side, side, 3)


def draw_contact_sheet(
    images: NDArray[np.uint8],
    captions: Sequence[str],
    path: Path,
    *,
    title: str = "",
    subtitles: Sequence[str] = (),
    notes: Sequence[Note] = (),
    together: int = 1,
) -> None:
    """Write ``images`` (n, height, width, 3) with a caption under each as a PNG to ``path``.

    A row has whole groups of ``together`` images.

    Captions that are too long are shortened in the middle; ``subtitles`` and ``notes``, one for
    each image or none, are wrapped. The file is written atomically; ResourceError where it cannot.
    """
    title_font, font, note_font = map(_load_font, (16, 13, 12))
    width, height = _shown_size(images.shape[2], images.shape[1])
    blocks = [_lay_out_note(note, width, note_font) for note in notes] or [[]] * len(images)
    step_x = width + _GAP_PX
    step_y = height + _CAPTION_PX + _NOTE_PX * max(map(len, blocks)) + _GAP_PX
    columns = choose_columns(len(images), step_x, step_y)
    columns = max(together, columns // together * together)
    sheet_width = columns * step_x + _GAP_PX
    room = sheet_width - 2 * _GAP_PX
    head = [line for text in subtitles for line in wrap(text.split(" "), room, note_font)]
    head_y = _GAP_PX + _TITLE_PX
    top = head_y + _SUBTITLE_PX * len(head) + (_BELOW_HEAD_PX if head else 0)
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (sheet_width, top + rows * step_y), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP_PX, _GAP_PX), shorten(title, room, title_font), fill=_INK, font=title_font)
    for number, line in enumerate(head):
        y = head_y + number * _SUBTITLE_PX
        draw.text((_GAP_PX, y), line, fill=_NOTE_INK, font=note_font)
    for number, (pixels, caption, lines) in enumerate(zip(images, captions, blocks, strict=True)):
        row, column = divmod(number, columns)
        x, y = _GAP_PX + column * step_x, top + row * step_y
        picture = Image.fromarray(pixels)
        enlarged = width > picture.width
        method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
        sheet.paste(picture.resize((width, height), method), (x, y))
        y += height
        draw.text((x, y + 2), shorten(caption, width, font), fill=_INK, font=font)
        y += _CAPTION_PX
        for indent, line in lines:
            draw.text((x + indent, y), line, fill=_NOTE_INK, font=note_font)
            if indent and line.startswith(MIRRORED):
                draw.text((x + indent, y), MIRRORED, fill=_MIRROR_INK, font=note_font)
                _draw_mirror(draw, x + 6, y + 8)
            y += _NOTE_PX
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    remedy = "name a file in a folder that exists, is writable and has room"
    with explain_write_errors(f"the contact sheet {path}", remedy):
        write_output(path, encoded.getvalue())


def choose_columns(images: int, step_x: int, step_y: int) -> int:
    """The columns that bring the sheet closest to ``_ASPECT``, of pictures that far apart."""
    return max(1, min(images, round(math.sqrt(images * _ASPECT * step_y / step_x))))


def shorten(text: str, width_px: int, font: _Font) -> str:
    """``text`` on one line, its middle left out if it is wider than ``width_px``."""
    line, dots = " ".join(text.split()), "…"
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow's bitmap font has Latin-1 only
        line, dots = line.encode("latin-1", "replace").decode("latin-1"), "..."
    kept, shown = len(line), line
    while kept > 1 and font.getlength(shown) > width_px:
        kept -= 1
        shown = line[: -(-kept // 2)] + dots + line[len(line) - kept // 2 :]
    return shown


def wrap(parts: Sequence[str], width_px: int, font: _Font) -> list[str]:
    """Lines of ``parts`` with spaces between them, each at most ``width_px`` wide.

    A part that is too wide by itself is shortened.
    """
    lines: list[str] = []
    for part in parts:
        if lines and font.getlength(f"{lines[-1]} {part}") <= width_px:
            lines[-1] += f" {part}"
        else:
            lines.append(shorten(part, width_px, font))
    return lines


def _lay_out_note(note: Note, width_px: int, font: _Font) -> list[tuple[int, str]]:
    """The note's lines with their indents in pixels, which leave room for the arrows."""
    indent = _INDENT_PX if MIRRORED in note.operations else 0
    lines = []
    for x, texts in ((0, note.facts), (indent, note.operations)):
        parts = [f"{text}," for text in texts[:-1]] + [*texts[-1:]]
        lines += [(x, line) for line in wrap(parts, width_px - x, font)]
    return lines


def _draw_mirror(draw: ImageDraw.ImageDraw, x: int, y: int) -> None:
    """An arrow to the left and one to the right, about an axis: left and right exchanged."""
    draw.line((x, y - 5, x, y + 5), fill=_MIRROR_INK)
    for side in (-1, 1):
        foot, tip = x + 2 * side, x + 6 * side
        draw.polygon(((foot, y - 4), (foot, y + 4), (tip, y)), _MIRROR_INK)


def _shown_size(width: int, height: int) -> tuple[int, int]:
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
