"""Feeder's decoder and the reused TurboJPEG: names, pixels, damage, arguments and threads."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from feeder.jpeg import _native
from feeder.jpeg.decode import (
    READ_SLACK_BYTES,
    VERSIONS,
    decode_rgbx,
    decode_rgbx_reference,
    decode_window,
    describe_decoder,
)
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.jpeg.recode import TiledJpeg, tile_jpeg
from tests.exact.windows import Window, expected_pixels, own_pixels, whole_window
from tests.support.hard_jpegs import hard_jpeg
from tests.support.jpegs import SAMPLINGS, encode, ordinary, picture


def test_every_decoder_is_named_with_the_version_that_this_cpu_runs() -> None:
    assert get_args(Decoder) == DECODERS
    assert describe_decoder("turbojpeg") == "turbojpeg"
    assert describe_decoder("own") == f"own ({VERSIONS[-1]})"


JFIF = tile_jpeg(encode(picture(40, 24)), 16)


def test_naming_a_decoder_loads_no_library() -> None:
    """Configuration and messages are imported before the libraries are checked."""
    code = (
        "import feeder.jpeg.decoders, sys\n"
        "print({'numpy', 'PIL', 'turbojpeg', 'feeder.jpeg._native'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(
    not {"avx2", "bmi2"} <= {*Path("/proc/cpuinfo").read_text().split()},
    reason="this CPU has no AVX2 or BMI2",
)
@pytest.mark.parametrize(
    ("vendor", "family", "is_fast"),
    [
        ("AuthenticAMD", 0x15, False),  # Excavator
        ("AuthenticAMD", 0x17, False),  # Zen and Zen 2
        ("AuthenticAMD", 0x19, True),  # Zen 3 and Zen 4
        ("AuthenticAMD", 0x1A, True),
        ("HygonGenuine", 0x18, False),  # Zen
        ("GenuineIntel", 6, True),
        ("CentaurHauls", 7, True),
    ],
)
def test_cpus_that_take_long_for_pdep_do_without_it(
    vendor: str, family: int, is_fast: bool
) -> None:
    versions = _native.decode_versions(vendor, family)
    assert versions[:2] == ("portable", "avx2-no-pdep")
    assert versions[2:3] == (("avx2",) if is_fast else ())


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [*SAMPLINGS, "grey"])
def test_equals_the_reference(kind: str, scale: int) -> None:
    for width, height in [(1, 1), (17, 40), (160, 64), (321, 57)]:
        tiled = tile_jpeg(encode(picture(width, height), kind), 32)
        jpeg = np.frombuffer(ordinary(tiled), np.uint8)
        row_bytes, rows = 4 * -(-width // scale), -(-height // scale)
        for stride in (row_bytes, row_bytes + 20):
            room = stride * (rows - 1) + row_bytes
            got, expected = np.full((2, room + 16), 171, np.uint8)
            decode_rgbx(jpeg, width, height, scale, stride, got)
            decode_rgbx_reference(jpeg, width, height, scale, stride, expected)
            assert np.array_equal(got, expected)
            assert (got[room:] == 171).all()


@pytest.mark.parametrize("decode", [decode_rgbx, decode_rgbx_reference])
def test_damage_is_an_error_and_the_next_image_decodes(decode: Callable[..., None]) -> None:
    jpeg = np.frombuffer(encode(picture(64, 48)), np.uint8)
    out = np.empty(4 * 64 * 48, np.uint8)
    for bad in (jpeg[: jpeg.size // 2], jpeg[:100], jpeg[:0], np.zeros(500, np.uint8)):
        with pytest.raises(ValueError, match=r"\w"):
            decode(bad, 64, 48, 1, 256, out)
    decode(jpeg, 64, 48, 1, 256, out)
    if decode is decode_rgbx:
        for stride, room in ((256, out[:-1]), (255, out)):
            with pytest.raises(ValueError, match="must hold"):
                decode(jpeg, 64, 48, 1, stride, room)


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


def changed(tiled: TiledJpeg, at: int, flips: int) -> TiledJpeg:
    blob = bytearray(tiled.blob)
    blob[at] ^= flips
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
        wrong = changed(tiled, int(rng.integers(len(tiled.blob))), 1 << int(rng.integers(8)))
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
    at = JFIF.blob.index(marker) + offset
    other = changed(JFIF, at, JFIF.blob[at] ^ value)
    assert own_or_none(JFIF, whole_window(JFIF), VERSIONS[0]) is not None
    assert all(own_or_none(other, whole_window(JFIF), version) is None for version in VERSIONS)


def test_a_window_that_is_not_in_the_image_is_refused() -> None:
    tiled = tile_jpeg(encode(picture(100, 50)), 32)
    window = whole_window(tiled)
    assert (window.end_mcu, window.end_row) == (13, 7)
    for field, values in {
        "first_mcu": (1, 13),
        "end_mcu": (0, 12, 2**32 - 1),
        "first_row": (7,),
        "end_row": (0, 8),
        "width": (99, 65_535),
        "height": (49, 51),
    }.items():
        for value in values:
            other = window._replace(**{field: value})
            assert all(own_or_none(tiled, other, version) is None for version in VERSIONS), other


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
