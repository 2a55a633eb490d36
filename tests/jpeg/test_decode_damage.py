"""Feeder's decoder finds damage, refuses wrong arguments, and runs in several threads."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feeder.jpeg.decode import READ_SLACK_BYTES, VERSIONS, decode_window
from feeder.jpeg.recode import TiledJpeg, tile_jpeg
from tests.exact.windows import Window, expected_pixels, own_pixels, whole_window
from tests.support.hard_jpegs import hard_jpeg
from tests.support.jpegs import encode, picture


def own_or_none(tiled: TiledJpeg, window: Window, version: str) -> NDArray[np.uint8] | None:
    """Return the pixels at full size, None where damage is found."""
    try:
        pixels = own_pixels(tiled.blob, window, 1, version)
    except ValueError as error:
        if str(error) != "its blob is damaged":
            raise
        return None
    assert pixels is not None
    return pixels


def flipped(tiled: TiledJpeg, bit: int) -> TiledJpeg:
    blob = bytearray(tiled.blob)
    blob[bit // 8] ^= 1 << bit % 8
    return replace(tiled, blob=bytes(blob))


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "grey"])
def test_damage_leaves_no_trace_in_the_next_sample(kind: str) -> None:
    rng = np.random.Generator(np.random.Philox(9))
    tiled = tile_jpeg(hard_jpeg(4, kind, 90, 170, 75), 64)
    window = whole_window(tiled)
    expected = expected_pixels(tiled.blob, window, 1)
    found = 0
    for number in range(60):
        version = VERSIONS[number % len(VERSIONS)]
        wrong = flipped(tiled, int(rng.integers(8 * len(tiled.blob))))
        found += own_or_none(wrong, window, version) is None
        assert np.array_equal(own_or_none(tiled, window, version), expected)
    assert found > 10


@pytest.mark.parametrize(
    ("marker", "offset", "value"),
    [
        (b"\xff\xd8", 1, 0xD9),
        (b"\xff\xc0", 1, 0xC2),  # progressive
        (b"\xff\xc0", 4, 12),  # bits of a sample
        (b"\xff\xc0", 9, 4),  # components
        (b"\xff\xda", 11, 1),  # the scan's first coefficient, its last, and its bits
        (b"\xff\xda", 12, 62),
        (b"\xff\xda", 13, 1),
    ],
)
def test_a_header_of_another_kind_of_jpeg_is_refused(
    marker: bytes, offset: int, value: int
) -> None:
    tiled = tile_jpeg(encode(picture(40, 24)), 16)
    wrong = bytearray(tiled.blob)
    wrong[tiled.blob.index(marker) + offset] = value
    other = replace(tiled, blob=bytes(wrong))
    assert own_or_none(tiled, whole_window(tiled), VERSIONS[0]) is not None
    assert all(own_or_none(other, whole_window(tiled), version) is None for version in VERSIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"first_mcu": 13},
        {"first_mcu": 1},
        {"end_mcu": 0},
        {"end_mcu": 12},
        {"end_mcu": 2**32 - 1},
        {"first_row": 7},
        {"end_row": 8},
        {"end_row": 0},
        {"width": 99},
        {"width": 65_535},
        {"height": 49},
        {"height": 51},
    ],
)
def test_a_window_that_is_not_in_the_image_is_refused(change: dict[str, int]) -> None:
    tiled = tile_jpeg(encode(picture(100, 50)), 32)
    window = whole_window(tiled)
    assert (window.end_mcu, window.end_row) == (13, 7)
    for version in VERSIONS:
        assert own_or_none(tiled, window._replace(**change), version) is None


JFIF = tile_jpeg(encode(picture(40, 24)), 16)
BLOB = np.zeros(len(JFIF.blob) + READ_SLACK_BYTES, np.uint8)
BLOB[: len(JFIF.blob)] = np.frombuffer(JFIF.blob, np.uint8)
ARGUMENTS: dict[str, Any] = {
    "blob": BLOB,
    "blob_bytes": len(JFIF.blob),
    "window": whole_window(JFIF),
    "scale": 1,
    "stride_bytes": 160,
    "out": np.zeros(160 * 24, np.uint8),
    "version": None,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "sse9"}, "this CPU has no version sse9"),
        ({"blob": BLOB[:-1]}, "256 readable bytes must follow the blob"),
        ({"blob_bytes": len(JFIF.blob) + 1}, "256 readable bytes must follow the blob"),
        ({"blob_bytes": -1}, "256 readable bytes must follow the blob"),
        ({"scale": 0}, "the scale must be 1, 2, 4 or 8"),
        ({"scale": 3}, "the scale must be 1, 2, 4 or 8"),
        ({"window": whole_window(JFIF)._replace(width=0)}, "the window must be of 1 to 65535 pix"),
        (
            {"window": whole_window(JFIF)._replace(height=65_536)},
            "the window must be of 1 to 65535",
        ),
        ({"stride_bytes": 159}, "the output must hold height rows of the stride"),
        ({"stride_bytes": 161}, "the output must hold height rows of the stride"),
        ({"stride_bytes": -160}, "the output must hold height rows of the stride"),
        ({"stride_bytes": sys.maxsize}, "the output must hold height rows of the stride"),
        ({"out": np.zeros(160 * 24 - 1, np.uint8)}, "the output must hold height rows of the str"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(change: dict[str, Any], message: str) -> None:
    assert decode_window(**ARGUMENTS)
    with pytest.raises(ValueError, match=message) as refused:
        decode_window(**(ARGUMENTS | change))
    assert "\n" not in str(refused.value)


def test_an_output_that_cannot_be_written_is_refused() -> None:
    read_only = np.zeros(160 * 24, np.uint8)
    read_only.setflags(write=False)
    with pytest.raises((BufferError, TypeError, ValueError)):
        decode_window(**(ARGUMENTS | {"out": read_only}))
    assert not read_only.any()


def test_threads_decode_at_once() -> None:
    images = [
        tile_jpeg(hard_jpeg(seed, kind, 300, 200, 85), 32)
        for seed, kind in enumerate(("4:4:4", "4:2:0", "4:2:2", "grey"))
    ]
    expected = [expected_pixels(tiled.blob, whole_window(tiled), 1) for tiled in images]

    def decode_many(offset: int) -> int:
        equal = 0
        for number in range(offset, offset + 60):
            tiled, version = images[number % 4], VERSIONS[number // 4 % len(VERSIONS)]
            got = own_pixels(tiled.blob, whole_window(tiled), 1, version)
            equal += np.array_equal(got, expected[number % 4])
        return equal

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(decode_many, range(4))) == [60] * 4


def test_other_threads_run_while_a_window_is_decoded() -> None:
    noise = tile_jpeg(encode(picture(900, 700), quality=95), 128)
    blob = np.zeros(len(noise.blob) + READ_SLACK_BYTES, np.uint8)
    blob[: len(noise.blob)] = np.frombuffer(noise.blob, np.uint8)
    out = np.empty(4 * 900 * 700, np.uint8)
    given = blob, len(noise.blob), whole_window(noise), 1, 4 * 900, out

    def is_overlapped() -> bool:
        """Return whether this thread runs before the other's call returns."""
        begins, is_done = threading.Event(), threading.Event()

        def decode() -> None:
            begins.set()
            decode_window(*given)
            is_done.set()

        other = threading.Thread(target=decode)
        other.start()
        begins.wait()
        overlapped = not is_done.is_set()
        other.join()
        return overlapped

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread then keeps the interpreter until it releases it
    try:
        assert any(is_overlapped() for _ in range(20))
    finally:
        sys.setswitchinterval(usual_s)
