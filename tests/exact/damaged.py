"""Damaged JPEGs, packed as ``feeder pack`` does and decoded both ways.

Most are real images at 64 px, in every subsampling and coding, because small files are many: bits
of scans and headers are flipped, quantisation and Huffman tables altered. Whatever packing accepts
must have one picture, that of TurboJPEG in every version of Feeder's decoder, and that of Pillow
from the source where no pixel was encoded again.
"""

import io
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.source.item_bytes import SourceError
from tests.exact.run import PackedImage, Tally, compare_window, draw_window
from tests.exact.windows import expected_pixels, scales_of, whole_window
from tests.fuzz.mutate import mutate_bytes
from tests.support.jpegs import SAMPLINGS, cjpeg, class_files, picture

UNLIKE_PILLOW: Final = "unlike Pillow's"
"""What became of a damaged JPEG, besides "as they are", "converted" and "refused"."""

_CODINGS: Final = (
    ["-quality", "30"],
    ["-quality", "90", "-optimize"],
    ["-quality", "97"],
    ["-quality", "8", "-baseline"],
    ["-quality", "75", "-restart", "1"],
    ["-quality", "85", "-progressive"],
    ["-quality", "85", "-arithmetic"],
    ["-quality", "85", "-rgb"],
    ["-quality", "85", "-grayscale"],
)
_SMALL_OF_EACH: Final = len(_CODINGS) * len(SAMPLINGS)
_SHARE_SMALL: Final = 0.95
_PIXELS_MAX: Final = 500_000  # of a damaged frame header: larger ones only take time
_CONVERTED: Final = Oddity.RARE_JPEG | Oddity.CMYK

Sources = tuple[tuple[bytes, ...], tuple[bytes, ...]]


@cache
def damage_sources(images: Path, small: int) -> Sources:
    """Return real JPEGs as they are, if there are any, and ``small`` ones of 64 px."""
    paths = class_files(images)
    large = [path.read_bytes() for path in paths]
    made = []
    for number in range(small):
        if large:
            with Image.open(io.BytesIO(large[number * 31 % len(large)])) as image:
                pixels = np.asarray(image.convert("RGB").resize((64, 64)))
        else:
            pixels = picture(64, 64, number)
        coding = _CODINGS[number % len(_CODINGS)]
        sampling = tuple(SAMPLINGS.values())[number // len(_CODINGS) % len(SAMPLINGS)]
        made.append(
            cjpeg(pixels, *coding, *(["-sample", sampling] if "-rgb" not in coding else []))
        )
    return tuple(large), tuple(made)


def draw_damaged(seed: int, sources: Sources) -> bytes:
    """Return the damaged JPEG of a seed."""
    rng = random.Random(seed)
    large, small = sources
    jpeg = rng.choice(small if rng.random() < _SHARE_SMALL or not large else large)
    for _ in range(rng.choice((1, 1, 2))):
        jpeg = rng.choice(_DAMAGES)(rng, jpeg)
    return _bound_size(jpeg)


def _segments(jpeg: bytes) -> list[tuple[int, int, int]]:
    """Return marker, start of the content and end of each segment before the first scan's codes."""
    segments, at = [], 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        segments.append((jpeg[at + 1], at + 4, end))
        at = end
        if segments[-1][0] == 0xDA:
            break
    return segments


def _flip(rng: random.Random, jpeg: bytes, first: int, end: int, most: int) -> bytes:
    out = bytearray(jpeg)
    for _ in range(rng.randint(1, most)):
        if first < min(end, len(out)):
            out[rng.randrange(first, min(end, len(out)))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _flip_codes(rng: random.Random, jpeg: bytes) -> bytes:
    segments = _segments(jpeg)
    return _flip(rng, jpeg, segments[-1][2] if segments else 2, len(jpeg) - 2, 4)


def _flip_header(rng: random.Random, jpeg: bytes) -> bytes:
    segments = _segments(jpeg)
    return _flip(rng, jpeg, 2, segments[-1][2] if segments else len(jpeg), 2)


def _flip_tables(rng: random.Random, jpeg: bytes) -> bytes:
    tables = [segment for segment in _segments(jpeg) if segment[0] in (0xC4, 0xCC, 0xDB)]
    return _flip(rng, jpeg, *rng.choice(tables)[1:], most=6) if tables else jpeg


def _alter_quantisers(rng: random.Random, jpeg: bytes) -> bytes:
    """Write other quantisation tables, of 8 or 16 bits, and for the latter the frame's marker."""
    is_wide = rng.random() < 0.5
    most = 65_535 if is_wide else 255
    out = bytearray(jpeg)
    for marker, first, end in reversed(_segments(jpeg)):
        if marker == 0xC0 and is_wide:
            out[first - 3] = 0xC1
        if marker != 0xDB or end - first < 65 or out[first] > 3:
            continue
        values = list(out[first + 1 : first + 65])
        kind = rng.randrange(5)
        if kind == 0:
            values = [rng.choice((most, most // 2 + 1, 255))] * 64
        elif kind == 1:
            values = [rng.randint(0, most) for _ in values]
        elif kind == 2:
            values[rng.choice((0, 0, rng.randrange(64)))] = rng.choice((0, 255, most, most // 2))
        elif kind == 3:
            factor = rng.choice((0, 2, 3, 5, 9, 40))
            values = [min(value * factor, most) for value in values]
        else:
            values = [rng.choice((value, value, value, 0, most)) for value in values]
        table = bytes([out[first] | is_wide << 4])
        table += b"".join(value.to_bytes(1 + is_wide) for value in values)
        table += bytes(out[first + 65 : end])  # further tables
        out[first - 2 : end] = (2 + len(table)).to_bytes(2) + table
    return bytes(out)


def _mutate(rng: random.Random, jpeg: bytes) -> bytes:
    return mutate_bytes(rng, jpeg)


_DAMAGES: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _flip_codes,
    _flip_codes,
    _flip_header,
    _flip_tables,
    _alter_quantisers,
    _alter_quantisers,
    _mutate,
)


def _bound_size(jpeg: bytes) -> bytes:
    out = bytearray(jpeg)
    for marker, first, _ in _segments(jpeg):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and first + 5 <= len(out):
            height, width = (int.from_bytes(out[first + at : first + at + 2]) for at in (1, 3))
            if height * width > _PIXELS_MAX:
                out[first + 1] &= 1
                out[first + 3] &= 1
    return bytes(out)


def compare_damaged(
    images: Path, inputs: int, first_seed: int, log: Callable[[str], None]
) -> tuple[Counter[str], Tally]:
    """Pack damaged JPEGs and decode them; return what became of them, and the counts of windows."""
    sources = damage_sources(images, min(8 * _SMALL_OF_EACH, inputs))
    outcomes: Counter[str] = Counter()
    tally: Tally = defaultdict(Counter)
    for seed in range(first_seed, first_seed + inputs):
        outcomes[_compare_one(seed, draw_damaged(seed, sources), tally, log)] += 1
        if (seed + 1 - first_seed) % 10_000 == 0:
            log(format_outcomes(outcomes))
    return outcomes, tally


def _compare_one(seed: int, jpeg: bytes, tally: Tally, log: Callable[[str], None]) -> str:
    rng = np.random.Generator(np.random.Philox(seed))
    options = SourceOptions(
        tile_width_px=int(rng.choice(TILE_WIDTHS_PX)), apply_exif=False, quality=95
    )
    try:
        sample = prepare_sample(jpeg, "damaged.jpg", options)
    except SourceError:
        return "refused"
    outcome = "converted" if sample.flags & _CONVERTED else "as they are"
    image = PackedImage(f"seed {seed}", "damaged", outcome, sample.tiled)
    whole = whole_window(sample.tiled)
    is_small = sample.tiled.width * sample.tiled.height <= 128 * 128
    for scale in scales_of(whole) if is_small else [1]:
        compare_window(tally, image, whole, scale, rng, log)
    window = draw_window(rng, sample.tiled)
    compare_window(tally, image, window, int(rng.choice(scales_of(window))), rng, log)
    if outcome == "as they are" and not _is_pillows(
        jpeg, expected_pixels(sample.tiled.blob, whole, 1)
    ):
        log(f"the packed image is not Pillow's: {image.name}")
        return UNLIKE_PILLOW
    return outcome


def _is_pillows(jpeg: bytes, rgbx: NDArray[np.uint8]) -> bool:
    """Whether Pillow decodes the JPEG to these pixels, if it does at all: it is stricter."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            expected = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError):
        return True
    return np.array_equal(rgbx.reshape(len(rgbx), -1, 4)[..., :3], expected)


def format_outcomes(outcomes: Counter[str]) -> str:
    parts = [f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())]
    return f"{outcomes.total():,} damaged JPEGs: {', '.join(parts)}"
