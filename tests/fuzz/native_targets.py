"""The C parts: checking, rebuilding and decoding damaged samples, re-coding damaged JPEGs."""

import contextlib
import random
import struct
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg import _native
from feeder.jpeg.crop_decode import check_blob, rebuild_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, VERSIONS, decode_rgbx, decode_window
from feeder.jpeg.recode import (
    TILE_WIDTHS_PX,
    RecodeError,
    TiledJpeg,
    tile_jpeg,
    transform_jpeg,
)
from tests.exact.windows import Window, own_pixels, whole_window, window_of
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.pictures import JPEG_TOKENS, damage_jpeg, jpegs, tiled_jpegs
from tests.fuzz.target import Target
from tests.support.blobs import Blob
from tests.support.jpegs import check_blob_of, mcus_of, ordinary

_GUARD = 0xA7
_GUARD_BYTES = 64
_SMALL_PIXELS = 1 << 18
_FIELD_VALUES = (0, 1, 2, 3, 7, 8, 16, 255, 256, 8191, 65_535, 65_536, 2**31, 2**32 - 1)
_RECODE_KINDS = ("truncated", "corrupt", "unsupported", "incomplete", "cmyk", "too-large")
_SOFS = (b"\xff\xc0", b"\xff\xc1", b"\xff\xc2", b"\xff\xc9", b"\xff\xca")


class Sample(NamedTuple):
    """A damaged sample, and the window to decode."""

    blob: bytes
    window: Window
    scale: int


@cache
def _bounds(blob: bytes) -> tuple[int, ...]:
    """Where header, sizes, classes with lengths, and tiles begin, and the end."""
    parsed = Blob.parse(blob)
    header, size = len(parsed.header), len(blob)
    return 0, header, header + 5, size - sum(parsed.lengths), size


def damage_blob(rng: random.Random, blob: bytes) -> bytes:
    """A valid blob with damage in one of its parts, or across all of them."""
    part = rng.randrange(6)
    if part > 3:
        return mutate_bytes(rng, blob, tokens=JPEG_TOKENS)
    first, end = _bounds(blob)[part : part + 2]
    changed = mutate_bytes(rng, blob[first:end], tokens=JPEG_TOKENS)
    if rng.random() < 0.7:  # same length, so that the other parts stay valid
        changed = (changed + blob[first:end][len(changed) :])[: end - first]
    return blob[:first] + changed + blob[end:]


def _sample(rng: random.Random) -> Sample:
    tiled = rng.choice(tiled_jpegs())
    blob = damage_blob(rng, tiled.blob) if rng.random() < 0.8 else tiled.blob
    mcus, rows = mcus_of(tiled)
    first_mcu, first_row = rng.randrange(mcus), rng.randrange(rows)
    end_mcu, end_row = rng.randint(first_mcu + 1, mcus), rng.randint(first_row + 1, rows)
    window = window_of(tiled, first_mcu, end_mcu, first_row, end_row)
    if rng.random() < 0.3:
        window = whole_window(tiled)
    if rng.random() < 0.2:
        window = window._replace(**{rng.choice(Window._fields): rng.choice(_FIELD_VALUES)})
    return Sample(blob, window, rng.choice((1, 1, 2, 4, 8)))


def _check_sample(sample: Sample) -> bool:
    """Checked and rebuilt, or ValueError; what passes the check can be rebuilt as a whole."""
    blob = np.frombuffer(sample.blob, np.uint8).copy()  # of its exact size, unlike scratch
    try:
        _, width, height, mcu_width_px, mcu_height_px, _ = check_blob(blob)
    except ValueError:
        pass
    else:
        mcus, rows = -(-width // mcu_width_px), -(-height // mcu_height_px)
        jpeg = rebuild_jpeg(blob, 0, mcus, 0, rows, width, height)
        assert jpeg[-2:] == b"\xff\xd9"
        if width * height <= _SMALL_PIXELS:
            _decodes(np.frombuffer(jpeg, np.uint8), width, height, 1, 0)
    try:
        jpeg = rebuild_jpeg(blob, *sample.window)
    except ValueError:
        return False
    width, height = sample.window[4:]
    if width * height > _SMALL_PIXELS:
        return False
    return _decodes(np.frombuffer(jpeg, np.uint8), width, height, sample.scale, 0)


def _check_windows(sample: Sample) -> bool:
    """The same pixels by every version, whatever follows the blob, or ValueError."""
    width, height = sample.window.size_px(sample.scale)
    if not 0 < width * height <= _SMALL_PIXELS:
        blob = np.frombuffer(sample.blob + bytes(READ_SLACK_BYTES), np.uint8)
        with contextlib.suppress(ValueError):
            decode_window(blob, len(sample.blob), sample.window, 1, 0, np.empty(0, np.uint8))
            raise AssertionError("there is no room for the pixels")
        return False
    outcomes: list[NDArray[np.uint8] | str | None] = []
    for number, version in enumerate(VERSIONS):
        shape = sample.window, sample.scale, version
        spare_bytes = len(sample.blob) % 3
        try:
            outcomes.append(
                own_pixels(sample.blob, *shape, spare_bytes=spare_bytes, slack=50 * number)
            )
        except ValueError:
            outcomes.append("refused")
    assert all(np.array_equal(outcome, outcomes[0]) for outcome in outcomes), "the versions differ"
    return isinstance(outcomes[0], np.ndarray)


def _decodes(
    jpeg: NDArray[np.uint8], width: int, height: int, scale: int, spare_bytes: int
) -> bool:
    shown_width, shown_height = -(-width // scale), -(-height // scale)
    stride = max(0, 4 * shown_width + spare_bytes)
    size = max(0, stride * (shown_height - 1) + 4 * shown_width)
    guarded = np.full(size + 2 * _GUARD_BYTES, _GUARD, np.uint8)
    inside = slice(_GUARD_BYTES, _GUARD_BYTES + size)
    try:
        decode_rgbx(jpeg, width, height, scale, stride, guarded[inside])
    except ValueError:
        return False
    finally:
        guarded[inside] = _GUARD
        assert (guarded == _GUARD).all(), "written outside of the buffer"
    return True


def _jpeg_to_decode(rng: random.Random) -> tuple[bytes, int, int, int, int]:
    jpeg = rng.choice(jpegs())
    width, height = _size_of(jpeg)
    if rng.random() < 0.9:
        jpeg = mutate_bytes(rng, jpeg, tokens=JPEG_TOKENS, others=(rng.choice(jpegs()),))
    if rng.random() < 0.3:
        width, height = rng.choice((0, 1, width, 200, 65_536)), rng.choice((1, height, 99))
    return jpeg, width, height, rng.choice((1, 1, 2, 4, 8)), rng.choice((0, 0, -4, 1, 12, 64))


def _check_decoding(given: tuple[bytes, int, int, int, int]) -> bool:
    """Pixels within the buffer, or ValueError."""
    jpeg, *rest = given
    return _decodes(np.frombuffer(jpeg, np.uint8).copy(), *rest)


def _jpeg_to_pack(rng: random.Random) -> tuple[bytes, int, int]:
    jpeg = rng.choice(jpegs())
    if rng.random() < 0.98:
        jpeg = damage_jpeg(rng, jpeg, jpegs())
    return jpeg, rng.choice(TILE_WIDTHS_PX), rng.randint(0, 9)


def _pack(given: tuple[bytes, int, int]) -> TiledJpeg:
    jpeg, tile_width_px, orientation = given
    try:
        transform_jpeg(jpeg, orientation)
    except ValueError:
        assert not 1 <= orientation <= 8
    return tile_jpeg(np.frombuffer(jpeg, np.uint8).copy().data, tile_width_px)


def _hold_packed(tiled: TiledJpeg, given: tuple[bytes, int, int]) -> None:
    """It passes its own checks and decodes as a whole."""
    jpeg, tile_width_px, _ = given
    portable, *_ = _native.tile_jpeg(jpeg, tile_width_px, True)
    assert portable == tiled.blob, "the encoders differ"
    check_whole(tiled)


def check_whole(tiled: TiledJpeg) -> None:
    """Check that a packed sample can be served."""
    check_blob_of(tiled)
    width, height = tiled.width, tiled.height
    if width * height <= _SMALL_PIXELS:
        assert _decodes(np.frombuffer(ordinary(tiled), np.uint8), width, height, 1, 0)


def _size_of(jpeg: bytes) -> tuple[int, int]:
    """Return width and height of a valid JPEG."""
    at = 2
    while jpeg[at : at + 2] not in _SOFS:
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    height, width = struct.unpack_from(">HH", jpeg, at + 5)
    return width, height


# A header may declare 100 million pixels, and packing keeps 6 bytes for each.
_PACKING_BYTES = 1 << 30

TARGETS = (
    Target("rebuild", _sample, _check_sample, 200_000, native=True),
    Target("decode-window", _sample, _check_windows, 100_000, native=True),
    Target("decode", _jpeg_to_decode, _check_decoding, 80_000, native=True),
    Target(
        "jpeg-pack",
        _jpeg_to_pack,
        _pack,
        100_000,
        RecodeError,
        _hold_packed,
        kinds=_RECODE_KINDS,
        native=True,
        slow_s=20.0,
        memory_bytes=_PACKING_BYTES,
    ),
)
