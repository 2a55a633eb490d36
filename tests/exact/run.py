"""Windows of images, each decoded by TurboJPEG and by all versions.

``compare`` draws real images and hard synthetic ones, ``compare_damaged`` JPEGs that are damaged
and then packed as ``feeder pack`` does. Most of those are real images at 64 px, in every
subsampling and coding, because small files are many. Whatever packing accepts must have one
picture, also that of Pillow from the source where no pixel was encoded again.
"""

import io
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import Oddity
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import TILE_WIDTHS_PX, RecodeError, TiledJpeg, tile_jpeg
from feeder.source.item_bytes import SourceError
from tests.exact.windows import (
    Window,
    expected_pixels,
    own_pixels,
    scales_of,
    whole_window,
    window_of,
)
from tests.fuzz.pictures import damage_jpeg
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import SAMPLINGS, cjpeg, class_files, mcus_of, picture

_CROPS_OF_REAL = 25
_CROPS_OF_HARD = 6
_SIDE_MAX = 260  # of synthetic images
UNLIKE_PILLOW: Final = "unlike Pillow's"
"""What became of a damaged JPEG, besides "as they are", "converted" and "refused"."""

_CODINGS = (
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
_SMALL_OF_EACH = len(_CODINGS) * len(SAMPLINGS)
_SHARE_SMALL = 0.95
_CONVERTED = Oddity.RARE_JPEG | Oddity.CMYK


class PackedImage(NamedTuple):
    """A sample, and what its windows are counted by."""

    name: str
    images: str
    kind: str
    tiled: TiledJpeg


Tally = dict[tuple[str, str, int], Counter[str]]
"""By images ("real", "hard" or "damaged"), their kind, and scale: the numbers of _COLUMNS.

Crops that are not decoded are left to TurboJPEG; bytes are compared for each version.
"""
_COLUMNS = ("crops", "decoded", "bytes", *(f"≠ {version}" for version in VERSIONS))


def total(tally: Tally) -> Counter[str]:
    return sum(tally.values(), Counter())


def differing_bytes(tally: Tally) -> int:
    return sum(number for name, number in total(tally).items() if name.startswith("≠"))


def compare(images: Path, crops: int, seed: int, log: Callable[[str], None]) -> Tally:
    """Decode at least ``crops`` windows, half of them of real images if there are any."""
    tally: Tally = defaultdict(Counter)
    done = 0
    half = crops // 2
    sources = (
        (_real(class_files(images)), _CROPS_OF_REAL, half),
        (_hard(seed), _CROPS_OF_HARD, crops),
    )
    for source, of_each, most in sources:
        for image in source:
            if done >= most:
                break
            rng = np.random.Generator(np.random.Philox([seed, done]))
            for _ in range(of_each):
                window = draw_window(rng, image.tiled)
                scale = (1, 1, 1, 2, 2, 4, 8)[int(rng.integers(7))]
                if scale not in scales_of(window):
                    scale = 1
                compare_window(tally, image, window, scale, rng, log)
            done += of_each
        log(f"{done:,} crops, {differing_bytes(tally):,} differing bytes")
    return tally


def _real(paths: list[Path]) -> Iterator[PackedImage]:
    """Yield all images again and again, with other tiles each time."""
    for turn in range(1000 if paths else 0):
        for number, path in enumerate(paths):
            tile_width_px = TILE_WIDTHS_PX[(turn + number) % len(TILE_WIDTHS_PX)]
            tiled = tile_jpeg(path.read_bytes(), tile_width_px)
            name = f"{path.name}, tiles of {tile_width_px} px"
            yield PackedImage(name, "real", tiled.subsampling.name, tiled)


def _hard(seed: int) -> Iterator[PackedImage]:
    rng = np.random.Generator(np.random.Philox(seed))
    for number in range(1 << 30):
        kind = KINDS[number % len(KINDS)]
        sides = rng.integers(1, (_SIDE_MAX, 40)[int(rng.integers(2))], 2)
        quality, tile_width_px = int(rng.integers(1, 101)), int(rng.choice(TILE_WIDTHS_PX))
        arguments = (seed << 32 | number, kind, int(sides[0]), int(sides[1]), quality)
        try:
            tiled = tile_jpeg(hard_jpeg(*arguments), tile_width_px)
        except RecodeError:  # one in thousands has coefficients that 8-bit pictures cannot have
            continue
        yield PackedImage(f"hard_jpeg{arguments}, tiles of {tile_width_px} px", "hard", kind, tiled)


def draw_window(rng: np.random.Generator, tiled: TiledJpeg) -> Window:
    """Return a window of any MCUs; each of its edges is the image's at times."""
    edges: list[int] = []
    for count in mcus_of(tiled):
        first, last = sorted(int(mcu) for mcu in rng.integers(0, count, 2))
        edges += [0 if rng.integers(4) == 0 else first, count if rng.integers(4) == 0 else last + 1]
    return window_of(tiled, *edges)


def compare_window(
    tally: Tally,
    image: PackedImage,
    window: Window,
    scale: int,
    rng: np.random.Generator,
    log: Callable[[str], None],
) -> None:
    """Decode a window with TurboJPEG and with each version, and count; ``rng`` draws the buffer."""
    spare_bytes, slack = 4 * int(rng.integers(0, 20)), int(rng.integers(256))
    expected = expected_pixels(image.tiled.blob, window, scale)
    count = tally[image.images, image.kind, scale]
    count["crops"] += 1
    got = [
        own_pixels(image.tiled.blob, window, scale, version, spare_bytes=spare_bytes, slack=slack)
        for version in VERSIONS
    ]
    for version, pixels in zip(VERSIONS, got, strict=True):
        assert (pixels is None) == (got[0] is None), (image.name, window, scale)
        if pixels is not None and not np.array_equal(pixels, expected):
            differing = int((pixels != expected).sum())
            count[f"≠ {version}"] += differing
            log(f"{differing} bytes differ: {image.name}, {window}, 1/{scale}, {version}")
    if got[0] is not None:
        count["decoded"] += 1
        count["bytes"] += expected.size


def format_table(tally: Tally) -> str:
    rows = [(images, kind, f"1/{scale}", count) for (images, kind, scale), count in tally.items()]
    lines = [_line("images", "kind", "scale", _COLUMNS)]
    for images, kind, scale, count in [
        *sorted(rows, key=lambda row: row[:3]),
        ("all", "", "", total(tally)),
    ]:
        lines.append(_line(images, kind, scale, [f"{count[name]:,}" for name in _COLUMNS]))
    note = "Crops that are not decoded are left to TurboJPEG. ≠: differing bytes of a version."
    return "\n".join([*lines, note])


def _line(images: str, kind: str, scale: str, cells: Iterable[str]) -> str:
    return f"{images:8}{kind:15}{scale:7}" + "".join(f"{cell:>15}" for cell in cells)


@cache
def _damage_sources(images: Path, small: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
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


def _draw_damaged(seed: int, large: Sequence[bytes], small: Sequence[bytes]) -> bytes:
    rng = random.Random(seed)
    jpeg = rng.choice(small if rng.random() < _SHARE_SMALL or not large else large)
    for _ in range(rng.choice((1, 1, 2))):
        jpeg = damage_jpeg(rng, jpeg)
    return jpeg


def compare_damaged(
    images: Path, inputs: int, first_seed: int, log: Callable[[str], None]
) -> tuple[Counter[str], Tally]:
    """Pack damaged JPEGs and decode them; return what became of them, and the counts of windows."""
    large, small = _damage_sources(images, min(8 * _SMALL_OF_EACH, inputs))
    outcomes: Counter[str] = Counter()
    tally: Tally = defaultdict(Counter)
    for seed in range(first_seed, first_seed + inputs):
        outcomes[_compare_one(seed, _draw_damaged(seed, large, small), tally, log)] += 1
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
