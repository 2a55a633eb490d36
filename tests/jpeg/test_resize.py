"""Resizing, mirroring and packing equal Pillow, to the bit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cli import main
from feeder.jpeg import decode
from feeder.jpeg.resize import (
    SLACK_BYTES,
    VERSIONS,
    Filter,
    resize_pack,
    resize_pack_reference,
    version_beside,
)

Layout = tuple[int, bool]
"""Number of channels, and whether they are in planes."""

LAYOUTS: list[Layout] = [(3, False), (3, False), (4, False), (3, True), (4, True)]


def rgbx(size_bytes: int, seed: int) -> np.ndarray:
    """Return flat RGBX pixels and slack of noise and of extremes."""
    rng = np.random.Generator(np.random.Philox(seed))
    flat = rng.integers(0, 256, size_bytes, np.uint8)
    flat[rng.random(flat.size) < 0.3] = 255
    flat[rng.random(flat.size) < 0.2] = 0
    return flat


@settings(max_examples=300)
@given(
    width=st.integers(1, 700) | st.integers(1, 40),
    height=st.integers(1, 300) | st.integers(1, 40),
    size=st.integers(8, 300) | st.sampled_from([1, 2, 3, 5, 8, 31, 64, 96, 224]),
    padding=st.integers(0, 3),
    mirrored=st.booleans(),
    box_kind=st.sampled_from(["whole", "pixels", "parts", "size of the output"]),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from([np.int8, np.uint8]),
    resampling=st.just("bilinear") | st.sampled_from(["bilinear", "bicubic", "box"]),
    data=st.data(),
)
def test_every_version_equals_pillow(
    width: int,
    height: int,
    size: int,
    padding: int,
    mirrored: bool,
    box_kind: str,
    layout: Layout,
    dtype: type[np.int8] | type[np.uint8],
    resampling: Filter,
    data: st.DataObject,
) -> None:
    stride = 4 * (width + padding)
    flat = rgbx(stride * height + SLACK_BYTES, data.draw(st.integers(0, 2**32)))
    box = (0.0, 0.0, float(width), float(height))
    if box_kind != "whole":
        left, top = (data.draw(st.floats(0, side - 0.5)) for side in (width, height))
        right = data.draw(st.floats(left + 0.4, width))
        bottom = data.draw(st.floats(top + 0.4, height))
        box = (left, top, right, bottom)
        x, y = int(left), int(top)
        if box_kind == "pixels":
            box = (x, y, max(x + 1, int(right)), max(y + 1, int(bottom)))
        elif box_kind == "size of the output":  # which is copied
            size = min(size, width - x, height - y)
            box = (x, y, x + size, y + size)
    channels, planar = layout
    shape = (channels, size, size) if planar else (size, size, channels)
    expected = np.empty(shape, dtype)
    given_picture = (flat, stride, width, height, box)
    options: dict[str, Any] = {"mirrored": mirrored, "planar": planar, "resampling": resampling}
    resize_pack_reference(*given_picture, out=expected, **options)
    for version in VERSIONS:
        guard = np.full(expected.size + 64, 77, dtype)
        out = guard[:-64].reshape(shape)
        resize_pack(*given_picture, out=out, version=version, **options)
        assert np.array_equal(out, expected), version
        assert (guard[-64:] == 77).all(), version


def test_scratch_memory_of_a_giant_picture_does_not_affect_later_ones() -> None:
    """The memory kept between calls grows, is freed, and is never assumed to be zero."""
    small, giant = rgbx(2400 + SLACK_BYTES, 1), rgbx(36000 * 600 + SLACK_BYTES, 2)
    first, again, large = (np.empty((n, n, 3), np.int8) for n in (224, 224, 2048))
    for version in VERSIONS:
        options = {"mirrored": False, "version": version}
        resize_pack(small, 120, 30, 20, (1, 2, 29, 19), out=first, **options)
        resize_pack(giant, 36000, 9000, 600, (0, 0, 9000, 600), out=large, **options)
        resize_pack(small, 120, 30, 20, (1, 2, 29, 19), out=again, **options)
        assert np.array_equal(first, again), version


def test_the_fastest_version_that_the_cpu_has_is_the_default() -> None:
    assert VERSIONS[0] == "portable"
    assert len(set(VERSIONS)) == len(VERSIONS)
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    assert ("avx2" in VERSIONS) == ("avx2" in flags)
    assert ("avx512" in VERSIONS) == ({"avx512vbmi", "avx512_vnni", "avx512bw"} <= flags)
    beside = [version_beside(version) for version in decode.VERSIONS]
    assert beside[0] == "portable"
    assert [VERSIONS.index(version) for version in beside] == sorted(map(VERSIONS.index, beside))
    assert version_beside(None) == version_beside(decode.VERSIONS[-1]) == VERSIONS[-1]


def test_the_bench_names_every_version_beside_pillow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resize", "--crops", "9", "--rounds", "2"]) == 0
    table = capsys.readouterr().out
    for name in ("pillow", *VERSIONS):
        assert re.search(rf"^resize/{name} .* images/s ", table, re.MULTILINE), name
