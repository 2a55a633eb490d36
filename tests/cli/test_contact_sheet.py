"""Contact sheets: size, pixels and captions."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from feeder.cli.contact_sheet import Note, choose_columns, draw_contact_sheet, shorten, wrap
from feeder.errors import ConfigError, ResourceError

GAP, CAPTION, TITLE = 8, 20, 28
NOTE, SUBTITLE, BELOW_HEAD = 16, 18, 6
PAPER = (250, 249, 246)


def _pictures(count: int, side: int = 224) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def _read(path: Path) -> np.ndarray:
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        return np.asarray(sheet)


def test_pictures_are_unchanged_in_a_grid_of_the_expected_size(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    pictures = _pictures(7)
    draw_contact_sheet(pictures, [f"class {number}" for number in range(7)], path)
    columns = choose_columns(7, 224, 224)
    rows = -(-7 // columns)
    pixels = _read(path)
    assert pixels.shape == (rows * (224 + CAPTION + GAP) + GAP, columns * 232 + GAP, 3)
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        x, y = GAP + column * 232, GAP + row * (224 + CAPTION + GAP)
        assert (pixels[y : y + 224, x : x + 224] == picture).all()
        caption = pixels[y + 224 : y + 224 + CAPTION, x : x + 224]
        assert caption.min() < 120, "no ink under the picture"
    assert (pixels[-1] == PAPER).all()


def test_a_title_adds_its_line(tmp_path: Path) -> None:
    draw_contact_sheet(_pictures(2), ["a", "b"], tmp_path / "plain.png")
    draw_contact_sheet(_pictures(2), ["a", "b"], tmp_path / "titled.png", title="a set")
    plain, titled = _read(tmp_path / "plain.png"), _read(tmp_path / "titled.png")
    assert titled.shape == (plain.shape[0] + TITLE, plain.shape[1], 3)
    assert titled[:TITLE].min() < 120


def test_notes_and_subtitles_are_written_below_and_above(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    pictures = _pictures(2)
    notes = [
        Note(facts=("sample 7", "crop 30 x 20 px"), is_mirrored=True, operations=("rotate +9°",)),
        Note(facts=("sample 8",)),
    ]
    draw_contact_sheet(
        pictures, ["a", "b"], path, title="a set", subtitles=["a recipe", "a legend"], notes=notes
    )
    pixels = _read(path)
    top = GAP + TITLE + 2 * SUBTITLE + BELOW_HEAD
    assert pixels.shape == (top + 224 + CAPTION + 2 * NOTE + GAP, 2 * 232 + GAP, 3)
    assert (pixels[top : top + 224, GAP : GAP + 224] == pictures[0]).all()
    assert (pixels[top : top + 224, GAP + 232 : GAP + 456] == pictures[1]).all()
    for line in range(2):
        y = GAP + TITLE + line * SUBTITLE
        assert pixels[y : y + SUBTITLE].min() < 150, "no ink in the subtitle"
    facts, done = (top + 224 + CAPTION + line * NOTE for line in range(2))
    left, right = pixels[:, :232], pixels[:, 232:]
    assert left[facts : facts + NOTE].min() < 150
    assert right[facts : facts + NOTE].min() < 150
    # The mark of mirrored pictures is blue, and only the first is mirrored.
    mark = left[done : done + NOTE, GAP : GAP + 13].astype(int)
    assert ((mark[..., 2] - mark[..., 0]) > 100).sum() > 20
    assert (right[done : done + NOTE] == PAPER).all()


@pytest.mark.parametrize("sized", [True, False])
def test_notes_are_wrapped_between_their_parts(sized: bool) -> None:
    font = ImageFont.load_default(12) if sized else ImageFont.load_default_imagefont()
    parts = ["sample 12345", "crop 333 x 250 px", "decoded at 1/2"]
    lines = wrap(parts, 128, font, ", ")
    assert len(lines) > 1
    assert " ".join(lines) == ", ".join(parts)
    assert all(font.getlength(line) <= 128 for line in lines)
    assert wrap(parts, 10_000, font, ", ") == [", ".join(parts)]
    assert wrap([], 128, font, ", ") == []
    (shortened,) = wrap(["much_too_long_for_one_line_of_a_sheet"], 128, font, ", ")
    assert font.getlength(shortened) <= 128


def test_one_note_for_each_picture() -> None:
    with pytest.raises(ValueError, match="2 images but 1 notes"):
        draw_contact_sheet(_pictures(2), ["a", "b"], Path("x"), notes=[Note(facts=("a",))])


def test_small_pictures_are_enlarged_by_integer_factors_and_large_ones_shrunk(
    tmp_path: Path,
) -> None:
    tiny = _pictures(1, side=50)
    draw_contact_sheet(tiny, ["x"], tmp_path / "tiny.png")
    pixels = _read(tmp_path / "tiny.png")
    assert (pixels[GAP : GAP + 150, GAP : GAP + 150][1::3, 1::3] == tiny[0]).all()
    giant = np.full((1, 400, 800, 3), 9, np.uint8)
    draw_contact_sheet(giant, ["x"], tmp_path / "giant.png")
    assert _read(tmp_path / "giant.png").shape == (128 + CAPTION + 2 * GAP, 256 + 2 * GAP, 3)


@pytest.mark.parametrize("images", [1, 2, 5, 24, 100])
def test_grids_are_about_as_wide_as_screens(images: int) -> None:
    columns = choose_columns(images, 224, 224)
    rows = -(-images // columns)
    assert columns * rows >= images
    assert columns * (rows - 1) < images
    if images > 4:
        assert 1 <= columns / rows <= 2.5


@pytest.mark.parametrize("sized", [True, False])
def test_long_captions_keep_both_ends_and_fit(sized: bool) -> None:
    font = ImageFont.load_default(13) if sized else ImageFont.load_default_imagefont()
    name = "n02089078_black-and-tan_coonhound_of_the_very_long_name"
    shown = shorten(name, 120, font)
    assert font.getlength(shown) <= 120
    assert shown.startswith("n020")
    assert shown.endswith("name")
    assert shorten("short", 120, font) == "short"
    assert shorten("two\nlines  é", 120, font) == "two lines é"


def test_characters_missing_from_the_bitmap_font_are_replaced() -> None:
    assert shorten("猫 cat", 200, ImageFont.load_default_imagefont()) == "? cat"


def test_errors_are_clear_and_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images to draw"):
        draw_contact_sheet(_pictures(0), [], tmp_path / "a.png")
    with pytest.raises(ResourceError, match=r"cannot write the contact sheet .*none/a\.png"):
        draw_contact_sheet(_pictures(1), ["x"], tmp_path / "none" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ResourceError, match="cannot write the contact sheet"):
        draw_contact_sheet(_pictures(1), ["x"], tmp_path / "folder.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
