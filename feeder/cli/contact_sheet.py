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
from feeder.jpeg.crop_decode import whole_jpeg
from feeder.plan.augment import plan_augmentations
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.labels import LabelRows, LabelSpec
from feeder.plan.packing import Pixels, pixel_layout_of, unpack_levels
from feeder.plan.recipe import Recipe
from feeder.process.output_file import explain_write_errors, write_output
from feeder.sample.reader import SampleReader

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
}
"""By operation; those without an amount are absent."""

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


class Note(NamedTuple):
    """What is written about one picture, below its caption."""

    facts: tuple[str, ...]
    is_mirrored: bool = False
    """Marked by a double arrow before the operations."""
    operations: tuple[str, ...] = ()


class SampleSheet(NamedTuple):
    """What a sheet shows of n samples."""

    pictures: NDArray[np.uint8]
    """(n, height, width, 3)."""
    captions: list[str]
    notes: list[Note]


def show_samples(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    boxes: bool = False,
) -> SampleSheet:
    """The crops of n samples, or with ``boxes`` the whole images with the crops outlined.

    Outlined images are neither mirrored nor augmented, so their notes describe the crop only.
    """
    records = dataset.read_records(sample_ids)
    sizes = records["width"].astype(np.int64), records["height"].astype(np.int64)
    labels = np.empty((len(sample_ids), *dataset.labels.row_shape), dataset.labels.dtype)
    notes = note_samples(recipe, sample_ids, sizes, seed=seed, epoch=epoch)
    if boxes:
        dataset.read_labels(sample_ids, records, labels)
        crops = _plan_crops(recipe, sample_ids, sizes, seed, epoch)
        pictures = _outline_crops(dataset, recipe, sample_ids, records, crops)
        notes = [Note(note.facts) for note in notes]
    else:
        layout = pixel_layout_of(recipe.packing)
        shape = (len(sample_ids), *layout.image_shape(recipe.image_size))
        pixels: Pixels = np.empty(shape, layout.dtype)
        reader = SampleReader(dataset, recipe)
        reader.fill(sample_ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
        pictures = unpack_levels(pixels, layout)
    return SampleSheet(pictures, name_labels(dataset.labels, labels, dataset.classes), notes)


def note_samples(
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    sizes: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    *,
    seed: int,
    epoch: int,
) -> list[Note]:
    """The notes of n samples, given the widths and heights (n,) of their originals.

    Without these, which a client does not know, the notes have no sizes of crops.
    """
    # Whether a sample is mirrored does not depend on its size.
    ones = np.ones(len(sample_ids), np.int64)
    crops = _plan_crops(recipe, sample_ids, sizes or (ones, ones), seed, epoch)
    augmentations = plan_augmentations(recipe, seed=seed, epoch=epoch, sample_ids=sample_ids)
    notes = []
    for row, (sample_id, augmentation) in enumerate(
        zip(sample_ids.tolist(), augmentations, strict=True)
    ):
        facts = [f"sample {sample_id}"]
        if sizes is not None:
            width, height = crops.boxes[row, 2:].tolist()
            facts.append(f"crop {width:.0f} x {height:.0f} px")
            if crops.scales[row] > 1:
                facts.append(f"decoded at 1/{crops.scales[row]}")
        operations = [
            f"{name} {_AMOUNTS[name].format(amount)}" if name in _AMOUNTS else name
            for name, amount in augmentation.steps
        ]
        erasure = augmentation.erasure
        if erasure is not None:
            operations.append(f"erase {erasure.width} x {erasure.height} px")
        notes.append(Note(tuple(facts), bool(crops.flips[row]), tuple(operations)))
    return notes


def _plan_crops(
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    sizes: tuple[NDArray[np.int64], NDArray[np.int64]],
    seed: int,
    epoch: int,
) -> CropPlan:
    return plan_crops(
        recipe, seed=seed, epoch=epoch, sample_ids=sample_ids, widths=sizes[0], heights=sizes[1]
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


def _outline_crops(
    dataset: Dataset,
    recipe: Recipe,
    sample_ids: NDArray[np.int64],
    records: NDArray[np.void],
    crops: CropPlan,
) -> NDArray[np.uint8]:
    """Whole images in squares, dimmed outside their crops."""
    side = max(recipe.image_size, _SMALLEST_PX)
    pictures = np.full((len(sample_ids), side, side, 3), _MARGIN_LEVEL, np.uint8)
    locations = dataset.find_blobs(sample_ids, records)
    for record, location, box, square in zip(
        records, locations, crops.boxes.tolist(), pictures, strict=True
    ):
        blob = dataset.read_blob(location, np.empty(location.blob_bytes, np.uint8))
        whole = Image.open(io.BytesIO(whole_jpeg(blob, record))).convert("RGB")
        image = _outline_box(whole, box, side)
        y, x = (side - image.height) // 2, (side - image.width) // 2
        square[y : y + image.height, x : x + image.width] = np.asarray(image)
    return pictures


def _outline_box(image: Image.Image, box: Sequence[float], side: int) -> Image.Image:
    """The image fitted into ``side``, dimmed outside ``box`` (x, y, w, h) and outlined."""
    shrink = side / max(image.size)
    size = tuple(max(1, round(length * shrink)) for length in image.size)
    fitted = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    x, y, w, h = (length * shrink for length in box)
    left, top = round(x), round(y)
    right = min(max(round(x + w), left + 1), fitted.width)
    bottom = min(max(round(y + h), top + 1), fitted.height)
    dimmed = fitted.point([round(level * _DIM) for level in range(256)] * 3)
    dimmed.paste(fitted.crop((left, top, right, bottom)), (left, top))
    draw = ImageDraw.Draw(dimmed)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=(255, 255, 255))
    return dimmed


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
    each image or none, are wrapped. The file is written atomically; ResourceError where it cannot.
    """
    width, height = _shown_size(images.shape[2], images.shape[1])
    title_font, font, note_font = map(_load_font, (16, 13, 12))
    blocks = [_lay_out_note(note, width, note_font) for note in notes] or [[]] * len(images)
    below = _CAPTION_PX + _NOTE_PX * max(map(len, blocks))
    columns = choose_columns(len(images), width, height + below - _CAPTION_PX)
    rows = -(-len(images) // columns)
    step_x, step_y = width + _GAP_PX, height + below + _GAP_PX
    sheet_width = columns * step_x + _GAP_PX
    room = sheet_width - 2 * _GAP_PX
    head = [line for text in subtitles for line in wrap(text.split(" "), room, note_font, " ")]
    head_y = _GAP_PX + _TITLE_PX
    top = head_y + _SUBTITLE_PX * len(head) + (_BELOW_HEAD_PX if head else 0)
    sheet = Image.new("RGB", (sheet_width, rows * step_y + top), _PAPER)
    draw = ImageDraw.Draw(sheet)
    title = shorten(title, room, title_font)
    draw.text((_GAP_PX, _GAP_PX), title, fill=_INK, font=title_font)
    for number, line in enumerate(head):
        y = head_y + number * _SUBTITLE_PX
        draw.text((_GAP_PX, y), line, fill=_NOTE_INK, font=note_font)
    for number, (pixels, caption, lines) in enumerate(zip(images, captions, blocks, strict=True)):
        row, column = divmod(number, columns)
        x, y = _GAP_PX + column * step_x, top + row * step_y
        picture = Image.fromarray(pixels)
        if picture.size != (width, height):
            enlarged = width > picture.width
            method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
            picture = picture.resize((width, height), method)
        sheet.paste(picture, (x, y))
        draw.text((x, y + height + 2), shorten(caption, width, font), fill=_INK, font=font)
        _draw_note(draw, (x, y + height + _CAPTION_PX), lines, note_font)
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    remedy = "name a file in a folder that exists, is writable and has room"
    with explain_write_errors(f"the contact sheet {path}", remedy):
        write_output(path, encoded.getvalue())


def choose_columns(images: int, width: int, height: int) -> int:
    """The number of columns that brings the sheet closest to ``_ASPECT``."""
    columns = math.sqrt(images * _ASPECT * (height + _CAPTION_PX + _GAP_PX) / (width + _GAP_PX))
    return max(1, min(images, round(columns)))


def shorten(text: str, width_px: int, font: _Font) -> str:
    """``text`` on one line, its middle left out if it is wider than ``width_px``."""
    line = " ".join(text.split())
    dots = "…"
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow's bitmap font has Latin-1 only
        line, dots = line.encode("latin-1", "replace").decode("latin-1"), "..."
    kept, shown = len(line), line
    while kept > 1 and font.getlength(shown) > width_px:
        kept -= 1
        shown = line[: -(-kept // 2)] + dots + line[len(line) - kept // 2 :]
    return shown


def wrap(parts: Sequence[str], width_px: int, font: _Font, joint: str) -> list[str]:
    """Lines of ``parts`` with ``joint`` between them, each at most ``width_px`` wide.

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
    """The note's lines with their indents in pixels, which leave room for the arrows."""
    indent = _INDENT_PX if note.is_mirrored else 0
    operations = [_MIRRORED, *note.operations] if note.is_mirrored else note.operations
    lines = [(0, line) for line in wrap(note.facts, width_px, font, ", ")]
    return lines + [(indent, line) for line in wrap(operations, width_px - indent, font, ", ")]


def _draw_note(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], lines: Sequence[tuple[int, str]], font: _Font
) -> None:
    x, y = place
    for indent, line in lines:
        draw.text((x + indent, y), line, fill=_NOTE_INK, font=font)
        if indent and line.startswith(_MIRRORED):
            draw.text((x + indent, y), _MIRRORED, fill=_MIRROR_INK, font=font)
            # An arrow to the left and one to the right, about an axis: left and right exchanged.
            middle, axis = y + 8, x + 6
            draw.line((axis, middle - 5, axis, middle + 5), fill=_MIRROR_INK)
            for side in (-1, 1):
                foot, tip = axis + 2 * side, axis + 6 * side
                corners = ((foot, middle - 4), (foot, middle + 4), (tip, middle))
                draw.polygon(corners, _MIRROR_INK)
        y += _NOTE_PX


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
