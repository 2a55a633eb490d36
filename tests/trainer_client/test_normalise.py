"""Normalising to the same bits in every form: C, NumPy, torch, compiled; memory and the device.

Each level's value is compared with fractions; then the table of levels is the reference.
"""

import functools
import itertools
import logging
from collections.abc import Callable
from fractions import Fraction
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.packing import Packing, Pixels, pixel_layout_of
from tests.trainer_client.test_accuracy import make_plain_batch
from tests.trainer_client.test_loader import run_script
from trainer_client import _device, denormalise, normalise
from trainer_client._device import Normaliser, resolve_device
from trainer_client._host_normalise import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    VALUE_TYPES,
    VERSIONS,
    HostNormaliser,
    Scaling,
    make_scaling,
    make_table,
    round_values,
)
from trainer_client._staging import CopiesInFlight

PACKINGS: tuple[Packing, ...] = get_args(Packing)
STREAMED_BYTES = 16 << 20  # larger outputs are stored past the caches
# The products are 2**-24 + 2**-54 and 2**-24 - 2**-54, next to half of float32's spacing.
NEAR_SCALE = np.ldexp(np.float32([(2**30 + 1) // 65, (2**30 - 1) // 77, 0]), -54)
NEAR_BIAS = np.float32([1, 1 + 2**-23, 0])
NEAR_TIES = Scaling(NEAR_SCALE, NEAR_BIAS, make_table(NEAR_SCALE, NEAR_BIAS, "float32"))


def scaled(**changes: Any) -> Scaling:
    good = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "channels": 4, "value_type": "float32"}
    return make_scaling(**(good | changes))


@pytest.mark.parametrize("scaling", [scaled(), NEAR_TIES])
def test_every_level_is_rounded_once_to_the_nearest_float32(scaling: Scaling) -> None:
    """Also where float64 rounds the sum to a tie."""
    for scale, bias, values in zip(*scaling, strict=True):
        for level, value in enumerate(values):
            exact = Fraction(float(scale)) * (level - 128) + Fraction(float(bias))
            near = np.float32(float(exact))
            nearest = min(
                [near, *(np.nextafter(near, np.float32(way)) for way in (-np.inf, np.inf))],
                key=lambda each: (
                    abs(Fraction(float(each)) - exact),
                    int(each.view(np.uint32)) & 1,
                ),
            )
            assert value == nearest
    if scaling is NEAR_TIES:
        twice = np.float64(NEAR_SCALE[0]) * 65 + NEAR_BIAS[0]
        assert scaling.table[0, 128 + 65] == 1 + 2**-23 != np.float32(twice)
        return
    assert not scaling.table[3].any()
    # Each channel by its own mean and deviation, as torchvision's Normalize has it.
    levels = np.arange(256) / 255
    for table, mean, std in zip(scaling.table, IMAGENET_MEAN, IMAGENET_STD, strict=False):
        assert np.allclose(table, (levels - mean) / std, atol=1e-6)


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    one = 0x3F80
    cases = {0x8000: one, 0x8001: one + 1, 0x7FFF: one, 0x18000: one + 2, 0x17FFF: one + 1}
    values = np.array([(one << 16) + below for below in cases], np.uint32).view(np.float32)
    assert round_values(values, "bfloat16").tolist() == [*cases.values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"channels": each}, r"^channels must be 3 .* or 4") for each in (2, True, "3")),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean must be three numbers"),
        ({"std": (1, 0, 1)}, "std must be above 0"),
        # Levels that the type cannot hold became infinities.
        *(
            ({"value_type": kind, "std": (1, std, 1)}, f"^{kind} cannot hold .* use a larger std")
            for kind, std in (("float16", 1e-6), ("float32", 1e-40), ("bfloat16", 1e-39))
        ),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scaled(**arguments)
    scaled(channels=np.int64(3), std=(1e-4,) * 3)


def random_levels(*shape: int) -> np.ndarray:
    """Random levels of which the first 256 pixels have every level in each channel."""
    levels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    flat = levels.reshape(-1, 3)
    count = min(len(flat), 256)
    flat[:count] = (np.arange(count) * 151 % 256)[:, None]
    return levels


def pack(levels: np.ndarray, packing: Packing) -> Pixels:
    """Pack (n, h, w, 3) levels; a fourth stored channel has a byte that must not count."""
    layout = pixel_layout_of(packing)
    axis = 1 if layout.channels_first else 3
    pixels = np.moveaxis(levels.astype(layout.dtype), 3, axis)
    if layout.is_float:
        return np.ascontiguousarray(pixels - np.float32(128))
    if layout.is_signed:
        pixels = pixels ^ np.int8(-128)
    if layout.channels == 4:
        pixels = np.insert(pixels, 3, 77, axis)
    return np.ascontiguousarray(pixels)


def check(
    levels: np.ndarray,
    scaling: Scaling,
    packing: Packing = "int8-hwc-rgb",
    start: int = 0,
    *,
    version: str,
    to_planes: bool = False,
    copies: int = 1,
) -> None:
    """Normalise ``copies`` of each image; compare each with the table of levels, to the bit.

    The memory starts ``start`` values after a cache line and has guards around it.
    """
    table = scaling.table
    expected = np.zeros((*levels.shape[:3], len(scaling.scale)), table.dtype)
    for channel in range(3):
        expected[..., channel] = table[channel][levels[..., channel]]
    if to_planes:
        expected = np.ascontiguousarray(np.moveaxis(expected, 3, 1))
    pixels = np.repeat(pack(levels, packing), copies, axis=0)
    before = pixels.copy()
    size_bytes = copies * expected.nbytes
    memory = np.full(size_bytes + 256, 0xA5, np.uint8)
    first = -memory.ctypes.data % 64 + 64 + start * table.itemsize
    out = memory[first : first + size_bytes].view(table.dtype)
    out = out.reshape(len(pixels), *expected.shape[1:])
    HostNormaliser(scaling, packing, channels_first=to_planes, version=version)(pixels, out)
    for copy in range(copies):  # by their bytes: -0.0 differs from 0.0
        assert out[copy::copies].tobytes() == expected.tobytes()
    assert (memory[:first] == 0xA5).all()
    assert (memory[first + size_bytes :] == 0xA5).all()
    assert np.array_equal(pixels, before)


every_version = pytest.mark.parametrize("version", VERSIONS)
EDGES = (1, 2, 3, 4, 5, 11, 12, 13, 15, 16, 17, 1535, 1536, 1537, 3073)


@every_version
def test_every_level_in_every_packing_has_the_exact_bits(version: str) -> None:
    """Of every type, number of channels and order of axes; the edges of vectors and blocks, too."""
    whole = random_levels(3, 37, 41)
    for packing, channels, value_type, to_planes in itertools.product(
        PACKINGS, (3, 4), VALUE_TYPES, (False, True)
    ):
        scaling = scaled(channels=channels, value_type=value_type)
        for levels in (whole, *(random_levels(2, 1, n) for n in EDGES if value_type == "bfloat16")):
            check(levels, scaling, packing, version=version, to_planes=to_planes)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 70), st.integers(1, 70)),
    value_type=st.sampled_from(VALUE_TYPES),
    channels=st.sampled_from([3, 4]),
    packing=st.sampled_from(PACKINGS),
    version=st.sampled_from(VERSIONS),
    start=st.integers(0, 15),
    to_planes=st.booleans(),
)
@example((0, 1, 1), "float32", 4, "int8-hwc-rgb", VERSIONS[-1], 0, False)
def test_any_size_at_any_address(
    shape: tuple[int, int, int],
    value_type: str,
    channels: int,
    packing: Packing,
    version: str,
    start: int,
    to_planes: bool,
) -> None:
    scaling = scaled(channels=channels, value_type=value_type)
    check(random_levels(*shape), scaling, packing, start, version=version, to_planes=to_planes)


@every_version
@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_large_outputs_which_are_stored_past_the_caches(value_type: str, version: str) -> None:
    levels = random_levels(1, 239, 241)
    cases: tuple[tuple[int, Packing, int, bool], ...] = (
        (4, "int8-hwc-rgb", 0, False),
        (4, "int8-chw-rgb", 4, False),
        (4, "int8-hwc-rgb", 1, True),
        (3, "int8-hwc-rgb", 2, False),
        (3, "uint8-hwc-rgbx", 1, False),
    )
    for channels, packing, start, to_planes in cases:
        scaling = scaled(channels=channels, value_type=value_type)
        image_bytes = levels.size // 3 * channels * scaling.table.itemsize
        copies = STREAMED_BYTES // image_bytes + 1 if version != "numpy" else 1
        check(levels, scaling, packing, start, version=version, to_planes=to_planes, copies=copies)


@every_version
def test_other_scalings_and_rounding_to_halves_and_subnormals(version: str) -> None:
    levels = random_levels(1, 16, 17)
    check(levels, NEAR_TIES, version=version)
    for value_type, std in (("float16", (300.0, 2000.0, 1e5)), ("bfloat16", (1e3, 1e30, 1e38))):
        scaling = scaled(mean=(0.5, 0.5, 0.5), std=std, channels=3, value_type=value_type)
        check(levels, scaling, version=version)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_c_part_refuses_arrays_of_another_shape_or_layout(version: str) -> None:
    pixels = pack(random_levels(2, 8, 9), "int8-hwc-rgb")
    normaliser = HostNormaliser(scaled(), "int8-hwc-rgb", version=version)
    out = np.zeros((2, 8, 9, 4), np.float32)
    read_only = out.copy()
    read_only.flags.writeable = False
    for source, into in (
        (pixels[:1], out),
        (np.zeros((2, 8, 18, 3), np.int8)[:, :, ::2], out),
        (pixels, out[:, :, :8]),
        (pixels, out.astype(np.float16)),
        (pixels, np.zeros((2, 8, 18, 4), np.float32)[:, :, ::2]),
        (pixels, read_only),
        (pixels, out.reshape(2, 72, 4)),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            normaliser(source, into)
    assert not out.any()


WITHOUT_EXTENSION = """
    import sys
    sys.modules["trainer_client._native"] = None
    import numpy as np
    from trainer_client import _host_normalise as host
    scaling = host.make_scaling(
        host.IMAGENET_MEAN, host.IMAGENET_STD, channels=4, value_type="float32"
    )
    for _ in range(2):
        normaliser = host.HostNormaliser(scaling, "int8-hwc-rgb")
    assert (normaliser(np.zeros((1, 2, 2, 3), np.int8)) == scaling.bias).all()
    print(host.VERSIONS, "torch" in sys.modules)
"""


def test_without_the_extension_numpy_does_the_work_and_nothing_loads_torch() -> None:
    done = run_script(WITHOUT_EXTENSION)
    assert done.stdout == "('numpy',) False\n"
    (warning,) = done.stderr.splitlines()
    assert "the client's C part is not built (" in warning
    assert "install a C compiler, then run `pip install " in warning


# --- Into tensors ---------------------------------------------------------------------------------

CPU = torch.device("cpu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MEMORY_FORMATS = (torch.channels_last, torch.contiguous_format)


def random_pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    pixels = np.random.default_rng(seed).integers(-128, 128, (*shape, 3), np.int8)
    return torch.from_numpy(pixels)


@pytest.fixture(params=["as built", "without the C part"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms that a CPU has; where the C part is not built they are one."""
    if request.param != "as built":
        with_numpy = functools.partial(HostNormaliser, version="numpy")
        monkeypatch.setattr(_device, "HostNormaliser", with_numpy)
    return str(request.param)


@pytest.mark.parametrize("packing", get_args(Packing))
def test_every_packing_of_the_same_levels_normalises_to_the_same_bits(
    packing: Packing, form: str
) -> None:
    """In either memory format, by the plain function, too."""
    pixels = random_pixels(3, 37, 37)
    packed = torch.from_numpy(pack(pixels.numpy().view(np.uint8) ^ 128, packing))
    before = packed.clone()
    for dtype, channels, memory_format, compiler in itertools.product(
        DTYPES, (3, 4), MEMORY_FORMATS, (None, lambda function: function)
    ):
        normaliser = Normaliser(
            CPU,
            dtype,
            channels=channels,
            memory_format=memory_format,
            packing=packing,
            compiler=compiler,
        )
        images = normaliser(packed)
        assert (images.dtype, images.shape) == (dtype, (3, channels, 37, 37))
        assert images.is_contiguous(memory_format=memory_format)
        assert torch.equal(images, Normaliser(CPU, dtype)(pixels)[:, :channels])
        assert normaliser.compile_failures == 0
    assert torch.equal(packed, before), "normalising changed the batch"


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_denormalise_restores_the_pixels(dtype: torch.dtype, channels: int) -> None:
    pixels = random_pixels(2, 16, 16)
    shown = denormalise(Normaliser(CPU, dtype, channels=channels)(pixels))
    assert shown.dtype == torch.uint8
    assert torch.equal(shown, (pixels.to(torch.int16) + 128).to(torch.uint8))


def test_memory_is_used_again_once_no_tensor_refers_to_it(form: str) -> None:
    """A tensor, a view of one and numpy's view of it keep a batch's values as they are."""
    normaliser = Normaliser(CPU, torch.bfloat16)
    pixels = random_pixels(4, 50, 50)
    fresh = normaliser(pixels).clone()
    for hold in (
        lambda images: images,
        lambda images: images[1:, 2],
        lambda images: images.view(torch.uint16).numpy()[1:],
        lambda images: images.permute(0, 2, 3, 1).reshape(-1).unbind()[77],
        lambda images: torch.nn.Parameter(images).detach(),
    ):
        held = hold(normaliser(pixels))
        before = held.copy() if isinstance(held, np.ndarray) else held.clone()
        for seed in range(5):
            normaliser(random_pixels(*((4, 50, 50) if seed else (2, 7, 5)), seed=seed + 1))
        assert (held == before).all()
        del held
    addresses = set()
    for _ in range(5):
        images = normaliser(pixels)
        assert torch.equal(images, fresh)
        addresses.add(images.data_ptr())
        del images
    assert len(addresses) == 1


def test_a_loop_that_keeps_its_first_batches_uses_the_memory_of_the_others_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the latest batch, too, while it takes the next."""
    normaliser, pixels = Normaliser(CPU, torch.float32), random_pixels(2, 50, 50)
    allocate = Mock(side_effect=np.empty)
    monkeypatch.setattr(np, "empty", allocate)
    kept = [normaliser(pixels) for _ in range(2)]
    for _ in range(10):
        images = normaliser(pixels)
    assert torch.equal(images, kept[0])
    assert allocate.call_count == 4


# --- Compiled, as on CUDA -------------------------------------------------------------------------


def test_it_is_compiled_once_to_one_graph_as_are_functions_of_a_batch() -> None:
    """The graph has no break; torch's "eager" backend needs no C++ compiler."""
    compile_whole = functools.partial(torch.compile, backend="eager", fullgraph=True)
    normaliser = Normaliser(CPU, torch.float16, compiler=compile_whole)
    pixels = random_pixels(2, 8, 8)
    assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert normaliser.compile_failures == 0

    def add(batch: Any) -> Any:
        images, labels = batch
        return images.sum() + labels.sum()

    assert compile_whole(add)(make_plain_batch()) == add(make_plain_batch())


def test_a_failure_to_compile_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def compile_badly(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def fail(*arguments: object) -> torch.Tensor:
            calls.append(arguments)
            raise RuntimeError("no triton\nand a long story")

        return fail

    normaliser = Normaliser(CPU, torch.float16, compiler=compile_badly)
    pixels = random_pixels(2, 8, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert len(calls) == normaliser.compile_failures == 1
    assert [record.getMessage() for record in caplog.records] == [
        "normalise runs uncompiled, compiling failed: no triton"
    ]


def test_out_of_memory_is_no_failure_to_compile() -> None:
    """A job that frees memory and continues keeps the fast form."""
    outcomes = iter([torch.OutOfMemoryError("tried to allocate 2 GiB"), None])

    def run(*arguments: object) -> torch.Tensor:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return normalise(*arguments)  # type: ignore[arg-type]

    normaliser = Normaliser(CPU, torch.float16, compiler=lambda function: run)
    pixels = random_pixels(2, 8, 8)
    with pytest.raises(torch.OutOfMemoryError):
        normaliser(pixels)
    assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert next(outcomes, "exhausted") == "exhausted"
    assert normaliser.compile_failures == 0


# --- Copies to the device -------------------------------------------------------------------------


def test_a_buffer_is_free_when_its_copy_is_done_and_the_host_waits_if_it_is_too_far_ahead() -> None:
    copies, events = CopiesInFlight(), [Mock(query=Mock(return_value=False)) for _ in range(4)]
    copies.add(events[0], 4)
    assert copies.reclaim() == []
    events[0].query.return_value = True
    assert copies.reclaim() == [4]
    assert copies.reclaim() == []
    for number, event in enumerate(events[1:]):
        copies.add(event, number)
    assert copies.reclaim() == [0, 1]
    assert [event.synchronize.called for event in events[1:]] == [True, True, False]
    assert copies.reclaim(all_of_them=True) == [2], "before it has no next batch"
    assert events[3].synchronize.called


# --- Defaults and refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "local_rank", "index"),
    [(0, None, 0), (0, "2", 2), (1, "2", 1), (0, "4", 0), (0, "some", 0)],
)
def test_the_default_device_is_this_processes_own(
    monkeypatch: pytest.MonkeyPatch, current: int, local_rank: str | None, index: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert resolve_device(None) == torch.device("cuda", index)
    assert resolve_device("cuda:3") == torch.device("cuda", 3)
    assert resolve_device("cpu") == CPU
