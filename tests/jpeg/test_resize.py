"""Resizing, mirroring and packing equal Pillow, to the bit."""

import re
from pathlib import Path

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
from tests.support.jpegs import picture

Layout = tuple[int, bool]
"""Number of channels, and whether they are in planes."""

LAYOUTS: list[Layout] = [(3, False), (3, False), (4, False), (3, True), (4, True)]


def rgbx(width: int, height: int, stride: int, seed: int) -> np.ndarray:
    """Return a flat RGBX picture of noise and of extremes, with the slack filled with 255."""
    rng = np.random.Generator(np.random.Philox(seed))
    flat = rng.integers(0, 256, stride * height + SLACK_BYTES, np.uint8)
    flat[rng.random(flat.size) < 0.3] = 255
    flat[rng.random(flat.size) < 0.2] = 0
    return flat


@settings(max_examples=1000, deadline=None)
@given(
    width=st.integers(1, 700) | st.integers(1, 40),
    height=st.integers(1, 300) | st.integers(1, 40),
    size=st.integers(8, 300) | st.sampled_from([1, 2, 3, 5, 8, 31, 64, 96, 224]),
    padding=st.integers(0, 3),
    mirrored=st.booleans(),
    whole=st.booleans(),
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
    whole: bool,
    layout: Layout,
    dtype: type[np.int8] | type[np.uint8],
    resampling: Filter,
    data: st.DataObject,
) -> None:
    stride = 4 * (width + padding)
    flat = rgbx(width, height, stride, data.draw(st.integers(0, 2**32)))
    box = (0.0, 0.0, float(width), float(height))
    if not whole:
        left, top = (data.draw(st.floats(0, side - 0.5)) for side in (width, height))
        right = data.draw(st.floats(left + 0.4, width))
        bottom = data.draw(st.floats(top + 0.4, height))
        box = (left, top, right, bottom)
        if data.draw(st.booleans()):
            x, y = int(left), int(top)
            box = (x, y, max(x + 1, int(right)), max(y + 1, int(bottom)))
    channels, planar = layout
    shape = (channels, size, size) if planar else (size, size, channels)
    expected = np.empty(shape, dtype)
    resize_pack_reference(
        flat,
        stride,
        width,
        height,
        box,
        mirrored=mirrored,
        out=expected,
        planar=planar,
        resampling=resampling,
    )
    for version in VERSIONS:
        guard = np.full(expected.size + 64, 77, dtype)
        out = guard[:-64].reshape(shape)
        resize_pack(
            flat,
            stride,
            width,
            height,
            box,
            mirrored=mirrored,
            out=out,
            planar=planar,
            resampling=resampling,
            version=version,
        )
        assert np.array_equal(out, expected), version
        assert (guard[-64:] == 77).all(), version


def test_scratch_memory_of_a_giant_picture_does_not_affect_later_ones() -> None:
    """The memory kept between calls grows, is freed, and is never assumed to be zero."""
    small, giant = rgbx(30, 20, 120, 1), rgbx(9000, 600, 36000, 2)
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


def test_each_version_of_decoding_has_one_of_resizing_beside_it() -> None:
    beside = [version_beside(version) for version in decode.VERSIONS]
    assert beside[0] == "portable"
    assert [VERSIONS.index(version) for version in beside] == sorted(map(VERSIONS.index, beside))
    assert version_beside(None) == version_beside(decode.VERSIONS[-1]) == VERSIONS[-1]


def test_a_box_of_the_output_size_is_copied() -> None:
    pixels = picture(90, 70)
    flat = np.zeros(90 * 70 * 4 + SLACK_BYTES, np.uint8)
    flat[: 90 * 70 * 4].reshape(70, 90, 4)[:, :, :3] = pixels
    out = np.empty((64, 64, 3), np.int8)
    resize_pack(flat, 360, 90, 70, (11, 3, 75, 67), mirrored=False, out=out)
    assert np.array_equal(out.astype(int) + 128, pixels[3:67, 11:75])
    resize_pack(flat, 360, 90, 70, (11, 3, 75, 67), mirrored=True, out=out)
    assert np.array_equal(out.astype(int) + 128, pixels[3:67, 11:75][:, ::-1])


@pytest.mark.parametrize(
    "box",
    [(-0.1, 0, 8, 8), (0, 0, 8.1, 8), (0, 4, 8, 4), (5, 0, 4, 8), (0, 0, float("nan"), 8)],
)
def test_boxes_outside_the_picture_are_refused(box: tuple[float, float, float, float]) -> None:
    out = np.empty((4, 4, 3), np.int8)
    flat = np.zeros(8 * 8 * 4 + SLACK_BYTES, np.uint8)
    with pytest.raises(ValueError, match="box"):
        resize_pack(flat, 32, 8, 8, box, mirrored=False, out=out)


def test_buffers_that_are_too_small_are_refused() -> None:
    flat = np.zeros(8 * 8 * 4 + SLACK_BYTES - 1, np.uint8)
    out = np.empty((4, 4, 3), np.int8)
    with pytest.raises(ValueError, match="picture"):
        resize_pack(flat, 32, 8, 8, (0, 0, 8, 8), mirrored=False, out=out)
    with pytest.raises(ValueError, match="output"):
        resize_pack(flat, 32, 8, 7, (0, 0, 8, 7), mirrored=False, out=out[:3])
    out = np.empty((4, 4, 5), np.int8)
    with pytest.raises(ValueError, match="output"):
        resize_pack(flat, 32, 8, 7, (0, 0, 8, 7), mirrored=False, out=out)


def test_versions_that_the_cpu_lacks_are_refused() -> None:
    flat = np.zeros(8 * 8 * 4 + SLACK_BYTES, np.uint8)
    out = np.empty((4, 4, 3), np.int8)
    with pytest.raises(ValueError, match="version sse9"):
        resize_pack(flat, 32, 8, 8, (0, 0, 8, 8), mirrored=False, out=out, version="sse9")


def test_the_bench_names_every_version_beside_pillow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resize", "--crops", "9", "--rounds", "2"]) == 0
    table = capsys.readouterr().out
    for name in ("pillow", *VERSIONS):
        assert re.search(rf"^resize/{name} .* images/s ", table, re.MULTILINE), name
