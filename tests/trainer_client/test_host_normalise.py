"""Normalising on the CPU: every version, packing, type and size gives the exact bits.

Each level's exact value is tested in test_scaling.py, so here the table of levels is the reference.
"""

import subprocess
import sys
import threading
import time
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.packing import Packing, Pixels, pack_levels, pixel_layout_of
from tests.support.sources import REPOSITORY
from trainer_client import _host_normalise
from trainer_client._host_normalise import VERSIONS, HostNormaliser, Values
from trainer_client._outputs import Outputs
from trainer_client._scaling import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    VALUE_TYPES,
    Scaling,
    ValueType,
    make_scaling,
)

PACKINGS: tuple[Packing, ...] = get_args(Packing)
needs_native = pytest.mark.skipif(VERSIONS == ("numpy",), reason="there is no C compiler")


def imagenet(channels: int, value_type: ValueType) -> Scaling:
    return make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=channels, value_type=value_type)


def random_levels(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random levels of which the first 256 pixels have every level in each channel."""
    levels = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    flat = levels.reshape(-1, 3)
    count = min(len(flat), 256)
    flat[:count] = (np.arange(count) * 151 % 256)[:, None]
    return levels


def pack(levels: np.ndarray, packing: Packing) -> Pixels:
    """Return (n, h, w, 3) levels packed; a fourth stored channel has a byte that must not count."""
    layout = pixel_layout_of(packing)
    axis = 1 if layout.channels_first else 3
    pixels = np.moveaxis(levels.astype(layout.dtype), 3, axis)
    if layout.is_float:
        return pixels - np.float32(128)
    if layout.is_signed:
        pixels = pixels ^ np.int8(-128)
    if layout.channels == 4:
        pixels = np.insert(pixels, 3, 77, axis)
    return np.ascontiguousarray(pixels)


def expected(levels: np.ndarray, scaling: Scaling, value_type: ValueType) -> Values:
    table = scaling.table(value_type)
    out = np.zeros((*levels.shape[:3], scaling.channels), table.dtype)
    for channel in range(3):
        out[..., channel] = table[channel][levels[..., channel]]
    return out


def words(values: Values) -> np.ndarray:
    """Return the values' bits, in which -0.0 differs from 0.0."""
    return values.view(np.uint32 if values.dtype == np.float32 else np.uint16)


def run(
    levels: np.ndarray,
    scaling: Scaling,
    value_type: ValueType,
    packing: Packing,
    version: str,
    start_bytes: int = 0,
    *,
    to_planes: bool = False,
) -> Values:
    """Normalise into memory that starts ``start_bytes`` after a cache line, with guards around.

    ``to_planes`` are (N, C, H, W) in memory; what is returned is a view of (N, H, W, C) of that.
    """
    reference = expected(levels, scaling, value_type)
    if to_planes:
        reference = np.ascontiguousarray(np.moveaxis(reference, 3, 1))
    memory = np.full(reference.nbytes + 256, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + 64 + start_bytes
    out = memory[start : start + reference.nbytes].view(reference.dtype).reshape(reference.shape)
    pixels = pack(levels, packing)
    before = pixels.copy()
    normaliser = HostNormaliser(
        scaling, value_type, packing, channels_first=to_planes, version=version
    )
    normaliser(pixels, out)
    assert (memory[:start] == 0xA5).all()
    assert (memory[start + reference.nbytes :] == 0xA5).all()
    assert np.array_equal(pixels, before)
    return np.moveaxis(out, 1, 3).copy() if to_planes else out


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("value_type", VALUE_TYPES)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("to_planes", [False, True])
def test_every_level_in_every_packing_has_the_exact_bits(
    packing: Packing, value_type: ValueType, channels: int, version: str, to_planes: bool
) -> None:
    levels = random_levels(3, 37, 41)
    scaling = imagenet(channels, value_type)
    out = run(levels, scaling, value_type, packing, version, to_planes=to_planes)
    assert np.array_equal(words(out), words(expected(levels, scaling, value_type)))


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 70), st.integers(1, 70)),
    value_type=st.sampled_from(VALUE_TYPES),
    channels=st.sampled_from([3, 4]),
    packing=st.sampled_from(PACKINGS),
    version=st.sampled_from(VERSIONS),
    start_bytes=st.integers(0, 15),
    to_planes=st.booleans(),
)
def test_any_size_at_any_address(
    shape: tuple[int, int, int],
    value_type: ValueType,
    channels: int,
    packing: Packing,
    version: str,
    start_bytes: int,
    to_planes: bool,
) -> None:
    levels = random_levels(*shape)
    scaling = imagenet(channels, value_type)
    start_bytes *= scaling.table(value_type).itemsize
    out = run(levels, scaling, value_type, packing, version, start_bytes, to_planes=to_planes)
    assert np.array_equal(words(out), words(expected(levels, scaling, value_type)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("to_planes", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 11, 12, 13, 15, 16, 17, 1535, 1536, 1537, 3073])
def test_the_edges_of_vectors_and_blocks(count: int, version: str, to_planes: bool) -> None:
    levels = random_levels(2, 1, count)
    for packing in PACKINGS:
        for channels in (3, 4):
            scaling = imagenet(channels, "bfloat16")
            out = run(levels, scaling, "bfloat16", packing, version, to_planes=to_planes)
            assert np.array_equal(out, expected(levels, scaling, "bfloat16"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_large_outputs_which_are_stored_past_the_caches(
    value_type: ValueType, version: str
) -> None:
    levels = random_levels(25, 239, 241)
    for channels, packing, start_bytes, to_planes in (
        (4, "int8-hwc-rgb", 0, False),
        (4, "int8-chw-rgb", 16, False),
        (4, "int8-hwc-rgb", 4, True),
        (3, "int8-hwc-rgb", 8, False),
        (3, "uint8-hwc-rgbx", 4, False),
    ):
        scaling = imagenet(channels, value_type)
        if channels == 3:
            levels = np.tile(levels, (2, 1, 1, 1))[:47]
        reference = expected(levels, scaling, value_type)
        out = run(
            levels,
            scaling,
            value_type,
            packing,  # type: ignore[arg-type]
            version,
            start_bytes,
            to_planes=to_planes,
        )
        assert np.array_equal(words(out), words(reference))
        if value_type == "float32":
            assert out.nbytes > 16 << 20


@pytest.mark.parametrize("version", VERSIONS)
def test_other_scalings_and_rounding_to_halves_and_subnormals(version: str) -> None:
    """Among them sums that float64 rounds to a tie of float32."""
    levels = random_levels(1, 16, 17)
    near_ties = Scaling(
        scale=np.ldexp(np.float32([(2**30 + 1) // 65, (2**30 - 1) // 77, 0]), -54),
        bias=np.float32([1, 1 + 2**-23, 0]),
    )
    assert np.array_equal(
        run(levels, near_ties, "float32", "int8-hwc-rgb", version),
        expected(levels, near_ties, "float32"),
    )
    for value_type, std in (("float16", (300.0, 2000.0, 1e5)), ("bfloat16", (1e3, 1e30, 1e38))):
        small = make_scaling((0.5, 0.5, 0.5), std, channels=3, value_type=value_type)  # type: ignore[arg-type]
        assert np.array_equal(
            words(run(levels, small, value_type, "int8-hwc-rgb", version)),  # type: ignore[arg-type]
            words(expected(levels, small, value_type)),  # type: ignore[arg-type]
        )


def test_packing_here_is_the_products() -> None:
    levels = random_levels(1, 19, 19)
    for packing in PACKINGS:
        layout = pixel_layout_of(packing)
        packed = np.empty(layout.image_shape(19), layout.dtype)
        pack_levels(levels[0], layout, packed)
        ours = pack(levels, packing)[0]
        channels = (slice(0, 3),) if layout.channels_first else (..., slice(0, 3))
        assert np.array_equal(packed[channels], ours[channels])


@pytest.mark.parametrize("version", VERSIONS)
def test_bad_arrays_are_refused(version: str) -> None:
    pixels = pack(random_levels(2, 8, 9), "int8-hwc-rgb")
    normaliser = HostNormaliser(imagenet(4, "float32"), "float32", "int8-hwc-rgb", version=version)
    out = np.zeros((2, 8, 9, 4), np.float32)
    read_only = out.copy()
    read_only.flags.writeable = False
    wide = np.zeros((2, 8, 18, 4), np.float32)[:, :, ::2]
    twice = np.zeros((2, 8, 18, 3), np.int8)[:, :, ::2]
    for source, into in (
        (pixels.view(np.uint8), out),
        (pixels[0], out),
        (pixels[:1], out),
        (pixels[..., :2], out),
        (twice, out),
        (pixels, out[..., :3]),
        (pixels, out[:, :, :8]),
        (pixels, out.astype(np.float16)),
        (pixels, out.astype(">f4")),
        (pixels, wide),
        (pixels, read_only),
        (pixels, out.reshape(2, 72, 4)),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            normaliser(source, into)
    assert not out.any()


@needs_native
def test_the_c_part_itself_checks_what_it_is_given() -> None:
    native = _host_normalise._native
    assert native is not None
    pixels, out = np.zeros((2, 5, 7, 3), np.int8), np.zeros((2, 5, 7, 4), np.float32)
    table, scale = np.zeros((4, 256), np.float32), np.zeros(4, np.float32)
    good = [pixels, False, table, scale, scale, out, False, None]
    native.normalise(*good)
    planes = np.zeros((2, 4, 5, 7), np.float32)
    native.normalise(*good[:5], planes, True, None)
    unaligned = np.frombuffer(bytearray(out.nbytes + 1), np.uint8)[1:].view(np.float32)
    for place, bad in (
        *((0, np.zeros(shape, np.int8)) for shape in ((2, 5, 7, 2), (2, 5, 7, 5), (1, 5, 7, 3))),
        *((0, np.zeros(shape, np.int8)) for shape in ((2, 5, 6, 3), (2, 5, 7, 0), (210,))),
        *((0, pixels.astype(kind)) for kind in (np.int16, np.float32, bool, "S1")),
        *((0, each) for each in (pixels.tobytes(), None, 3, np.asfortranarray(pixels))),
        (1, True),
        *((2, np.zeros(shape, np.float32)) for shape in ((3, 256), (4, 255), (4, 257), (1024,))),
        *((2, table.astype(kind)) for kind in (np.float16, np.float64, np.uint32)),
        *((at, np.zeros(size, np.float32)) for at in (3, 4) for size in (3, 5, 0)),
        *((at, np.zeros(4, np.float64)) for at in (3, 4)),
        *((at, np.zeros(8, np.float32)[::2]) for at in (3, 4)),
        *((5, np.zeros(shape, np.float32)) for shape in ((2, 5, 7, 3), (2, 5, 7, 5), (2, 5, 6, 4))),
        *((5, out.astype(kind)) for kind in (np.float16, np.float64, np.int32, np.uint16, ">f4")),
        *((5, each) for each in (bytes(out.nbytes), out.T, out[:, ::-1], unaligned)),
        *((5, each) for each in (planes, planes[:1])),
        (6, True),
        *((7, version) for version in ("numpy", "", "avx1024", "avx2\0")),
    ):
        altered = [*good]
        altered[place] = bad
        with pytest.raises((ValueError, TypeError, BufferError)):
            native.normalise(*altered)
    for count in range(len(good)):
        with pytest.raises(TypeError):
            native.normalise(*good[:count])


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="version must be one of numpy"):
        HostNormaliser(imagenet(3, "float32"), "float32", "int8-hwc-rgb", version="mmx")


@needs_native
def test_other_threads_run_meanwhile() -> None:
    """With such an interval between switches, no thread runs while this one holds the lock."""
    normaliser = HostNormaliser(imagenet(4, "float32"), "float32", "int8-hwc-rgb")
    pixels = pack(random_levels(16, 224, 224), "int8-hwc-rgb")
    out = np.zeros((16, 224, 224, 4), np.float32)
    counted, is_over = [0], threading.Event()

    def count() -> None:
        while not is_over.is_set():
            counted[0] += 1
            time.sleep(0)  # gives the lock back

    interval = sys.getswitchinterval()
    worker = threading.Thread(target=count)
    worker.start()
    sys.setswitchinterval(1000)
    try:
        for _ in range(1000):
            before = counted[0]
            normaliser(pixels, out)
            if counted[0] > before:
                break
        else:
            pytest.fail("the other thread never ran while a batch was normalised")
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        worker.join()


def test_without_the_extension_numpy_does_the_work_and_nothing_loads_torch() -> None:
    code = """
        import sys
        sys.modules["trainer_client._native"] = None
        import numpy as np
        from trainer_client import _host_normalise as host, _scaling
        print(host.VERSIONS)
        scaling = _scaling.make_scaling(
            _scaling.IMAGENET_MEAN, _scaling.IMAGENET_STD, channels=4, value_type="float32"
        )
        for _ in range(2):
            normaliser = host.HostNormaliser(scaling, "float32", "int8-hwc-rgb")
        out = np.ones((1, 2, 2, 4), np.float32)
        normaliser(np.zeros((1, 2, 2, 3), np.int8), out)
        assert (out == scaling.bias).all()
        print(normaliser.is_native, "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", "if True:" + code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert (first, second) == ("('numpy',)", "False False")
    (warning,) = done.stderr.splitlines()
    assert "the client's C part is not built (" in warning
    assert "install a C compiler, then run `pip install " in warning


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    outputs = Outputs()
    first = outputs.take(1000)
    address = first.ctypes.data
    assert address % 64 == 0
    part = first.view(np.float32)[10:20].reshape(2, 5)
    del first
    second = outputs.take(1000)
    assert second.ctypes.data != address
    del part
    third = outputs.take(999)
    assert third.ctypes.data == address
    assert third.shape == (999,)


def test_memory_of_batches_that_are_kept_is_not_kept_twice() -> None:
    outputs = Outputs()
    kept = [outputs.take(64) for _ in range(10)]
    assert len({each.ctypes.data for each in kept}) == 10
    assert len(outputs._allocations) == 3
    kept.clear()
    large = outputs.take(128)
    assert len(large) == 128
    assert len(outputs._allocations) == 1
